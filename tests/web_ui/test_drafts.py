"""What is typed, chosen and attached stays: over areas, reloads, refusals and the end of a sign-in."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import httpx
import pytest
from api.server_process import ServerProcess
from files.sample_files import png
from playwright.sync_api import Page, Route, expect

from web_ui.browser import Profile, Tab, open_tab
from web_ui.person import PASSWORD, Person

PNG = png()


def sign_in(page: Page, name: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()


@contextmanager
def two_tabs(person: Person, profile: Profile) -> Generator[tuple[Tab, Tab]]:
    """Two tabs of one profile."""
    browser, url = person.browser, person.server.url
    with open_tab(browser, url, profile=profile) as first, open_tab(browser, url, profile=profile) as second:
        yield first, second


def end_by_logout(person: Person, token: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    httpx.post(f"{person.server.url}/auth/logout", headers=headers).raise_for_status()


def end_by_password(person: Person, token: str) -> None:
    del token
    person.post("/auth/password", {"current_password": PASSWORD, "new_password": PASSWORD + "!"})
    person.post("/auth/password", {"current_password": PASSWORD + "!", "new_password": PASSWORD})


def end_by_disabling(person: Person, token: str) -> None:
    del token
    user_id = person.get("/auth/me")["id"]
    with person.sign_in_as_admin() as admin:
        for is_active in (False, True):
            admin.put(f"/auth/users/{user_id}", json={"is_active": is_active}).raise_for_status()


def test_signing_out_in_one_tab_signs_out_all_and_keeps_what_was_typed(person: Person) -> None:
    conversation = person.post("/conversations", {"title": "Plants"})["id"]
    with person.profile() as profile, two_tabs(person, profile) as (first, second):
        for tab in (first, second):
            tab.expected_problems.append("401")  # of a request that was under way
        page = first.open(f"/ui/chat/{conversation}")
        page.get_by_label("Message", exact=True).fill("half a thought")
        other = second.open("/ui/rooms/new")
        other.get_by_label("Task", exact=True).fill("Plan a garden")
        page.get_by_role("button", name="Your account").click()
        page.get_by_role("menuitem", name="Sign out").click()
        for shown in (page, other):
            expect(shown.get_by_role("heading", name="Sign in")).to_be_visible()
        # After signing out, only the other tab says that the sign-in has ended.
        expect(other.get_by_text("Your sign-in has ended")).to_be_visible()
        expect(page.get_by_text("Your sign-in has ended")).to_be_hidden()
        sign_in(page, person.name)
        expect(page.get_by_role("heading", name="Plants")).to_be_visible()
        expect(page.get_by_label("Message", exact=True)).to_have_value("half a thought")
        expect(other.get_by_label("Task", exact=True)).to_have_value("Plan a garden")


@pytest.mark.heavy
@pytest.mark.parametrize("end", [end_by_logout, end_by_password, end_by_disabling])
def test_a_sign_in_that_ends_leads_to_the_sign_in_page_in_every_tab(
    person: Person, end: Callable[[Person, str], None]
) -> None:
    with person.profile() as profile, two_tabs(person, profile) as (first, second):
        for tab in (first, second):
            tab.expected_problems.append("401")
        page, other = first.open("/ui/chat?new"), second.open("/ui/agents/new")
        page.get_by_label("Message", exact=True).fill("half a thought")
        other.get_by_label("Name", exact=True).fill("Half an agent")
        token = page.evaluate("JSON.parse(localStorage.getItem('luxx.sign-in')).access")
        end(person, token)
        for shown in (page, other):
            expect(shown.get_by_text("what you typed is kept")).to_be_visible()
        sign_in(page, person.name)
        expect(page.get_by_label("Message", exact=True)).to_have_value("half a thought")
        expect(other.get_by_label("Name", exact=True)).to_have_value("Half an agent")


def test_a_message_stays_in_its_field_over_areas_and_reloads(person: Person) -> None:
    conversation = person.post("/conversations", {"title": "Plants"})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        field = page.get_by_label("Message", exact=True)
        field.fill("about tomatoes")
        page.get_by_label("Attach files").last.set_input_files(
            [
                {"name": "dot.png", "mimeType": "image/png", "buffer": PNG},
                {"name": "list.txt", "mimeType": "text/plain", "buffer": b"seeds"},
            ]
        )
        expect(page.get_by_text("list.txt")).to_be_visible()
        expect(page.get_by_text("5 B")).to_be_visible()
        page.get_by_role("link", name="Rooms").click()
        expect(page.get_by_role("heading", name="Rooms")).to_be_visible()
        page.go_back()
        expect(field).to_have_value("about tomatoes")
        page.reload()
        expect(field).to_have_value("about tomatoes")
        expect(page.get_by_text("dot.png")).to_be_visible()
        expect(page.get_by_text("list.txt")).to_be_visible()
        page.get_by_role("link", name="New chat").click()
        expect(field).to_have_value("")
        expect(page.get_by_text("list.txt")).to_be_hidden()
        field.fill("something else")
        page.get_by_role("link", name="Plants").click()
        expect(field).to_have_value("about tomatoes")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("article", name="You").get_by_text("list.txt")).to_be_visible()
        page.reload()
        expect(page.get_by_role("article", name="You").get_by_text("list.txt")).to_be_visible()
        expect(field).to_have_value("")
        stored = person.get("/messages", conversation_id=conversation)["items"][-1]["attachments"]
        assert [each["name"] for each in stored] == ["dot.png", "list.txt"]


def test_a_refused_message_keeps_text_files_and_choices_and_leaves_no_conversation(person: Person) -> None:
    with person.tab() as tab:
        tab.expected_problems.append("409")
        page = tab.open("/ui/chat?new")
        page.route(
            "**/messages/stream",
            lambda route: route.fulfill(
                status=409, json={"error": "the daily limit is reached", "success": False, "detail": {}}
            ),
        )
        field = page.get_by_label("Message", exact=True)
        field.fill("hello")
        page.get_by_label("Attach files").last.set_input_files(
            [{"name": "dot.png", "mimeType": "image/png", "buffer": PNG}]
        )
        page.get_by_role("button", name="Thinking as the model does").click()
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("The daily limit is reached.")).to_be_visible()
        expect(field).to_have_value("hello")
        expect(page.get_by_text("dot.png")).to_be_visible()
        expect(page.get_by_role("button", name="Thinking on")).to_be_visible()
        expect(page).to_have_url(f"{person.server.url}/ui/chat?new")
        assert person.get("/conversations")["total"] == 0
        page.unroute("**/messages/stream")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Hello to you")
        expect(field).to_have_value("")
        expect(page.get_by_role("button", name="Thinking on")).to_be_visible()
        assert person.get("/conversations")["total"] == 1


def test_a_file_that_cannot_be_sent_is_refused_when_it_is_attached(person: Person) -> None:
    with person.tab() as tab:
        tab.expected_problems.append("400")
        page = tab.open("/ui/chat?new")
        page.get_by_label("Message", exact=True).fill("hello")
        page.get_by_label("Attach files").last.set_input_files(
            [
                {"name": "program.bin", "mimeType": "application/octet-stream", "buffer": b"\x7fELF\xff\xfe"},
                {"name": "no.png", "mimeType": "image/png", "buffer": b"not an image"},
                {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"text"},
            ]
        )
        expect(
            page.get_by_text("program.bin cannot be attached: it is neither text in UTF-8")
        ).to_be_visible()
        expect(page.get_by_text("This is no image that can be read.")).to_be_visible()
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        expect(page.get_by_text("Remove the files that cannot be sent.")).to_be_visible()
        page.get_by_role("button", name="Remove program.bin").click()
        page.get_by_role("button", name="Remove no.png").click()
        expect(page.get_by_text("Remove the files that cannot be sent.")).to_be_hidden()
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        assert [each["name"] for each in person.get("/files")["items"]] == ["notes.txt"]


def test_each_form_keeps_what_was_typed_over_a_reload(person: Person) -> None:
    room = person.post("/chat-rooms", {"title": "Garden", "task": "Plan.", "agents": [{"name": "Anna"}]})[
        "id"
    ]
    task = person.post("/tasks", {"name": "Shed", "goal": "Build", "steps": [{"name": "Measure"}]})["id"]
    fields = {
        "/ui/rooms/new": "Task",
        f"/ui/rooms/{room}": "Say something",
        "/ui/tasks/new": "Goal",
        "/ui/agents/new": "Instructions",
        "/ui/prompts/new": "Text",
        "/ui/settings/defaults": "System prompt",
        "/ui/tools/rules": "Pattern",
    }
    with person.tab() as tab:
        for path, label in fields.items():
            page = tab.open(path)
            page.get_by_role("textbox", name=label).first.fill(f"typed at {path}")
        for path, label in fields.items():
            page = tab.open(path)
            expect(page.get_by_role("textbox", name=label).first).to_have_value(f"typed at {path}")
        page = tab.open(f"/ui/rooms/{room}")
        page.get_by_role("button", name="Say it").click()
        expect(page.get_by_role("textbox", name="Say something").first).to_have_value("")
        page = tab.open(f"/ui/tasks/{task}")
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Add a step").click()
        page.get_by_role("dialog").get_by_label("Name").fill("Paint")
        page.reload()
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Add a step").click()
        expect(page.get_by_role("dialog").get_by_label("Name")).to_have_value("Paint")


def test_what_another_person_typed_is_not_shown(person: Person, server: ServerProcess) -> None:
    other = Person(server, person.browser)
    with person.tab() as tab:
        tab.expected_problems.append("401")  # of a request that was under way
        page = tab.open("/ui/chat?new")
        page.get_by_label("Message", exact=True).fill("a secret plan")
        page.get_by_role("button", name="Your account").click()
        page.get_by_role("menuitem", name="Sign out").click()
        sign_in(page, other.name)
        field = page.get_by_label("Message", exact=True)
        expect(field).to_have_value("")
        field.fill("my own")
        page.get_by_role("button", name="Your account").click()
        page.get_by_role("menuitem", name="Sign out").click()
        sign_in(page, person.name)
        expect(field).to_have_value("a secret plan")
    other.api.close()


def hold_answer(page: Page, address: str, *, is_sent: bool = True) -> list[Route]:
    """The page gets no answer of these requests; the server gets them if `is_sent`."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        if is_sent:
            assert route.fetch().ok
        held.append(route)

    page.route(address, hold)
    return held


