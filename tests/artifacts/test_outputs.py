"""What steps of tasks and seats of rooms make is named in their results, and the others can read it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from api.client import ApiClient
from api.conftest import answering, connect, numbers
from api.room_rows import new_room
from api.schema import Document
from api.server_process import ServerProcess

from artifacts.test_regeneration import JSON, ended
from luxx.providers.scripted import Call, Finish, Rule, Text, When

PAGE = {"type": "web", "content": "<p>one</p>"}


@pytest.fixture
def anna(server: ServerProcess, document: Document, admin: ApiClient) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"outputs{next(numbers)}") as person:
        yield person


def making(name: str) -> list[Any]:
    return [
        Call(name="create_artifact", id=f"make-{name}", arguments={**PAGE, "name": name}),
        Finish(reason="tool_calls"),
    ]


def body_of(upstream: Any, rule: str) -> dict[str, Any]:
    """The last request that this rule answered."""
    found = [request.body for request in upstream.requests if request.rule == rule]
    return dict(json.loads(found[-1]))


def test_steps_name_what_they_wrote_and_the_next_ones_can_read_it(admin: ApiClient, anna: ApiClient) -> None:
    rules = [
        Rule(when=When(user=r"Your step \[a\]", has_tool_result=False), reply=making("Alpha")),
        Rule(when=When(user=r"Your step \[a\]"), reply=[Text(text="Alpha is there.")]),
        Rule(when=When(user=r"Your step \[c\]", has_tool_result=False), reply=making("Gamma")),
        Rule(when=When(user=r"Your step \[c\]"), reply=[Finish()]),
        Rule(name="b", when=When(user=r"Your step \[b\]"), reply=[Text(text="Read.")]),
        Rule(name="result", reply=[Text(text="All done.")]),
    ]
    steps = [
        {"id": "a", "name": "a", "goal": "make"},
        {"id": "c", "name": "c", "goal": "make"},
        {"id": "b", "name": "b", "goal": "read", "depends_on": ["a", "c"], "required_tools": ["file_read"]},
    ]
    with answering(rules) as upstream:
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [upstream.url.removeprefix("http://")]})
        provider_id = connect(anna, upstream)
        new = {"name": "t", "goal": "g", "provider_id": provider_id, "steps": steps}
        task_id = anna.good("POST", "/tasks", json=new)["id"]
        run = anna.good("POST", f"/tasks/{task_id}/execute", headers=JSON)
        ending = ended(anna, run["id"])
    task = anna.good("GET", f"/tasks/{task_id}")
    assert ending["status"] == "completed", [step["error"] for step in task["steps"]]
    by_id = {step["id"]: step for step in task["steps"]}
    artifacts = {one["name"]: one for one in anna.good("GET", f"/artifacts?task_id={task_id}")["items"]}
    for step_id, name in (("a", "Alpha"), ("c", "Gamma")):
        (written,) = by_id[step_id]["artifacts"]
        assert written == {"artifact_id": artifacts[name]["id"], "name": f"{name}.html", "version": 1}
        assert artifacts[name]["step_id"] == step_id
    assert by_id["a"]["output"] == "Alpha is there."
    assert by_id["c"]["output"] == "Written: Gamma.html (version 1)"
    assert by_id["b"]["artifacts"] == []
    for rule in ("b", "result"):
        body = body_of(upstream, rule)
        text = body["messages"][-1]["content"]
        for name in ("Alpha", "Gamma"):
            assert f'of the artifact {artifacts[name]["id"]}: "{name}.html"' in text
        assert "read_artifact reads it." in text
        assert "read_artifact" in [tool["function"]["name"] for tool in body["tools"]]


def test_seats_read_what_others_wrote_and_the_outcome_names_it(admin: ApiClient, anna: ApiClient) -> None:
    rules = [
        Rule(when=When(system="You are A in", has_tool_result=False), reply=making("Alpha")),
        Rule(when=When(system="You are A in"), reply=[Text(text="It is there.")]),
        Rule(name="b", when=When(system="You are B in"), reply=[Text(text="Seen.")]),
    ]
    with answering(rules) as upstream:
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [upstream.url.removeprefix("http://")]})
        connect(anna, upstream)
        room = new_room(anna, "A", "B", stop={"rounds": 1})["id"]
        run = anna.good("POST", f"/chat-rooms/{room}/start", headers=JSON)
        assert ended(anna, run["id"])["status"] == "completed"
    (artifact,) = anna.good("GET", f"/artifacts?room_id={room}")["items"]
    outcome = anna.good("GET", f"/chat-rooms/{room}/outcome")
    assert outcome["artifacts"] == [{"artifact_id": artifact["id"], "name": "Alpha.html", "version": 1}]
    heard = json.dumps(body_of(upstream, "b")["messages"])
    assert "[A] It is there." in heard
    assert f"Version 1 of the artifact {artifact['id']} was written here" in heard
