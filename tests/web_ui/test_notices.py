"""The tray: what waits elsewhere is answered there, in every tab, and it covers nothing."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest
from api.server_process import ServerProcess
from playwright.sync_api import Browser, Locator, Page, expect

from luxx.providers.scripted import Call, Rule, Script, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import Tab, open_tab, take_screenshots
from web_ui.person import Person

JSON = {"accept": "application/json"}
DECISION = {
    "decision_type": "risk",
    "context": "Both hold snow.",
    "options": [{"label": "flat"}, {"label": "steep"}],
}


@pytest.fixture(scope="module")
def script() -> Script:
    def decide(has_result: bool) -> When:
        return When(user="roof", has_tool_result=has_result)

    return Script(
        rules=[
            Rule(when=decide(False), reply=[Call(name="ask_decision", arguments=DECISION)]),
            Rule(when=decide(True), reply=[Text(text="Then so.")]),
            Rule(when=When(user="broken"), status=401, message="bad key"),
            Rule(reply=[Text(text="Done so.")]),
        ]
    )


@contextmanager
def two_tabs(person: Person) -> Generator[tuple[Tab, Tab]]:
    with person.profile() as profile:
        browser, url = person.browser, person.server.url
        with (
            open_tab(browser, url, profile=profile) as one,
            open_tab(browser, url, profile=profile) as two,
        ):
            yield one, two


def tray(page: Page) -> Locator:
    return page.get_by_role("region", name="Notices")


def new_task(person: Person) -> str:
    steps = [
        {"id": "s1", "name": "Measure", "require_approval": True},
        {"id": "s2", "name": "Build", "require_approval": True, "depends_on": ["s1"]},
    ]
    return str(person.post("/tasks", {"name": "Shed", "goal": "Build it", "steps": steps})["id"])


def execute(person: Person, task: str) -> None:
    person.api.post(f"/tasks/{task}/execute", headers=JSON).raise_for_status()


def is_apart(first: Locator, second: Locator) -> bool:
    a, b = first.bounding_box(), second.bounding_box()
    assert a is not None
    assert b is not None
    return (
        a["y"] + a["height"] <= b["y"]
        or b["y"] + b["height"] <= a["y"]
        or a["x"] + a["width"] <= b["x"]
        or b["x"] + b["width"] <= a["x"]
    )


def test_the_approvals_of_a_task_are_given_in_the_tray_and_go_in_every_tab(person: Person) -> None:
    task = new_task(person)
    with two_tabs(person) as (first, second):
        page, other = first.open("/ui/chat?new"), second.open("/ui/rooms")
        for each in (page, other):
            expect(each.get_by_role("link", name="Tasks")).to_be_visible()
        execute(person, task)
        for each in (page, other):
            expect(tray(each)).to_contain_text("Waits for your approval: Measure")
            expect(each.get_by_role("link", name="Tasks, Waiting for you: 1")).to_be_visible()
        assert is_apart(tray(page), page.get_by_label("Message", exact=True))
        assert is_apart(tray(page), page.get_by_role("button", name="Send"))
        check_both_themes(first, "tray-approval")
        tray(page).get_by_role("button", name="Approve").click()
        # The second step asks anew.
        for each in (page, other):
            expect(tray(each)).to_contain_text("Waits for your approval: Build")
        tray(other).get_by_role("button", name="Approve").click()
        for each in (page, other):
            expect(each.get_by_role("link", name="Tasks", exact=True)).to_be_visible()
            expect(tray(each).get_by_role("button", name="Approve")).to_be_hidden()


def test_a_dismissed_notice_stays_away_until_something_else_waits(person: Person) -> None:
    task = new_task(person)
    with two_tabs(person) as (first, second):
        page, other = first.open("/ui/chat?new"), second.open("/ui/files")
        execute(person, task)
        for each in (page, other):
            expect(tray(each)).to_contain_text("Waits for your approval: Measure")
        tray(page).get_by_role("button", name="Fold the notices").click()
        expect(tray(page).get_by_role("button", name="Approve")).to_be_hidden()
        expect(tray(page).get_by_role("button", name="Answer")).to_have_count(0)
        tray(page).get_by_role("button", name="Show", exact=True).click()
        expect(tray(page).get_by_role("button", name="Approve")).to_be_visible()
        tray(page).get_by_role("button", name="Dismiss").click()
        for each in (page, other):
            expect(tray(each)).to_be_empty()
        page.reload()
        expect(page.get_by_role("link", name="Tasks, Waiting for you: 1")).to_be_visible()
        expect(tray(page).get_by_role("button", name="Approve")).to_be_hidden()
        person.post(f"/tasks/{task}/approve", {"step_ids": ["s1"]})
        expect(tray(page)).to_contain_text("Waits for your approval: Build")
        # The page of the task has its own button; elsewhere the tray is back.
        page.get_by_role("link", name="Tasks, Waiting for you: 1").click()
        page.get_by_role("link", name="Shed").first.click()
        expect(page.get_by_role("heading", name="Shed")).to_be_visible()
        expect(tray(page).get_by_role("button", name="Approve")).to_be_hidden()
        page.get_by_role("link", name="Files").click()
        expect(tray(page)).to_contain_text("Waits for your approval: Build")


def test_a_decision_and_the_floor_of_a_room_are_answered_in_the_tray(person: Person) -> None:
    chat = person.post("/conversations", {"title": "House"})["id"]
    seats = [{"name": "Anna"}, {"name": "Ben"}]
    body = {"title": "Garden", "task": "Plan.", "policy": "manual", "agents": seats}
    room = person.post("/chat-rooms", body)["id"]
    with person.tab() as tab:
        page = tab.open("/ui/files")
        message = {"conversation_id": chat, "content": "Which roof?", "tools": True}
        person.api.post("/messages/stream", json=message, headers=JSON).raise_for_status()
        expect(tray(page)).to_contain_text("Both hold snow.")
        tray(page).get_by_role("radio", name="steep").check()
        page.reload()
        expect(tray(page).get_by_role("radio", name="steep")).to_be_checked()
        tray(page).get_by_role("button", name="Answer").click()
        expect(tray(page).get_by_role("radio", name="steep")).to_be_hidden()
        expect(tray(page)).to_contain_text("House: The answer is ready.")
        barn = person.post("/conversations", {"title": "Barn"})["id"]
        message = {"conversation_id": barn, "content": "broken"}
        person.api.post("/messages/stream", json=message, headers=JSON).raise_for_status()
        expect(tray(page)).to_contain_text("Barn: It failed: The provider refused the key")
        person.api.post(f"/chat-rooms/{room}/start", headers=JSON).raise_for_status()
        speakers = tray(page).get_by_role("group", name="Who speaks next?")
        take_screenshots(tab, "tray-floor")
        with page.expect_response("**/floor"):
            speakers.get_by_role("button", name="Ben").click()
        page = tab.open(f"/ui/rooms/{room}")
        expect(page.get_by_role("article", name="Ben")).to_contain_text("Done so.")


def test_lists_and_runs_agree_on_what_waits_and_what_is_paused(person: Person) -> None:
    chat = person.post("/conversations", {"title": "House"})["id"]
    message = {"conversation_id": chat, "content": "Which roof?", "tools": True}
    room = {"title": "Garden", "task": "Plan.", "policy": "manual", "agents": [{"name": "Anna"}]}
    room_id = person.post("/chat-rooms", room)["id"]
    task = new_task(person)
    with person.tab() as tab:
        page = tab.open("/ui/runs")
        person.api.post("/messages/stream", json=message, headers=JSON).raise_for_status()
        person.api.post(f"/chat-rooms/{room_id}/start", headers=JSON).raise_for_status()
        execute(person, task)
        expect(page.get_by_role("link", name="Tasks, Waiting for you: 1")).to_be_visible()
        for area, title in (("chat", "House"), ("rooms", "Garden"), ("tasks", "Shed")):
            tab.open(f"/ui/{area}")
            expect(page.get_by_role("link", name=f"{title} Waiting for you")).to_be_visible()
        person.post(f"/tasks/{task}/pause")
        expect(page.get_by_role("link", name="Shed Paused")).to_be_visible()
        tab.open(f"/ui/tasks/{task}")
        expect(page.get_by_text("Paused", exact=True)).to_have_count(2)
        tab.open("/ui/runs")
        runs = page.get_by_role("complementary").get_by_role("link")
        expect(runs.filter(has_text="Paused")).to_have_count(1)
        expect(runs.filter(has_text="Waiting for you")).to_have_count(2)


def test_an_invitation_and_a_message_in_an_idle_room_arrive_without_polling(
    person: Person, server: ServerProcess, browser: Browser
) -> None:
    owner = Person(server, browser)
    room = owner.post("/chat-rooms", {"title": "Orchard", "task": "Plan.", "agents": [{"name": "Anna"}]})
    path = f"/chat-rooms/{room['id']}"
    own = person.post("/chat-rooms", {"title": "Own", "task": "Plan.", "agents": [{"name": "Ben"}]})["id"]
    with person.tab() as tab:
        states: list[str] = []
        tab.page.on("websocket", lambda socket: socket.on("framereceived", lambda _: states.append("")))
        page = tab.open(f"/ui/rooms/{own}")
        expect(page.get_by_role("heading", name="Own")).to_be_visible()
        while not states:  # Notifications are for clients whose socket is open.
            page.wait_for_timeout(50)
        owner.post(f"{path}/members", {"username": person.name, "right": "speak"})
        expect(tray(page)).to_contain_text(f"Orchard: {owner.name} made you a member.")
        expect(page.get_by_role("link", name="Orchard")).to_be_visible()
        owner.post(f"{path}/messages", {"content": "Apples or pears?"})
        expect(tray(page)).to_contain_text(f"Orchard: {owner.name} wrote a message.")
        expect(page.get_by_role("link", name="Rooms, new messages")).to_be_visible()
        tray(page).get_by_role("link", name="Open").click()
        expect(page.get_by_text("Apples or pears?", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="Rooms", exact=True)).to_be_visible()
        reads: list[str] = []
        page.on("request", lambda request: reads.append(request.url) if path in request.url else None)
        page.clock.install()
        page.clock.run_for(120_000)
        assert reads == []
        owner.post(f"{path}/messages", {"content": "Pears."})
        expect(page.get_by_text("Pears.", exact=True)).to_be_visible()
        owner.api.put(f"{path}/members/{person.get('/auth/me')['id']}", json={"right": "watch"})
        expect(page.get_by_text("You may watch this room.")).to_be_visible()
        owner.api.delete(f"{path}/members/{person.get('/auth/me')['id']}")
        tab.expected_problems.append("404")
        expect(page.get_by_role("button", name="Back to the list")).to_be_visible()
    owner.api.close()


def test_who_was_away_is_told_of_an_invitation_when_the_page_opens(
    person: Person, server: ServerProcess, browser: Browser
) -> None:
    owner = Person(server, browser)
    room = owner.post("/chat-rooms", {"title": "Orchard", "task": "Plan.", "agents": [{"name": "Anna"}]})
    owner.post(f"/chat-rooms/{room['id']}/members", {"username": person.name, "right": "speak"})
    with person.tab() as tab:
        page = tab.open("/ui/files")
        expect(tray(page)).to_contain_text(f"Orchard: {owner.name} made you a member.")
        tab.open("/ui/chat?new")
        tray(page).get_by_role("link", name="Open").click()
        expect(page.get_by_role("heading", name="Orchard")).to_be_visible()
        page.wait_for_load_state("networkidle")
        own = person.post("/chat-rooms", {"title": "Own", "task": "Plan.", "agents": [{"name": "Ben"}]})
        tab.open(f"/ui/rooms/{own['id']}")
        # A later notification of the same socket comes after what it has to tell at first.
        other = owner.post("/chat-rooms", {"title": "Meadow", "task": "Plan.", "agents": [{"name": "Anna"}]})
        owner.post(f"/chat-rooms/{other['id']}/members", {"username": person.name, "right": "speak"})
        expect(tray(page)).to_contain_text("Meadow")
        assert page.get_by_text("Orchard: ").count() == 0
    owner.api.close()
