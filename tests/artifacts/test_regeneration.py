"""A page that a model writes anew: the answer becomes the page of one new version, or of none."""

import json
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from api.client import ApiClient
from api.conftest import answering, connect, numbers
from api.schema import Document
from api.server_process import ServerProcess
from api.socket_client import open_socket

from luxx.features.artifacts.page_prompt import page_of_answer, without_fence
from luxx.features.artifacts.source import SourcePage
from luxx.providers.scripted import Finish, Gate, Rule, ScriptedProvider, Text
from luxx.wire.artifacts import ArtifactType

DECK = "# One\n\n---\n\n# Two\n\n---\n\n# Three\n"
JSON = {"accept": "application/json"}
STREAM = {"accept": "text/event-stream"}


@pytest.fixture
def anna(server: ServerProcess, document: Document, admin: ApiClient) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"writer{next(numbers)}") as person:
        yield person


@contextmanager
def model(admin: ApiClient, person: ApiClient, *reply: Any) -> Generator[ScriptedProvider]:
    """The person's default model, which answers every call with this."""
    with answering([Rule(reply=[*reply, Finish()])]) as upstream:
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [upstream.url.removeprefix("http://")]})
        provider_id = connect(person, upstream)
        person.good("PUT", "/settings", json={"default_provider_id": provider_id})
        yield upstream


def create(person: ApiClient, content: str = DECK, **more: Any) -> str:
    body = {"type": "ppt", "name": "Talk", "content": content, **more}
    return str(person.good("POST", "/artifacts", json=body)["id"])


def start(person: ApiClient, artifact_id: str, page: int = 2, instructions: str = "say more") -> Any:
    body = {"page_index": page, "instructions": instructions}
    response = person.ask("POST", f"/artifacts/{artifact_id}/regenerate", json=body, headers=JSON)
    assert response.status_code == 202, response.text
    return response.json()["data"]


def ended(person: ApiClient, run_id: str, seconds: float = 20) -> dict[str, Any]:
    until = time.monotonic() + seconds
    while True:
        run: dict[str, Any] = person.good("GET", f"/runs/{run_id}")
        if run["status"] in ("completed", "failed", "cancelled"):
            return run
        assert time.monotonic() < until, run
        time.sleep(0.05)


def events_of(person: ApiClient, run_id: str) -> list[dict[str, Any]]:
    return list(person.good("GET", f"/runs/{run_id}/events", headers=JSON)["events"])


def texts(person: ApiClient, artifact_id: str) -> list[str]:
    return [page["content"] for page in person.good("GET", f"/artifacts/{artifact_id}/content")["pages"]]


def test_the_answer_is_the_page_of_a_new_version(admin: ApiClient, anna: ApiClient) -> None:
    artifact_id = create(anna)
    with model(admin, anna, Text(text="# Second\n\n"), Text(text="- more\n\n---\n\n- and more")) as upstream:
        body = {"page_index": 2, "instructions": "say more"}
        path = f"/artifacts/{artifact_id}/regenerate"
        with anna.http.stream("POST", path, json=body, headers=STREAM) as stream:
            assert stream.status_code == 200
            lines = list(stream.iter_lines())
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert kinds[0] == "run"
    assert kinds.index("process_step") < kinds.index("artifact_updated") < kinds.index("done")
    assert kinds[-1] == "done"
    assert texts(anna, artifact_id) == ["# One", "# Second\n\n- more\n\n- and more", "# Three"]
    view = anna.good("GET", f"/artifacts/{artifact_id}")
    assert view["head"] == 2
    newest, _ = anna.good("GET", f"/artifacts/{artifact_id}/versions")["items"]
    assert (newest["author"]["kind"], newest["note"], newest["pages_changed"]) == ("model", "say more", [2])
    run = anna.good("GET", f"/runs/{newest['run_id']}")
    assert (run["kind"], run["subject_id"], run["status"]) == ("artifact", artifact_id, "completed")
    assert run["usage"]["total_tokens"] > 0
    assert [one["id"] for one in anna.good("GET", "/runs?kind=artifact")["items"]] == [run["id"]]
    (updated,) = [one for one in events_of(anna, run["id"]) if one["type"] == "artifact_updated"]
    assert (updated["version"], updated["pages_changed"]) == (2, [2])
    (request,) = upstream.requests
    asked = request.body.decode()
    for part in ("1. One", "3. Three", "say more", "slide in Markdown"):
        assert part in asked
    assert not json.loads(request.body).get("tools"), "the model gets no tools"


