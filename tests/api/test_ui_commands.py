"""Commands for the page: which ones a run may give, how many, and which addresses they may open."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.client import ApiClient
from api.conftest import Join, answering, connect
from luxx.providers.scripted import Call, Finish, Rule, ScriptedProvider, Text, When

LOOSE = "---\nname: loose-style\ndescription: A style.\n---\n\nWrite in capitals.\n"
TOAST = {"command": "toast", "payload": {"message": "Look\nhere \u202eyou", "type": "success"}}
REFRESH = {"command": "refresh", "payload": {"target": "files"}}
TASK = {"name": "Bank", "goal": "Call the bank"}

GOOD = {
    "/tasks": "/tasks",
    "/ui/tasks/0190": "/tasks/0190",
    "/files/my%20notes/a.txt": "/files/my%20notes/a.txt",
    "/chat?new=&q=a%20b": "/chat?new=&q=a%20b",
}
BAD = (
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    " /tasks",
    "/tasks\n",
    "/tasks\t/x",
    "java\tscript:alert(1)",
    "data:text/html,x",
    "https://evil.example/ui/tasks",
    "//evil.example/tasks",
    "/\\evil.example",
    "\\\\evil.example",
    "/ui//evil.example",
    "/ui/https:/evil.example",
    "/%2f%2fevil.example",
    "/tasks/..%2f..%2fadmin",
    "/tasks/%252e%252e",
    "/tasks/../admin",
    "/tasks/./x",
    "/tasks//x",
    "/tasks/%00",
    "/tasks/%E2%80%AE",
    "/tasks/%ff",
    "/tasks/a%zz",
    "/tasks?next=//evil.example",
    "/tasks?q=%0d%0aset-cookie",
    "/tasks#x",
    "/tasks@evil.example",
    "/\u0442asks",
    "/auth/logout",
    "/sign-in?to=/tasks",
    "tasks",
    "/",
    "/ui",
    "/ui/",
)


def calls(*arguments: dict[str, Any], name: str = "ui_command") -> list[Any]:
    made = [Call(name=name, arguments=one, id=f"{name}-{n}") for n, one in enumerate(arguments)]
    return [*made, Finish(reason="tool_calls")]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    create = [Call(name="task_create", arguments=TASK, id="create"), *calls(TOAST, REFRESH)]
    rules = [
        Rule(when=When(user="store it", has_tool_result=False), reply=create),
        Rule(when=When(user="Write in capitals", has_tool_result=False), reply=calls(TOAST, REFRESH)),
        Rule(when=When(user="seven of them", has_tool_result=False), reply=calls(*[TOAST] * 7)),
        Rule(reply=[Text(text="Done."), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture
def person(join: Join, upstream: ScriptedProvider) -> ApiClient:
    new = join(level=2)
    connect(new, upstream)
    return new


TOOLS = ["ui_command", "task_create"]


def outcome(person: ApiClient, content: str, **more: Any) -> tuple[list[Any], list[str]]:
    """The commands in the log of the answer, and why calls of ui_command were refused."""
    conversation = person.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": content, "tools": TOOLS, **more}
    answer = person.good("POST", "/messages", json=body)
    results = [json.loads(step["content"]) for step in answer["steps"] if step["type"] == "tool_result"]
    path = f"/conversations/{conversation}/events"
    events = person.good("GET", path, params={"limit": 200})["events"]
    shown = [(one["command"], one["payload"]) for one in events if one["type"] == "ui_command"]
    return shown, [result["error"] for result in results if not result["success"]]


def test_tools_that_change_tasks_refresh_the_list_once_and_texts_are_plain(person: ApiClient) -> None:
    shown, refused = outcome(person, "store it")
    toast = ("toast", {"message": "Look here you", "type": "success"})
    assert sorted(shown, key=str) == sorted(
        [("refresh", {"target": "tasks"}), ("refresh", {"target": "files"}), toast], key=str
    )
    assert refused == []


def test_a_turn_has_at_most_five_commands(person: ApiClient) -> None:
    shown, refused = outcome(person, "seven of them")
    assert (len(shown), len(refused)) == (5, 2)
    assert all("5 commands" in reason for reason in refused)


def test_a_tainted_run_may_only_refresh(person: ApiClient) -> None:
    project = person.good("POST", "/projects", json={"name": "A project"})["id"]
    skill = {"name": "loose-style", "description": "A style.", "content": LOOSE}
    person.good("POST", "/skills", json={**skill, "scope": "project", "project_id": project})
    conversation = person.good("POST", "/conversations", json={"project_id": project})["id"]
    shown, refused = outcome(person, "only show", conversation_id=conversation, skills=["loose-style"])
    assert shown == []
    path = f"/conversations/{conversation}/events"
    events = person.good("GET", path, params={"limit": 200})["events"]
    commands = [one["command"] for one in events if one["type"] == "ui_command"]
    assert commands == ["refresh"]
    assert len(refused) == 1
    assert "may only refresh lists" in refused[0]


def test_a_run_that_nobody_follows_gives_no_commands(person: ApiClient, upstream: ScriptedProvider) -> None:
    agent = person.good("POST", "/agents", json={"name": "Clerk", "tools": TOOLS})["id"]
    answer = person.good("POST", f"/agents/{agent}/invoke", json={"content": "store it"})
    assert upstream.requests[-1].json["messages"][-1]["role"] == "tool"
    sent = [one["content"] for one in upstream.requests[-1].json["messages"] if one["role"] == "tool"]
    assert sum("no person follows this run" in one for one in sent) == 2, sent
    assert len(person.good("GET", "/tasks")["items"]) == 1, answer


def test_only_addresses_of_the_web_ui_can_be_opened(person: ApiClient) -> None:
    def opened(path: str) -> str:
        body = {"arguments": {"command": "navigate", "payload": {"path": path}}}
        result = person.good("POST", "/tools/ui_command/execute", json=body)
        assert result["success"] is False
        return str(result["error"])

    for path in GOOD:
        assert "no page is shown" in opened(path), path
    for path in BAD:
        assert "is not an address of the web UI" in opened(path), path
    wrong = {"command": "modal", "payload": {"title": "T"}}
    result = person.good("POST", "/tools/ui_command/execute", json={"arguments": wrong})
    assert "the payload of modal has title and text" in result["error"]