def reload_without_answer(page: Page, held: list[Route]) -> None:
    while not held:
        page.wait_for_timeout(20)
    page.reload()
    page.unroute_all(behavior="ignoreErrors")
    assert len(held) == 1


@pytest.mark.parametrize("is_new", [True, False])
def test_a_message_that_arrived_before_a_reload_is_no_draft(person: Person, is_new: bool) -> None:
    path = "?new" if is_new else f"/{person.post('/conversations', {'title': 'Plants'})['id']}"
    with person.tab() as tab:
        tab.expected_problems.append("Failed to load")
        page = tab.open(f"/ui/chat{path}")
        page.wait_for_load_state("networkidle")
        field = page.get_by_label("Message", exact=True)
        field.fill("hello")
        page.get_by_label("Attach files").last.set_input_files(
            [{"name": "dot.png", "mimeType": "image/png", "buffer": PNG}]
        )
        held = hold_answer(page, "**/messages/stream")
        page.get_by_role("button", name="Send").click()
        reload_without_answer(page, held)
        expect(page.get_by_role("article", name="You")).to_contain_text("hello")
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Hello to you")
        expect(field).to_have_value("")
        expect(page.get_by_role("button", name="Remove dot.png")).to_be_hidden()
        [conversation] = person.get("/conversations")["items"]
        page.reload()
        expect(page.get_by_role("article", name="You")).to_contain_text("hello")
        expect(field).to_have_value("")
        messages = person.get("/messages", conversation_id=conversation["id"])["items"]
        assert [each["role"] for each in messages] == ["assistant", "user"]
        # The same words once more are a draft again.
        field.fill("hello")
        held = hold_answer(page, "**/messages/stream", is_sent=False)
        page.get_by_role("button", name="Send").click()
        reload_without_answer(page, held)
        expect(page.get_by_role("article", name="You")).to_have_count(1)
        expect(field).to_have_value("hello")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("article", name="You")).to_have_count(2)


