"""Models make, edit and read artifacts: a version and the result of its call are stored together."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from api.client import ApiClient
from api.conftest import answering, connect, numbers
from api.schema import Document
from api.server_process import ServerProcess
from api.socket_client import open_socket

from luxx.providers.scripted import Call, Finish, Rule, Text, When

DECK = "# One\n\n---\n\n# Two\n\n---\n\n# Three\n"
Talk = Callable[..., tuple[list[dict[str, Any]], list[dict[str, Any]]]]


@pytest.fixture
def anna(server: ServerProcess, document: Document, admin: ApiClient) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"maker{next(numbers)}") as person:
        yield person


@pytest.fixture
def talk(anna: ApiClient, admin: ApiClient) -> Iterator[Talk]:
    """Sends a message that the model answers with these rounds of calls; the results, and the events."""
    with ExitStack() as stack:

        def send(*rounds: list[Call]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
            rules = [
                Rule(when=When(call=number), reply=[*calls, Finish(reason="tool_calls")])
                for number, calls in enumerate(rounds, 1)
            ]
            model = stack.enter_context(answering([*rules, Rule(reply=[Text(text="Done.")])]))
            admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
            provider_id = connect(anna, model)
            conversation_id = anna.good("POST", "/conversations", json={"title": "c"})["id"]
            body = {"conversation_id": conversation_id, "content": "go", "provider_id": provider_id}
            message = anna.good("POST", "/messages", json=body)
            anna.good("DELETE", f"/providers/{provider_id}")
            events = anna.good("GET", f"/conversations/{conversation_id}/events")["events"]
            return [step for step in message["steps"] if step["type"] == "tool_result"], events

        yield send


def data_of(step: dict[str, Any]) -> dict[str, Any]:
    result = json.loads(step["content"])
    assert result["success"], result
    return dict(result["data"])


def create(anna: ApiClient, content: str = DECK) -> str:
    body = {"type": "ppt", "name": "Talk", "content": content}
    return str(anna.good("POST", "/artifacts", json=body)["id"])


def test_the_notification_of_a_run_names_the_artifact_that_it_made(anna: ApiClient, admin: ApiClient) -> None:
    made = Call(
        name="create_artifact", id="c1", arguments={"type": "web", "name": "W", "content": "<p>a</p>"}
    )
    rules = [
        Rule(when=When(call=1), reply=[made, Finish(reason="tool_calls")]),
        Rule(reply=[Text(text="Done.")]),
    ]
    with answering(rules) as model, open_socket(anna) as socket:
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
        provider_id = connect(anna, model)
        conversation_id = anna.good("POST", "/conversations", json={"provider_id": provider_id})["id"]
        body = {"conversation_id": conversation_id, "content": "go"}
        anna.good("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
        note = socket.until(type="notification", status="completed")["data"]
    (artifact,) = anna.good("GET", f"/artifacts?conversation_id={conversation_id}")["items"]
    assert (note["session_id"], note["artifact_id"]) == (conversation_id, artifact["id"])


def edit(artifact_id: str, number: int, **arguments: Any) -> Call:
    return Call(name="edit_artifact", id=f"e{number}", arguments={"artifact_id": artifact_id, **arguments})


def test_a_made_artifact_is_named_in_the_result_the_events_and_the_conversation(
    anna: ApiClient, talk: Talk
) -> None:
    made = {"type": "ppt", "name": "Talk", "content": DECK}
    (step,), events = talk([Call(name="create_artifact", id="c1", arguments=made)])
    data = data_of(step)
    assert (data["version"], data["pages"]) == (1, 3)
    (file,) = step["files"]
    assert (file["artifact_id"], file["version"], file["sha256"]) == (
        data["artifact_id"], 1, data["file"]["sha256"],
    )  # fmt: skip
    (updated,) = [one for one in events if one["type"] == "artifact_updated"]
    assert updated["artifact_id"] == data["artifact_id"]
    assert updated["pages_changed"] == [1, 2, 3]
    view = anna.good("GET", f"/artifacts/{data['artifact_id']}")
    assert (view["subject_kind"], view["head"]) == ("conversation", 1)
    (version,) = anna.good("GET", f"/artifacts/{data['artifact_id']}/versions")["items"]
    assert (version["author"]["kind"], version["run_id"]) == ("model", updated["run_id"])


def test_calls_at_once_change_different_pages_of_one_artifact(anna: ApiClient, talk: Talk) -> None:
    artifact_id = create(anna)
    steps, events = talk(
        [edit(artifact_id, 0, page=1, content="# First", base_version=1)],
        [edit(artifact_id, page, page=page, content=f"# New {page}") for page in (1, 2, 3)],
    )
    assert sorted(data_of(step)["version"] for step in steps) == [2, 3, 4, 5]
    pages = anna.good("GET", f"/artifacts/{artifact_id}/content")["pages"]
    assert [page["content"] for page in pages] == ["# New 1", "# New 2", "# New 3"]
    updated = [one["version"] for one in events if one["type"] == "artifact_updated"]
    assert updated == [2, 3, 4, 5], "each version has its event, in its order"


def test_a_model_reads_what_a_person_changed_before_it_changes_it(anna: ApiClient, talk: Talk) -> None:
    artifact_id = create(anna)
    (refused, read, done), _ = talk(
        [edit(artifact_id, 1, page=2, content="# Mine")],
        [Call(name="read_artifact", id="r", arguments={"artifact_id": artifact_id, "page": 2})],
        [edit(artifact_id, 2, page=2, old_string="Two", new_string="Second", base_version=1)],
    )
    problem = json.loads(refused["content"])["error"]
    assert "a person) has changed it" in problem
    assert "# Two" in problem
    assert "base_version 1" in problem
    assert data_of(read)["content"] == "# Two"
    assert data_of(done)["version"] == 2
    assert anna.good("GET", f"/artifacts/{artifact_id}/content?page=2")["content"] == "# Second"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"page": 9, "content": "# X"}, "there is no page 9"),
        ({"old_string": "missing", "new_string": "x"}, "does not occur"),
        ({"old_string": "# T", "new_string": "x"}, "occurs 2 times"),
        ({"content": "# X"}, "name the page"),
        ({"page": 1}, "give content"),
    ],
)
def test_an_edit_that_fits_nothing_says_why(
    anna: ApiClient, talk: Talk, arguments: dict[str, Any], reason: str
) -> None:
    artifact_id = create(anna)
    (step,), events = talk([edit(artifact_id, 1, base_version=1, **arguments)])
    assert reason in json.loads(step["content"])["error"]
    assert not [one for one in events if one["type"] == "artifact_updated"]
    assert anna.good("GET", f"/artifacts/{artifact_id}")["head"] == 1


def test_artifacts_of_others_are_not_there(
    server: ServerProcess, document: Document, anna: ApiClient, talk: Talk
) -> None:
    with ApiClient(server, document).register(f"maker{next(numbers)}") as other:
        artifact_id = create(other)
        steps, _ = talk(
            [
                Call(name="read_artifact", id="r", arguments={"artifact_id": artifact_id}),
                edit(artifact_id, 1, page=1, content="# X", base_version=1),
            ]
        )
        assert all("no artifact with this id" in json.loads(step["content"])["error"] for step in steps)
        assert other.good("GET", f"/artifacts/{artifact_id}")["head"] == 1


def test_a_call_by_hand_makes_an_artifact_of_the_person(anna: ApiClient) -> None:
    made = {"arguments": {"type": "diagram", "name": "D", "content": "graph TD\n A-->B"}}
    data = anna.good("POST", "/tools/create_artifact/execute", json=made)["data"]
    view = anna.good("GET", f"/artifacts/{data['artifact_id']}")
    assert (view["type"], view["subject_kind"]) == ("diagram", None)
    (version,) = anna.good("GET", f"/artifacts/{view['id']}/versions")["items"]
    assert version["author"] == {"kind": "person", "name": anna.user["username"]}


def test_a_deck_is_rendered_once_and_its_pictures_are_those_of_the_file(anna: ApiClient) -> None:
    pytest.importorskip("rpptx")
    artifact_id = create(anna)
    first = anna.ask("GET", f"/artifacts/{artifact_id}/download")
    assert first.status_code == 200
    assert first.content.startswith(b"PK")
    assert first.content == anna.ask("GET", f"/artifacts/{artifact_id}/download").content
    preview = anna.good("GET", f"/artifacts/{artifact_id}/preview")
    assert preview["rendered_by"]
    assert len(preview["pages"]) == 3
    assert [page["source_page"] for page in preview["pages"]] == [1, 2, 3]
    picture = anna.ask("GET", preview["pages"][0]["thumbnail_url"])
    assert picture.headers["content-type"] == "image/png"
    assert picture.content.startswith(b"\x89PNG")
    small = anna.ask("GET", f"/artifacts/{artifact_id}/pages/1?width=300")
    assert small.status_code == 200
    assert len(small.content) < len(picture.content) * 2
    anna.bad("GET", f"/artifacts/{artifact_id}/pages/9", 404)
    body = {"page": 2, "content": "# Other", "base_version": 1}
    anna.good("PUT", f"/artifacts/{artifact_id}/content", json=body)
    after = anna.good("GET", f"/artifacts/{artifact_id}/preview")["pages"]
    same = [page["sha256"] == old["sha256"] for page, old in zip(after, preview["pages"], strict=True)]
    assert same == [True, False, True]


def test_what_does_not_fit_is_a_problem_of_the_version(anna: ApiClient) -> None:
    pytest.importorskip("rpptx")
    artifact_id = create(anna, "# One\n\n---\n\n# Two\n\n" + "many words " * 2_000)
    view = anna.good("GET", f"/artifacts/{artifact_id}")
    assert [(one["page"], one["kind"]) for one in view["problems"]] == [(2, "overflow")]
    assert anna.ask("GET", f"/artifacts/{artifact_id}/download").status_code == 200