def test_a_page_that_a_person_changed_meanwhile_stays(admin: ApiClient, anna: ApiClient) -> None:
    artifact_id = create(anna)
    with model(admin, anna, Text(text="# Of the model"), Gate(name="g")) as upstream:
        run_id = start(anna, artifact_id)["id"]
        change = {"page": 2, "content": "# Of a person", "base_version": 1}
        anna.good("PUT", f"/artifacts/{artifact_id}/content", json=change)
        upstream.release("g")
        run = ended(anna, run_id)
    assert run["status"] == "failed"
    assert "was changed or deleted while" in run["error"]
    assert texts(anna, artifact_id) == ["# One", "# Of a person", "# Three"]
    events = events_of(anna, run_id)
    assert "# Of the model" in str(events), "the answer stays readable"
    assert not [one for one in events if one["type"] == "artifact_updated"]


def test_the_change_of_another_page_is_kept(admin: ApiClient, anna: ApiClient) -> None:
    artifact_id = create(anna)
    with model(admin, anna, Text(text="# Of the model"), Gate(name="g")) as upstream:
        run_id = start(anna, artifact_id, page=3)["id"]
        change = {"page": 1, "content": "# A\n\n---\n\n# B", "base_version": 1}
        anna.good("PUT", f"/artifacts/{artifact_id}/content", json=change)
        upstream.release("g")
        assert ended(anna, run_id)["status"] == "completed"
    assert texts(anna, artifact_id) == ["# A", "# B", "# Two", "# Of the model"]


def test_an_artifact_has_one_run_and_a_cancelled_one_changes_nothing(
    admin: ApiClient, anna: ApiClient
) -> None:
    artifact_id = create(anna)
    with model(admin, anna, Text(text="# Of the model"), Gate(name="g")) as upstream:
        run_id = start(anna, artifact_id)["id"]
        body = {"page_index": 1, "instructions": "x"}
        refused = anna.bad("POST", f"/artifacts/{artifact_id}/regenerate", 409, json=body, headers=JSON)
        assert refused["detail"]["run_id"] == run_id
        anna.good("POST", f"/runs/{run_id}/cancel")
        assert ended(anna, run_id)["status"] == "cancelled"
        assert events_of(anna, run_id)[-1]["type"] == "done"
        assert texts(anna, artifact_id) == ["# One", "# Two", "# Three"]
        upstream.release("g")
        assert ended(anna, start(anna, artifact_id)["id"])["status"] == "completed"
    assert anna.good("GET", f"/artifacts/{artifact_id}")["head"] == 2


def test_what_is_no_page_is_the_error_of_the_run(admin: ApiClient, anna: ApiClient) -> None:
    chart = create(anna, '{"labels": ["a"], "series": [{"name": "s", "values": [1]}]}', type="chart")
    with model(admin, anna, Text(text="I cannot do that")):
        run = ended(anna, start(anna, chart, page=1)["id"])
    assert (run["status"], "a chart is one JSON object" in run["error"]) == ("failed", True)
    assert anna.good("GET", f"/artifacts/{chart}")["head"] == 1


def test_the_same_page_makes_no_version(admin: ApiClient, anna: ApiClient) -> None:
    artifact_id = create(anna)
    with model(admin, anna, Text(text="```markdown\n# Two\n```")):
        run_id = start(anna, artifact_id)["id"]
        assert ended(anna, run_id)["status"] == "completed"
    assert [one["type"] for one in events_of(anna, run_id)][-2:] == ["warning", "done"]
    assert anna.good("GET", f"/artifacts/{artifact_id}")["head"] == 1


def test_bad_requests_say_why(admin: ApiClient, anna: ApiClient) -> None:
    artifact_id = create(anna)
    path = f"/artifacts/{artifact_id}/regenerate"
    with model(admin, anna, Text(text="x")):
        missing = anna.bad("POST", path, 400, json={"page_index": 9, "instructions": "x"}, headers=JSON)
        assert "there is no page 9" in missing["error"]
        for body in ({"page_index": 0, "instructions": "x"}, {"page_index": 1, "instructions": ""}, {}):
            anna.bad("POST", path, 400, json=body, headers=JSON)


def test_who_deletes_an_artifact_deletes_its_runs(admin: ApiClient, anna: ApiClient) -> None:
    artifact_id = create(anna)
    with model(admin, anna, Text(text="# New")):
        run_id = start(anna, artifact_id)["id"]
        ended(anna, run_id)
    anna.good("DELETE", f"/artifacts/{artifact_id}")
    anna.bad("GET", f"/runs/{run_id}", 404)


