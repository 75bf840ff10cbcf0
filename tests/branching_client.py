"""A client that branches a conversation over HTTP; its model gives a different answer to every call."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.client import ApiClient, document_of
from api.conftest import connect
from api.server_process import ServerProcess
from process_environment import scripted_models

from luxx.providers.scripted import Counts, Finish, Gate, Rule, Script, ScriptedProvider, Text, When

ANSWERS = 4000
JSON = {"accept": "application/json"}
STRUCTURED = "gpt-4.1-mini"
"""A model that supports a schema, according to the catalogue."""

Json = dict[str, Any]


def script() -> Script:
    """`fail` fails, `wait` waits at the gate; everything else is answered with the next number."""
    rules = [
        Rule(name="fails", when=When(user="^fail"), status=401, message="wrong key"),
        Rule(name="waits", when=When(user="^wait"), reply=[Text(text="I am"), Gate(name="waiting")]),
    ]
    rules += [
        Rule(
            name=f"answer {number}",
            reply=[Text(text=f"answer {number}"), Counts(prompt=3, completion=2), Finish()],
            times=1,
        )
        for number in range(ANSWERS)
    ]
    return Script(models=["scripted", STRUCTURED], rules=rules)


class BranchingClient:
    """One user at one server, and the requests that the model there got."""

    def __init__(self, person: ApiClient, upstream: ScriptedProvider) -> None:
        self.person = person
        self.upstream = upstream

    def chat(self, **fields: Any) -> "ConversationClient":
        """Creates a conversation."""
        return ConversationClient(self, self.person.good("POST", "/conversations", json=fields)["id"])

    def sent(self) -> Json:
        """The last request that the model got."""
        body: Json = self.upstream.requests[-1].json
        return body

    def prompt(self) -> list[tuple[str, str]]:
        """The roles and texts of the last request that the model got, without the list of agents."""
        messages = self.sent()["messages"]
        return [(message["role"], message["content"]) for message in messages if message["role"] != "system"]


@contextmanager
def branching_client(
    folder: Path, *, is_checked: bool = True, **environment: str
) -> Iterator[BranchingClient]:
    """A server in this folder and a client; with `is_checked` answers are checked against the OpenAPI
    document."""
    with scripted_models(script()) as upstream, ServerProcess(folder, **environment) as server:
        document = document_of(server) if is_checked else None
        with ApiClient(server, document).sign_in() as admin:
            hosts = [upstream.url.removeprefix("http://")]
            admin.good("PUT", "/admin/allowed-hosts", json={"hosts": hosts})
        with ApiClient(server, document).register("anna") as person:
            connect(person, upstream)
            yield BranchingClient(person, upstream)


class ConversationClient:
    """A conversation and its operations."""

    def __init__(self, client: BranchingClient, id_: str) -> None:
        self.id = id_
        self._client = client
        self._person = client.person

    def send(self, content: str, **more: Any) -> Json:
        """Sends a message. Returns the answer."""
        body = {"conversation_id": self.id, "content": content, **more}
        return self._data("POST", "/messages", json=body)

    def send_without_waiting(self, content: str) -> Json:
        """Sends a message without waiting for its answer. Returns the run."""
        body = {"conversation_id": self.id, "content": content}
        return self._data("POST", "/messages/stream", json=body, headers=JSON)

    def again(self, message_id: str, **more: Any) -> Json:
        """Regenerates an answer and waits for its end."""
        body = {"json": more} if more else {}
        path = f"/messages/{message_id}/regenerate"
        response = self._person.ask("POST", path, headers=JSON, **body)
        assert response.status_code == 202, response.text
        run: Json = response.json()["data"]
        with self._person.http.stream("GET", f"/runs/{run['id']}/events") as stream:
            stream.read()
        return next(message for message in self.messages() if message["id"] == run["message_id"])

    def edit(self, message_id: str, content: str, **more: Any) -> Json:
        """Edits a message. Returns the new sibling."""
        return self._data("PUT", f"/messages/{message_id}", json={"content": content, **more})

    def select(self, message_id: str) -> str:
        """Selects a message. Returns the leaf that is then selected."""
        changed = self._data("PUT", f"/conversations/{self.id}", json={"selected_leaf_id": message_id})
        return str(changed["selected_leaf_id"])

    def delete(self, message_id: str) -> None:
        self._data("DELETE", f"/messages/{message_id}")

    def fork(self, message_id: str | None = None) -> "ConversationClient":
        body = {"json": {"message_id": message_id}} if message_id else {}
        return ConversationClient(
            self._client, self._data("POST", f"/conversations/{self.id}/fork", **body)["id"]
        )

    def show(self) -> Json:
        return self._data("GET", f"/conversations/{self.id}")

    def tree(self, **query: Any) -> Json:
        return self._data("GET", f"/conversations/{self.id}/tree", params=query)

    def messages(self) -> list[Json]:
        """Oldest first, of all branches."""
        messages_found: list[Json] = []
        page = 1
        while items := self._page(page)["items"]:
            messages_found += items
            page += 1
        return messages_found[::-1]

    def texts(self) -> list[str]:
        """The texts of the selected path, from its beginning."""
        texts_by_id = {message["id"]: message["text"] for message in self.messages()}
        return [texts_by_id[id_] for id_ in self.tree()["selected_path"]]

    def _page(self, page: int) -> Json:
        query = {"conversation_id": self.id, "page": page, "page_size": 100}
        return self._data("GET", "/messages", params=query)

    def _data(self, method: str, path: str, **more: Any) -> Any:
        return self._person.good(method, path, **more)
