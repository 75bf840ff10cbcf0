"""What is typed while a form is being saved stays, marked as not saved, and no saved field goes back."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from luxx.providers.scripted import ScriptedProvider
from web_ui.browser import WAIT_MS
from web_ui.person import Person


@contextmanager
def held(page: Page, method: str) -> Generator[None]:
    """Requests of this method wait for their answer until the block was left."""
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.method == method:
            waiting.append(route)
        else:
            route.continue_()

    page.route("**/*", hold)
    yield
    for _ in range(WAIT_MS // 20):
        if waiting:
            break
        page.wait_for_timeout(20)
    assert waiting, "nothing was sent"
    for route in waiting:
        route.continue_()
    page.unroute("**/*", hold)


@dataclass(frozen=True, kw_only=True)
class Form:
    """`make` returns the path of the page, `open` shows the form. `first` is saved, `second` typed meanwhile:
    the label of a field and its text."""

    make: Callable[[Person, str], str]
    open: Callable[[Page], object] = lambda page: None
    first: tuple[str, str]
    second: tuple[str, str]
    stored: Callable[[Person], dict[str, Any]]
    is_dialog: bool = False


def new_provider(person: Person, address: str) -> str:
    body = {"name": "Office", "provider_type": "openai_compatible", "base_url": address, "api_key": "k"}
    return f"/ui/providers/{person.post('/providers', body)['id']}"


def new_room(person: Person, _address: str) -> str:
    seats = [{"name": "Ann", "role": "writes", "system_prompt": "Write."}]
    room = person.post("/chat-rooms", {"title": "Notes", "task": "Write notes", "agents": seats})["id"]
    return f"/ui/rooms/{room}"


def new_task(person: Person, _address: str) -> str:
    steps = [{"id": "a", "name": "Read", "goal": "Read it"}]
    return f"/ui/tasks/{person.post('/tasks', {'name': 'Notes', 'goal': 'Write', 'steps': steps})['id']}"


def open_seat(page: Page) -> None:
    page.get_by_role("button", name="Ann").click()
    page.get_by_role("menuitem", name="Edit the seat").click()


def open_settings(page: Page) -> None:
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Title and task").click()


def open_step(page: Page) -> None:
    page.get_by_role("button", name="Read").first.click()
    page.get_by_role("button", name="Edit the step").click()


def newest(path: str) -> Callable[[Person], dict[str, Any]]:
    return lambda person: next(each for each in person.get(path)["items"] if each.get("is_own", True))


FORMS = {
    "agent": Form(
        make=lambda person, _: f"/ui/agents/{person.post('/agents', {'name': 'Helper'})['id']}",
        first=("Role", "helps"),
        second=("Instructions", "Help."),
        stored=newest("/agents"),
    ),
    "prompt": Form(
        make=lambda person, _: f"/ui/prompts/{person.post('/prompts', {'name': 'p', 'content': 'c'})['id']}",
        first=("Title", "A title"),
        second=("Description", "What it is for"),
        stored=newest("/prompts"),
    ),
    "provider": Form(
        make=new_provider,
        first=("Name", "Home"),
        second=("Default model", "scripted"),
        stored=newest("/providers"),
    ),
    "defaults": Form(
        make=lambda person, _: "/ui/settings/defaults",
        first=("Temperature", "0.5"),
        second=("System prompt", "Be short."),
        stored=lambda person: person.get("/settings"),
    ),
    "seat": Form(
        make=new_room,
        open=open_seat,
        first=("Role", "writes much"),
        second=("Instructions", "Write much."),
        stored=lambda person: person.get(f"/chat-rooms/{newest('/chat-rooms')(person)['id']}")["agents"][0],
        is_dialog=True,
    ),
    "room": Form(
        make=new_room,
        open=open_settings,
        first=("Title", "Other notes"),
        second=("Task", "Write other notes"),
        stored=newest("/chat-rooms"),
        is_dialog=True,
    ),
    "step": Form(
        make=new_task,
        open=open_step,
        first=("Name", "Read all"),
        second=("What the result looks like", "A list"),
        stored=lambda person: person.get(f"/tasks/{newest('/tasks')(person)['id']}")["steps"][0],
        is_dialog=True,
    ),
}
FAST = {"agent", "seat"}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.heavy) for name in FORMS]
)
def test_what_is_typed_while_a_form_is_saved_stays(
    person: Person, models: ScriptedProvider, name: str
) -> None:
    form = FORMS[name]
    with person.tab() as tab:
        page = tab.open(form.make(person, models.url))
        form.open(page)
        fields: Page | Locator = page.get_by_role("dialog") if form.is_dialog else page
        first, second = (fields.get_by_label(label, exact=True) for label, _ in (form.first, form.second))
        save = fields.get_by_role("button", name="Save")
        first.fill(form.first[1])
        before = form.stored(person)
        with held(page, "PUT"):
            save.click()
            second.fill(form.second[1])
        expect(save).to_be_enabled()
        changed = form.stored(person)
        assert form.first[1] in map(str, changed.values())
        assert form.second[1] not in map(str, changed.values()), before
        expect(first).to_have_value(form.first[1])
        expect(second).to_have_value(form.second[1])
        if not form.is_dialog:
            expect(page.get_by_text("Not saved yet")).to_be_visible()
            page.reload()
            expect(second).to_have_value(form.second[1])
        save.click()
        if form.is_dialog:
            expect(page.get_by_role("dialog")).to_be_hidden()
        else:
            expect(page.get_by_text("Not saved yet")).to_be_hidden()
        changed = form.stored(person)
        assert {form.first[1], form.second[1]} <= set(map(str, changed.values()))


def test_what_is_typed_while_something_new_is_created_is_a_change_of_it(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/agents/new")
        page.get_by_label("Name", exact=True).fill("Helper")
        with held(page, "POST"):
            page.get_by_role("button", name="Create the agent").click()
            page.get_by_label("Role").fill("helps")
        expect(page.get_by_role("heading", name="Helper")).to_be_visible()
        expect(page.get_by_label("Role")).to_have_value("helps")
        expect(page.get_by_text("Not saved yet")).to_be_visible()
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Not saved yet")).to_be_hidden()
        assert newest("/agents")(person)["role"] == "helps"
        page.goto(f"{tab.url}/ui/agents/new")
        expect(page.get_by_label("Name", exact=True)).to_have_value("")


def test_a_cancelled_dialog_keeps_nothing_when_its_save_arrives(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open(new_room(person, ""))
        open_seat(page)
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Role").fill("writes much")
        with held(page, "PUT"):
            dialog.get_by_role("button", name="Save").click()
            dialog.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("list", name="Seats")).to_contain_text("writes much")
        open_seat(page)
        expect(dialog.get_by_label("Role")).to_have_value("writes much")


@pytest.mark.heavy
def test_a_step_whose_agent_is_gone_is_changed_without_replacing_it(person: Person) -> None:
    agent = person.post("/agents", {"name": "Reader"})["id"]
    steps = [{"id": "a", "name": "Read", "goal": "Read it", "agent_id": agent}]
    task = person.post("/tasks", {"name": "Notes", "goal": "Write", "steps": steps})["id"]
    person.api.delete(f"/agents/{agent}").raise_for_status()
    with person.tab() as tab:
        page = tab.open(f"/ui/tasks/{task}")
        open_step(page)
        dialog = page.get_by_role("dialog")
        chosen = dialog.get_by_label("Agent", exact=True).locator("option:checked")
        expect(chosen).to_have_text("Reader is gone")
        dialog.get_by_label("Name", exact=True).fill("Read all")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
        [step] = person.get(f"/tasks/{task}")["steps"]
        assert (step["name"], step["lost_agent"]) == ("Read all", "Reader")
        page.get_by_role("button", name="Edit the step").click()
        dialog.get_by_label("Agent", exact=True).select_option("")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
        [step] = person.get(f"/tasks/{task}")["steps"]
        assert step["lost_agent"] is None