def test_a_late_answer_to_a_message_leaves_the_draft_of_another_conversation(person: Person) -> None:
    plants, tools = (person.post("/conversations", {"title": title})["id"] for title in ("Plants", "Pots"))
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{tools}")
        field = page.get_by_label("Message", exact=True)
        field.fill("half a thought")
        page.get_by_role("link", name="Plants").click()
        expect(page).to_have_url(f"{person.server.url}/ui/chat/{plants}")
        expect(field).to_have_value("")
        field.fill("hello")
        held = hold_answer(page, "**/messages/stream", is_sent=False)
        page.get_by_role("button", name="Send").click()
        page.get_by_role("link", name="Pots").click()
        expect(page.get_by_role("heading", name="Pots")).to_be_visible()
        [sent] = held
        sent.continue_()
        expect(field).to_have_value("half a thought")
        page.get_by_role("link", name="Plants").click()
        expect(page.get_by_role("article", name="You")).to_contain_text("hello")
        expect(field).to_have_value("")


def test_what_is_said_in_a_room_is_sent_once_and_waits_for_no_other_action(person: Person) -> None:
    body = {"title": "Garden", "task": "Plan.", "policy": "manual", "agents": [{"name": "Anna"}]}
    room = person.post("/chat-rooms", body)["id"]
    person.api.post(f"/chat-rooms/{room}/start").raise_for_status()

    def said() -> list[str]:
        items = person.get(f"/chat-rooms/{room}/messages")["items"]
        return [each["content"] for each in items if each["role"] == "user"]

    with person.tab() as tab:
        tab.expected_problems.append("Failed to load")
        page = tab.open(f"/ui/rooms/{room}")
        field = page.get_by_role("textbox", name="Say something")
        pausing = hold_answer(page, "**/stop", is_sent=False)
        page.get_by_role("button", name="Pause").click()
        field.fill("Wait for me.")
        field.press("Enter")
        expect(page.get_by_text("Wait for me.", exact=True)).to_be_visible()
        expect(field).to_have_value("")
        # A form that is saved meanwhile is saved after it.
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Title and task").click()
        page.get_by_role("dialog").get_by_label("Title").fill("Orchard")
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        pausing[0].continue_()
        expect(page.get_by_role("heading", name="Orchard")).to_be_visible()
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.get_by_role("button", name="Resume")).to_be_visible()
        held = hold_answer(page, "**/messages")
        field.fill("One of two.")
        field.press("Enter")
        reload_without_answer(page, held)
        expect(page.get_by_text("One of two.", exact=True)).to_be_visible()
        expect(field).to_have_value("")
        assert said() == ["One of two.", "Wait for me."]
