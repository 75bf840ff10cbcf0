"""Two models answer one message, each in a run of its own, and a person keeps one of the answers."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from api.client import ApiClient, document_of
from api.conftest import answering, connect
from api.server_process import ServerProcess
from branching_client import JSON

from luxx.providers.scripted import Call, Counts, Finish, Gate, Rule, ScriptedProvider, Text, When

FIRST, SECOND = "gpt-4.1-mini", "gpt-4.1"
"""Models whose prices are known."""

NOBODYS = "01890a5d-ac96-774b-bcce-b302099a8057"
READS = Call(name="file_list", id="c1", arguments={"path": "."})


def rules() -> list[Rule]:
    rules: list[Rule] = []
    for model, name, tokens in ((f"^{FIRST}$", "first", 10), (f"^{SECOND}$", "second", 20)):
        usage = Counts(prompt=100, completion=tokens)
        text = Text(text=f"The {name} says so.")
        rules += [
            Rule(when=When(model=model, user="^fail"), status=401, message="wrong key"),
            Rule(
                when=When(model=model, user="^ask", has_tool_result=False),
                reply=[READS, usage, Finish(reason="tool_calls")],
            ),
            Rule(
                when=When(model=model, user="^wait"),
                reply=[Text(text=f"The {name}"), Gate(name=name), Text(text=" ends."), usage, Finish()],
            ),
            Rule(when=When(model=model), reply=[text, usage, Finish()]),
        ]
    return rules


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    with answering(rules()) as provider:
        yield provider


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("comparing"), LUXX_RUNS__LEASE_SECONDS="1") as running:
        yield running


@pytest.fixture(scope="module")
def person(server: ServerProcess, model: ScriptedProvider) -> Iterator[ApiClient]:
    with ApiClient(server, document_of(server)).sign_in() as admin:
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
        admin.user["provider"] = connect(admin, model)
        yield admin


class Chat:
    """A conversation of the first model, which is compared with the second one."""

    def __init__(self, person: ApiClient, **fields: Any) -> None:
        self.person = person
        own = {"provider_id": person.user["provider"], "model": FIRST}
        self.id: str = person.good("POST", "/conversations", json={**own, **fields})["id"]

    @property
    def path(self) -> str:
        return f"/conversations/{self.id}/comparison"

    def body(self, content: str, model: str = SECOND, **more: Any) -> dict[str, Any]:
        other = {"provider_id": self.person.user["provider"], "model": model}
        return {"content": content, "compare_with": other, **more}

    def compare(self, content: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.person.good("POST", self.path, json=self.body(content, **more))
        return found

    def find(self) -> dict[str, Any]:
        found: dict[str, Any] = self.person.good("GET", self.path)
        return found

    def until(self, *statuses: str) -> dict[str, Any]:
        """The comparison once its runs have these statuses."""
        found = self.find()
        for _ in range(300):
            found = self.find()
            if [one["run"]["status"] for one in found["answers"]] == list(statuses):
                return found
            time.sleep(0.05)
        raise AssertionError(f"the runs never were {statuses}: {found}")

    def show(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.person.good("GET", f"/conversations/{self.id}")
        return shown

    def keep(self, message_id: str) -> None:
        self.person.good("PUT", f"/conversations/{self.id}", json={"selected_leaf_id": message_id})

    def send(self, content: str, **more: Any) -> dict[str, Any]:
        body = {"conversation_id": self.id, "content": content, **more}
        sent: dict[str, Any] = self.person.good("POST", "/messages", json=body)
        return sent

    def refused(self, content: str, **more: Any) -> dict[str, Any]:
        body = {"conversation_id": self.id, "content": content, **more}
        return self.person.bad("POST", "/messages", 409, json=body)


DONE = ("completed", "completed")


def test_both_answer_with_their_own_costs_and_the_kept_one_goes_on(
    person: ApiClient, model: ScriptedProvider, server: ServerProcess
) -> None:
    chat = Chat(person)
    started = chat.compare("hello")
    assert [one["run"]["model"] for one in started["answers"]] == [FIRST, SECOND]
    found = chat.until(*DONE)
    first, second = found["answers"]
    assert [one["message"]["text"] for one in (first, second)] == [
        "The first says so.",
        "The second says so.",
    ]
    assert [one["message"]["model"] for one in (first, second)] == [FIRST, SECOND]
    assert {one["message"]["parent_id"] for one in (first, second)} == {found["message_id"]}

    costs = [one["run"]["cost"] for one in (first, second)]
    assert all(costs)
    assert costs[0] < costs[1]
    booked = person.good("GET", f"/usage?conversation_id={chat.id}")["sums"]
    assert booked["completions"] == 2
    assert booked["completion_tokens"] == 30
    assert booked["cost"] == pytest.approx(sum(costs))

    shown = chat.show()
    assert shown["comparing_id"] == shown["selected_leaf_id"] == found["message_id"]
    assert shown["run_id"] is None
    assert shown["title"] == "hello"
    for more in ({}, {"when_busy": "queue"}, {"when_busy": "steer"}):
        refused = chat.refused("go on", **more)
        assert refused["detail"]["kind"] == "answer_not_chosen"
        assert "keep one of the answers first" in refused["error"]
    question = {"json": {"selected_leaf_id": found["message_id"]}}
    assert (
        person.bad("PUT", f"/conversations/{chat.id}", 409, **question)["detail"]["kind"]
        == "answer_not_chosen"
    )
    assert chat.show()["comparing_id"] == found["message_id"]

    chat.keep(second["message"]["id"])
    assert chat.show()["comparing_id"] is None
    assert chat.show()["selected_leaf_id"] == second["message"]["id"]
    assert person.good("GET", chat.path) is None
    chat.send("go on")
    sent = [one["content"] for one in model.requests[-1].json["messages"] if one["role"] != "system"]
    assert sent == ["hello", "The second says so.", "go on"]
    nodes = {node["id"]: node for node in person.good("GET", f"/conversations/{chat.id}/tree")["nodes"]}
    assert set(nodes[found["message_id"]]["children"]) == {first["message"]["id"], second["message"]["id"]}
    with closing(sqlite3.connect(server.data_dir / "luxx.db")) as database:
        query = "SELECT id FROM messages WHERE conversation_id = ? AND is_unremembered"
        assert database.execute(query, [chat.id]).fetchall() == [(first["message"]["id"],)]


def test_one_is_stopped_while_the_other_goes_on(person: ApiClient, model: ScriptedProvider) -> None:
    chat = Chat(person)
    runs = [one["run"] for one in chat.compare("wait")["answers"]]
    assert chat.show()["run_id"] == runs[0]["id"]
    assert chat.refused("go on")["detail"]["kind"] == "run_active"
    assert chat.refused("go on", when_busy="queue")["detail"]["kind"] == "answer_not_chosen"
    todos = {"json": {"todos": [{"title": "a"}]}}
    assert (
        person.bad("PUT", f"/conversations/{chat.id}/todos", 409, **todos)["detail"]["kind"]
        == "answer_not_chosen"
    )
    busy = person.bad("POST", chat.path, 409, json=chat.body("hello"))
    assert busy["detail"]["kind"] == "run_active"

    person.cancel(runs[0]["id"])
    found = chat.until("cancelled", "running")
    assert found["answers"][0]["message"]["status"] == "partial"
    assert found["answers"][1]["message"] is None
    assert chat.show()["run_id"] == runs[1]["id"], "the other one is the active run now"
    first = found["answers"][0]["message"]["id"]
    early = {"json": {"selected_leaf_id": first}}
    assert person.bad("PUT", f"/conversations/{chat.id}", 409, **early)["detail"]["kind"] == "run_active"

    model.release("second")
    found = chat.until("cancelled", "completed")
    assert found["answers"][1]["message"]["text"] == "The second ends."
    assert chat.show()["run_id"] is None
    chat.keep(first)
    assert chat.send("hello")["parent_id"] != first


def test_each_asks_for_its_own_permission(person: ApiClient) -> None:
    person.good("PUT", "/permissions/rules", json=[{"tool": "file_list", "action": "ask"}])
    chat = Chat(person)
    chat.compare("ask", tools=["file_list"])
    found = chat.until("waiting", "waiting")
    for one, answer in zip(found["answers"], ("reject", "once"), strict=True):
        asked = person.good("GET", f"/runs/{one['run']['id']}/questions")["items"]
        assert len(asked) == 1
        path = f"/runs/{one['run']['id']}/questions/{asked[0]['id']}/answer"
        person.good("POST", path, json={"answer": answer})
    found = chat.until(*DONE)
    outcomes = [
        next(step for step in one["message"]["steps"] if step["type"] == "tool_result")["success"]
        for one in found["answers"]
    ]
    assert outcomes == [False, True]
    person.good("PUT", "/permissions/rules", json=[])


def test_what_cannot_be_compared_is_refused_in_words(
    person: ApiClient, model: ScriptedProvider, server: ServerProcess
) -> None:
    chat = Chat(person)
    same = person.bad("POST", chat.path, 400, json=chat.body("hello", model=FIRST))
    assert same["detail"]["kind"] == "same_model"
    assert FIRST in same["error"]
    unknown = chat.body("hello") | {"compare_with": {"provider_id": 9999, "model": SECOND}}
    assert person.bad("POST", chat.path, 404, json=unknown)["detail"]["kind"] == "provider_not_found"
    missing = chat.body("hello", parent_id=NOBODYS)
    assert person.bad("POST", chat.path, 404, json=missing)["detail"]["kind"] == "message_not_found"
    with ApiClient(server, person.document).register("ben") as other:
        for method, body in (("GET", {}), ("POST", {"json": chat.body("hello")})):
            assert other.bad(method, chat.path, 404, **body)["detail"]["kind"] == "conversation_not_found"
        connect(other, model)
        own = other.good("POST", "/conversations", json={})["id"]
        foreign = other.bad("POST", f"/conversations/{own}/comparison", 404, json=chat.body("hello"))
        assert foreign["detail"]["kind"] == "provider_not_found"
    assert person.good("GET", f"/messages?conversation_id={chat.id}")["total"] == 0
    assert chat.show()["comparing_id"] is None


def test_failed_answers_hold_nothing_up_and_other_branches_end_it(person: ApiClient) -> None:
    chat = Chat(person, is_temporary=True)
    chat.compare("fail")
    found = chat.until("failed", "failed")
    assert all("wrong key" in one["run"]["error"] for one in found["answers"])
    # Another answer to the same message is a choice too.
    again = person.ask("POST", f"/messages/{found['message_id']}/regenerate", headers=JSON, json={})
    assert again.status_code == 202, again.text
    assert chat.show()["comparing_id"] is None

    chat = Chat(person)
    chat.compare("hello")
    first = chat.until(*DONE)["answers"][0]["message"]
    edited = person.good("PUT", f"/messages/{first['id']}", json={"content": "mine"})
    assert chat.show()["comparing_id"] is None
    assert chat.show()["selected_leaf_id"] == edited["id"]
    chat.compare("hello again")
    second = chat.until(*DONE)["answers"][1]["message"]
    chat.send("go on", parent_id=second["id"])
    assert chat.show()["comparing_id"] is None
    chat.compare("and again")
    question = chat.until(*DONE)["message_id"]
    person.good("DELETE", f"/messages/{question}")
    assert chat.show()["comparing_id"] is None
    assert chat.send("further")["text"]


def test_deleting_stops_both(person: ApiClient) -> None:
    chat = Chat(person)
    question = chat.compare("wait")["message_id"]
    person.good("DELETE", f"/messages/{question}")
    assert chat.show()["run_id"] is None
    runs = [one["run"]["id"] for one in chat.compare("wait")["answers"]]
    person.good("DELETE", f"/conversations/{chat.id}")
    for run in runs:
        person.bad("GET", f"/runs/{run}", 404)