def test_speakers_of_a_room_may_and_watchers_may_not(
    server: ServerProcess, document: Document, admin: ApiClient, anna: ApiClient
) -> None:
    with ApiClient(server, document).register(f"writer{next(numbers)}") as ben:
        room = anna.good("POST", "/chat-rooms", json={"title": "r", "task": "t"})["id"]
        artifact_id = create(anna, room_id=room)
        path, body = f"/artifacts/{artifact_id}/regenerate", {"page_index": 2, "instructions": "x"}
        ben.bad("POST", path, 404, json=body, headers=JSON)
        name = ben.user["username"]
        member = anna.good("POST", f"/chat-rooms/{room}/members", json={"username": name, "right": "watch"})
        ben.bad("POST", path, 403, json=body, headers=JSON)
        right = {"right": "speak"}
        anna.good("PUT", f"/chat-rooms/{room}/members/{member['user_id']}", json=right)
        with model(admin, ben, Text(text="# By Ben")):
            assert ended(ben, start(ben, artifact_id)["id"])["status"] == "completed"
        assert texts(anna, artifact_id)[1] == "# By Ben"


def test_the_run_is_for_those_who_see_the_artifact_and_the_notification_for_who_started_it(
    server: ServerProcess, document: Document, admin: ApiClient, anna: ApiClient
) -> None:
    with ExitStack() as stack:
        ben, carl, dora = (
            stack.enter_context(ApiClient(server, document).register(f"writer{next(numbers)}"))
            for _ in range(3)
        )
        room = anna.good("POST", "/chat-rooms", json={"title": "r", "task": "t"})["id"]
        members = f"/chat-rooms/{room}/members"
        for person, right in ((ben, "speak"), (carl, "watch")):
            anna.good("POST", members, json={"user_id": person.user["id"], "right": right})
            person.good("GET", f"/chat-rooms/{room}/messages")
        artifact_id = create(anna, room_id=room)
        upstream = stack.enter_context(model(admin, ben, Text(text="# By Ben"), Gate(name="g")))
        run_id = start(ben, artifact_id)["id"]
        for person in (anna, carl, ben):
            assert person.good("GET", f"/runs/{run_id}")["title"] == "Talk"
            assert [one["id"] for one in person.good("GET", "/runs?kind=artifact")["items"]] == [run_id]
        dora.bad("GET", f"/runs/{run_id}", 404)
        dora.bad("GET", f"/runs/{run_id}/events", 404, headers=JSON)
        assert dora.good("GET", "/runs?kind=artifact")["items"] == []
        carl.bad("POST", f"/runs/{run_id}/cancel", 403)
        anna.good("POST", f"/runs/{run_id}/cancel")
        assert ended(carl, run_id)["status"] == "cancelled"

        sockets = [stack.enter_context(open_socket(person)) for person in (ben, anna, carl, dora)]
        assert sockets[2].subscribe(artifact_id)["data"]["status"] == "cancelled"
        assert sockets[3].subscribe(artifact_id)["type"] == "error"
        run_id = start(ben, artifact_id)["id"]
        with carl.http.stream("GET", f"/runs/{run_id}/events", headers=STREAM) as stream:
            upstream.release("g")
            kinds = [line[7:] for line in stream.iter_lines() if line.startswith("event: ")]
        assert kinds[-2:] == ["artifact_updated", "done"]
        note = sockets[0].until(type="notification", status="completed")["data"]
        assert (note["artifact_id"], note["session_kind"]) == (artifact_id, "artifact")
        assert (note["title"], note["message"]) == ("Talk", "The page is written.")
        sockets[2].until(type="session_update", status="completed")
        assert sockets[1].drain() == sockets[3].drain() == []
        anna.good("DELETE", f"{members}/{carl.user['id']}")
        carl.bad("GET", f"/runs/{run_id}", 404)
        anna.good("DELETE", f"/chat-rooms/{room}")
        assert anna.good("GET", f"/runs/{run_id}")["status"] == "completed"


@pytest.mark.parametrize(
    ("type_", "answer", "page"),
    [
        ("ppt", "```markdown\n# A\n```", "# A"),
        ("ppt", "```\n# A\n```\n", "# A"),
        ("ppt", "```chart\n{}\n```", "```chart\n{}\n```"),
        ("document", "````md\n# A\n\n```\nx\n```\n````", "# A\n\n```\nx\n```"),
        ("document", "```\na\n```\n\ntext\n\n```\nb\n```", "```\na\n```\n\ntext\n\n```\nb\n```"),
        ("code", "```python\nprint()\n```", "print()"),
        ("diagram", "```mermaid\ngraph TD\n```", "graph TD"),
        ("web", "<p>a</p>", "<p>a</p>"),
    ],
)
def test_one_fence_around_an_answer_is_removed(type_: str, answer: str, page: str) -> None:
    assert without_fence(ArtifactType(type_), answer).strip() == page


def test_a_file_of_code_keeps_its_path() -> None:
    (page,) = page_of_answer(ArtifactType.CODE, "```\nb\n```", SourcePage("a", "src/a.py"))
    assert page == SourcePage("b\n", "src/a.py")
