"""Commands of models for the page: carried out live and once, never after a reload, never in the way."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from luxx.providers.scripted import Call, Finish, Gate, Rule, Script, ScriptedProvider, Text, When
from web_ui.browser import WAIT_MS
from web_ui.person import Person
from web_ui.test_chat_runs import said

TOAST = {"command": "toast", "payload": {"message": "<b>Look</b> here", "type": "success"}}
MODAL = {"command": "modal", "payload": {"title": "All of it", "text": "**One**\n<i>Two</i>"}}
PATHS = ("javascript:alert(1)", "https://evil.example/ui/tasks")


def navigate(path: str) -> dict[str, Any]:
    return {"command": "navigate", "payload": {"path": path}}


def gated(said_by_person: str, gate: str, *arguments: dict[str, Any]) -> Rule:
    """Waits until the page shows the answer so far, then gives the page these commands."""
    calls = [Call(name="ui_command", arguments=one) for one in arguments]
    return Rule(
        when=When(user=said_by_person, has_tool_result=False),
        reply=[Text(text=f"Now {gate}."), Gate(name=gate), *calls, Finish(reason="tool_calls")],
        times=1,
    )


@pytest.fixture(scope="module")
def script() -> Script:
    create = Call(name="task_create", arguments={"name": "Call the bank", "goal": "Call it."})
    return Script(
        rules=[
            gated("show it", "shown", TOAST, MODAL, *map(navigate, PATHS)),
            gated("lead me while I write", "led", navigate("/ui/agents")),
            gated("lead me away", "away", navigate("/agents")),
            Rule(
                when=When(user="Store it", has_tool_result=False),
                reply=[Gate(name="task"), create, Finish(reason="tool_calls")],
            ),
            Rule(
                when=When(user="Store it", has_tool_result=True),
                reply=[Gate(name="kept"), Text(text="Kept.")],
            ),
            Rule(reply=[Text(text="Done.")]),
        ]
    )


def begin(person: Person, page: Page, conversation: str, content: str, gate: str) -> None:
    body = {"conversation_id": conversation, "content": content, "tools": ["ui_command"]}
    person.post("/messages/stream", body)
    expect(said(page, f"Now {gate}.")).to_be_visible(timeout=WAIT_MS)


def notices(page: Page) -> Locator:
    return page.get_by_role("region", name="Notices")


def test_commands_are_carried_out_live_and_once(person: Person, models: ScriptedProvider) -> None:
    conversation = person.post("/conversations", {})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        begin(person, page, conversation, "show it", "shown")
        models.release("shown")
        toast = notices(page).get_by_text("<b>Look</b> here", exact=True)
        dialog = page.get_by_role("dialog", name="All of it")
        expect(dialog).to_contain_text("**One**\n<i>Two</i>")
        expect(dialog).to_contain_text("Shown by the model")
        expect(toast).to_have_count(1)
        dialog.get_by_role("button", name="Close").first.click()
        expect(said(page, "Done.")).to_be_visible(timeout=WAIT_MS)
        events = person.get(f"/conversations/{conversation}/events", limit=200)["events"]
        assert [one["command"] for one in events if one["type"] == "ui_command"] == ["toast", "modal"]
        page.reload()
        expect(said(page, "Done.")).to_be_visible(timeout=WAIT_MS)
        expect(toast).to_have_count(0)
        expect(dialog).to_have_count(0)
        assert page.url.endswith(f"/ui/chat/{conversation}")


def test_nobody_is_led_away_while_they_write(person: Person, models: ScriptedProvider) -> None:
    conversation = person.post("/conversations", {})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        begin(person, page, conversation, "lead me while I write", "led")
        words = page.get_by_label("Message", exact=True)
        words.fill("Half a sentence")
        models.release("led")
        expect(said(page, "Done.")).to_be_visible(timeout=WAIT_MS)
        expect(words).to_have_value("Half a sentence")
        notices(page).get_by_role("link", name="Open").click()
        page.wait_for_url("**/ui/agents")
        page.go_back()
        expect(words).to_have_value("Half a sentence")
        words.fill("")
        begin(person, page, conversation, "lead me away", "away")
        models.release("away")
        page.wait_for_url("**/ui/agents")


def test_a_list_that_a_tool_changed_is_loaded_again(person: Person, models: ScriptedProvider) -> None:
    steps = [{"id": "a", "name": "Only", "goal": "Store it", "required_tools": ["task_create"]}]
    task = person.post("/tasks", {"name": "Paperwork", "goal": "Store it", "steps": steps})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/tasks/{task}")
        expect(page.get_by_role("heading", name="Paperwork")).to_be_visible(timeout=WAIT_MS)
        run = person.post(f"/tasks/{task}/execute")
        entry = page.get_by_role("link", name="Call the bank")
        graph = page.get_by_role("group", name="The steps as a graph")
        expect(graph.get_by_role("button", name="Only")).to_contain_text("Running", timeout=WAIT_MS)
        assert entry.count() == 0
        models.release("task")
        expect(entry).to_be_visible(timeout=WAIT_MS)
        assert person.get(f"/runs/{run['id']}")["status"] == "running"
        models.release("kept")
        person.wait_for(run["id"], "completed")
