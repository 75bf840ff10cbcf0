"""Runs on the chat page: questions, refresh, lost connections, several tabs, stop, branches, failures."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from api.server_process import ServerProcess
from playwright.sync_api import Browser, Locator, Page, Route, expect

from luxx.providers.scripted import Call, Gate, Pause, Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_screens
from web_ui.browser import PHONE, WAIT_MS, Tab, open_tab, take_screenshots
from web_ui.person import Person

CLARIFY = {
    "question_type": "scope",
    "question": "Which colour?",
    "options": [
        {"label": "red", "description": "like a rose"},
        {"label": "blue", "description": "like the sea", "is_recommended": True},
    ],
    "required": True,
}


GATES = (
    "wait",
    "late",
    "lost",
    "grows",
    "paused",
    "refresh",
    "offline",
    "tabs",
    "stop",
    "first",
)
LINES = [part for number in range(400) for part in (Text(text=f"Line {number}.\n\n"), Pause(seconds=0.02))]


def gated(name: str) -> Rule:
    """An answer that waits in its middle until the test goes on."""
    reply = [Text(text="one two three", pieces=3), Gate(name=name), Text(text=" four five.")]
    return Rule(when=When(user=f"gated {name}"), reply=reply)


def with_call(user: str, call: Call, text: str) -> list[Rule]:
    """An answer with a tool call."""
    return [
        Rule(when=When(user=user, has_tool_result=False), reply=[call]),
        Rule(when=When(user=user, has_tool_result=True), reply=[Text(text=text)]),
    ]


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            *with_call("evaluate", Call(name="python_eval", arguments={"expression": "1 + 1"}), "Evaluated."),
            *with_call("colour", Call(name="ask_clarification", arguments=CLARIFY), "A good choice."),
            Rule(when=When(user="gated grows", model="smollm2"), status=404, message="gone"),
            Rule(when=When(user="pear tree|no longer fits"), reply=[Text(text="I see.")]),
            *(gated(name) for name in GATES),
            Rule(when=When(user="endless"), reply=LINES),
            Rule(when=When(user="broken", call=1), status=401, message="bad key"),
            Rule(when=When(user="broken"), reply=[Text(text="Now it works.")]),
            Rule(when=When(user="which", call=1), reply=[Text(text="Answer one.")]),
            Rule(when=When(user="which"), reply=[Text(text="Answer two.")]),
            Rule(when=When(user="other words"), reply=[Text(text="Answer three.")]),
        ],
        models=["scripted", "smollm2-360m", "gpt-4.1-mini"],
    )


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def send_meanwhile(page: Page, text: str) -> None:
    """Writes while it answers, once the message before it is on its way no more."""
    page.get_by_label("Message", exact=True).fill(text)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
    page.keyboard.press("Enter")


def choose_all_tools(page: Page) -> None:
    # The name of the model moves the buttons beside it, and a click on one that moves meanwhile is none.
    expect(page.get_by_role("button", name=re.compile("^Model: (?!Default model)"))).to_be_visible()
    page.get_by_role("button", name="Tools for the next messages").click()
    page.get_by_role("option", name="All I may use").click()
    page.keyboard.press("Escape")


def said(page: Page, text: str) -> Locator:
    """A paragraph of an answer."""
    return page.get_by_role("article", name="Answer").get_by_text(text, exact=True)


def answer_of(page: Page) -> str:
    return page.get_by_role("article", name="Answer").last.inner_text()


@contextmanager
def two_tabs(person: Person, browser: Browser, server: ServerProcess) -> Iterator[tuple[Tab, Tab]]:
    with (
        person.profile() as profile,
        open_tab(browser, server.url, profile=profile) as first,
        open_tab(browser, server.url, profile=profile) as second,
    ):
        yield first, second


def test_a_permission_is_asked_in_place_and_disappears_in_every_tab(
    person: Person, browser: Browser, server: ServerProcess
) -> None:
    person.put("/permissions/rules?scope=user", [{"tool": "python_eval", "action": "ask"}])
    with two_tabs(person, browser, server) as (first, second):
        page = first.open()
        choose_all_tools(page)
        send(page, "evaluate")
        expect(page.get_by_role("button", name="Once")).to_be_visible()
        take_screenshots(first, "chat-permission")
        other = second.open(page.url.removeprefix(server.url))
        expect(other.get_by_role("button", name="Always")).to_be_visible()
        page.get_by_role("button", name="Edit the arguments").click()
        expect(page.get_by_role("button", name="Always")).to_have_count(0)
        page.get_by_role("button", name="Discard changes").click()
        expect(page.get_by_role("button", name="Always")).to_be_visible()
        expect(page.get_by_text("Low risk")).to_be_visible()
        page.get_by_role("button", name="Edit the arguments").click()
        page.get_by_role("textbox", name="Arguments").fill('{"expression": "2 + 2"}')
        # A card that a reader opens stays open when the stored answer takes the place of the live one.
        page.get_by_role("button", name="python_eval").click()
        page.get_by_role("button", name="Once, as edited").click()
        for each in (page, other):
            expect(said(each, "Evaluated.")).to_be_visible()
            expect(each.get_by_role("button", name="Once")).to_be_hidden()
        expect(page.get_by_role("button", name="Answer again")).to_be_visible()
        expect(page.get_by_role("group", name="Output")).to_have_text("4")


def test_always_is_not_offered_where_its_rule_would_not_allow_the_call(person: Person) -> None:
    asking = [{"tool": "python_eval", "action": "ask"}]
    project = person.post("/projects", {"name": "Careful"})["id"]
    person.put(f"/permissions/rules?scope=project&id={project}", asking)
    chat = person.post("/conversations", {"project_id": project})["id"]
    run = person.post("/messages/stream", {"conversation_id": chat, "content": "evaluate", "tools": True})
    person.wait_for(run["id"], "waiting")
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{chat}")
        expect(page.get_by_role("button", name="Once")).to_be_visible()
        expect(page.get_by_role("button", name="Always")).to_have_count(0)
        page.get_by_role("button", name="Reject").click()
        expect(said(page, "Evaluated.")).to_be_visible()


def test_a_rejected_call_is_not_run_and_the_note_reaches_the_model(person: Person) -> None:
    person.put("/permissions/rules?scope=user", [{"tool": "python_eval", "action": "ask"}])
    with person.tab() as tab:
        page = tab.open()
        choose_all_tools(page)
        send(page, "evaluate")
        page.get_by_role("button", name="Note to the model").click()
        page.get_by_label("Note to the model").fill("too risky")
        page.get_by_role("button", name="Reject").click()
        expect(said(page, "Evaluated.")).to_be_visible()
        expect(page.get_by_role("button", name="python_eval")).to_contain_text("Rejected")


def test_a_clarification_blocks_only_its_own_run(person: Person, models: ScriptedProvider) -> None:
    with person.tab() as tab:
        page = tab.open()
        choose_all_tools(page)
        send(page, "colour")
        expect(page.get_by_text("Which colour?").last).to_be_visible()
        expect(page.get_by_role("radio", name="blue")).to_be_checked()
        take_screenshots(tab, "chat-clarification")
        page.get_by_role("link", name="New chat").click()
        send(page, "gated first")
        models.release("first")
        expect(said(page, "one two three four five.")).to_be_visible()
        page.get_by_role("link", name="colour").click()
        page.get_by_role("radio", name="red").check()
        page.get_by_role("button", name="Answer", exact=True).click()
        expect(said(page, "A good choice.")).to_be_visible()


def test_a_refresh_in_mid_stream_loses_and_repeats_nothing(person: Person, models: ScriptedProvider) -> None:
    with person.tab() as tab:
        page = tab.open()
        send(page, "gated refresh")
        expect(said(page, "one two three")).to_be_visible()
        page.reload()
        expect(said(page, "one two three")).to_be_visible()
        models.release("refresh")
        expect(said(page, "one two three four five.")).to_be_visible()
        expect(page.get_by_role("button", name="Answer again")).to_be_visible()
        assert answer_of(page).count("one") == 1


def test_after_a_lost_connection_the_answer_goes_on_where_it_was(
    person: Person, models: ScriptedProvider
) -> None:
    with person.profile() as profile, open_tab(person.browser, person.server.url, profile=profile) as tab:
        tab.expected_problems += ["ERR_INTERNET_DISCONNECTED", "ERR_NETWORK", "WebSocket"]
        page = tab.open()
        send(page, "gated offline")
        expect(said(page, "one two three")).to_be_visible()
        profile.context.set_offline(True)
        # Parts of the page that cannot be read say so too.
        expect(page.get_by_text("What runs goes on, and this page follows")).to_be_visible()
        take_screenshots(tab, "chat-offline")
        models.release("offline")
        page.wait_for_timeout(1500)
        profile.context.set_offline(False)
        expect(said(page, "one two three four five.")).to_be_visible()
        expect(page.get_by_text("The server cannot be reached.")).to_be_hidden()
        assert answer_of(page).count("one") == 1


def test_two_tabs_show_the_same(
    person: Person, browser: Browser, server: ServerProcess, models: ScriptedProvider
) -> None:
    with two_tabs(person, browser, server) as (first, second):
        page = first.open()
        send(page, "which")
        expect(said(page, "Answer one.").or_(said(page, "Answer two."))).to_be_visible()
        other = second.open(page.url.removeprefix(server.url))
        expect(said(other, "Answer one.").or_(said(other, "Answer two."))).to_be_visible()
        send(page, "gated tabs")
        for each in (page, other):
            expect(said(each, "one two three")).to_be_visible()
        models.release("tabs")
        for each in (page, other):
            expect(said(each, "one two three four five.")).to_be_visible()
            expect(each.get_by_text("gated tabs", exact=True)).to_have_count(1)


def test_one_can_write_while_it_answers(person: Person, models: ScriptedProvider) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/chat?new=")
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        send(page, "gated wait")
        expect(page.get_by_role("article", name="Answer").get_by_text("one two three")).to_be_visible()
        send_meanwhile(page, "after one")
        queue = page.get_by_role("region", name="Messages that wait")
        expect(queue.get_by_text("after one")).to_be_visible()
        send_meanwhile(page, "after two")
        choice = page.get_by_label("While an answer is made")
        choice.select_option(label="Steer it")
        send_meanwhile(page, "other words, now")
        expect(queue.get_by_role("listitem")).to_have_count(3)
        check_both_screens(tab, "chat-queue")
        first, second = (queue.get_by_role("listitem").filter(has_text=f"after {n}") for n in ("one", "two"))
        second.get_by_role("button", name="Take it back").click()
        expect(queue.get_by_role("listitem")).to_have_count(2)
        expect(page.get_by_label("Message", exact=True)).to_have_value("after two")
        first.get_by_role("button", name="Edit the waiting message").click()
        queue.get_by_role("textbox").fill("other words, later")
        page.keyboard.press("Enter")
        expect(queue.get_by_text("other words, later")).to_be_visible()
        page.reload()
        expect(queue.get_by_role("listitem")).to_have_count(2)
        expect(page.get_by_label("While an answer is made")).to_have_value("steer")
        models.release("wait")
        expect(page.get_by_role("article", name="Answer")).to_have_count(2, timeout=WAIT_MS)
        expect(page.get_by_text("other words, now")).to_be_visible()
        expect(said(page, "Answer three.").first).to_be_visible()
        expect(page.get_by_role("article", name="You").filter(has_text="other words, later")).to_be_visible()
        expect(queue).to_be_hidden()


def test_a_change_of_a_waiting_message_that_comes_too_late_is_not_lost(
    person: Person, models: ScriptedProvider
) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/chat?new=")
        send(page, "gated late")
        expect(page.get_by_role("article", name="Answer").get_by_text("one two three")).to_be_visible()
        send_meanwhile(page, "other words, first")
        send_meanwhile(page, "other words, second")
        queue = page.get_by_role("region", name="Messages that wait")
        edit = queue.get_by_role("listitem").first.get_by_role("button", name="Edit the waiting message")
        edit.click()
        queue.get_by_role("textbox").fill("other words, better")
        page.reload()
        edit.click()
        expect(queue.get_by_role("textbox")).to_have_value("other words, better")
        models.release("late")
        expect(page.get_by_role("article", name="Answer")).to_have_count(3, timeout=WAIT_MS)
        expect(page.get_by_text("The message was sent before its change.")).to_be_visible()
        expect(page.get_by_label("Message", exact=True)).to_have_value("other words, better")
        expect(page.get_by_role("article", name="You").filter(has_text="other words, first")).to_be_visible()


def test_a_message_that_waits_already_is_no_draft_after_a_reload(
    person: Person, models: ScriptedProvider
) -> None:
    def send_without_answer(route: Route) -> None:
        assert route.fetch().ok

    address = "**/messages/stream"
    with person.tab() as tab:
        tab.expected_problems.append("Failed to load")
        page = tab.open("/ui/chat?new=")
        send(page, "gated lost")
        expect(page.get_by_role("article", name="Answer").get_by_text("one two three")).to_be_visible()
        page.route(address, send_without_answer)
        conversation = page.url.rsplit("/", 1)[1]
        send_meanwhile(page, "other words that wait")
        while not person.get(f"/conversations/{conversation}/queue")["items"]:
            page.wait_for_timeout(20)
        page.reload()
        page.unroute(address)
        queue = page.get_by_role("region", name="Messages that wait")
        expect(queue.get_by_role("listitem")).to_have_count(1)
        expect(page.get_by_label("Message", exact=True)).to_have_value("")
        models.release("lost")
        expect(page.get_by_role("article", name="Answer")).to_have_count(2, timeout=WAIT_MS)


def test_a_cancelled_answer_pauses_what_waits(person: Person, models: ScriptedProvider) -> None:
    with person.tab() as tab:
        page = tab.open()
        send(page, "gated paused")
        expect(page.get_by_role("article", name="Answer").get_by_text("one two three")).to_be_visible()
        send_meanwhile(page, "other words that wait")
        queue = page.get_by_role("region", name="Messages that wait")
        expect(queue.get_by_text("other words that wait")).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        expect(queue.get_by_text("Paused, because")).to_be_visible()
        queue.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("article", name="Answer")).to_have_count(2, timeout=WAIT_MS)
        expect(queue).to_be_hidden()


def test_a_larger_window_is_not_shown_as_messages_that_are_left_out(
    person: Person, models: ScriptedProvider
) -> None:
    body = {"name": "Small", "provider_type": "openai_compatible", "base_url": f"{models.url}/v1"}
    provider = person.post("/providers", body | {"default_model": "smollm2-360m"})["id"]
    fallbacks = [{"provider_id": provider, "model": "gpt-4.1-mini"}]
    agent = person.post("/agents", {"name": "Anna", "provider_id": provider, "fallbacks": fallbacks})["id"]
    conversation = person.post("/conversations", {"agent_id": agent})["id"]
    filler = "The gardener waters the old pear tree behind the wall every evening. " * 120
    message = {"conversation_id": conversation, "content": filler, "max_tokens": 500, "tools": False}
    for _ in range(5):
        person.post("/messages", message)
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        # That of the agent, not the default of its user.
        expect(page.get_by_role("button", name="Model: smollm2-360m")).to_be_visible()
        send(page, "gated grows")
        answer = page.get_by_role("article", name="Answer").last
        expect(answer.get_by_text("one two three")).to_be_visible()
        expect(answer.get_by_text("The context has room again")).to_be_visible()
        expect(answer.get_by_text("0 oldest messages")).to_be_hidden()
        models.release("grows")
        expect(answer.get_by_text("one two three four five.")).to_be_visible()


def test_stop_takes_half_a_second_and_what_was_said_stays(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        send(page, "gated stop")
        expect(said(page, "one two three")).to_be_visible()
        began = time.monotonic()
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_text("Stopped; this is what was written.")).to_be_visible()
        assert time.monotonic() - began < 1.5  # with the time that the test itself takes
        expect(said(page, "one two three")).to_be_visible()
        page.reload()
        expect(said(page, "one two three")).to_be_visible()


def test_regenerating_and_editing_make_branches(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        send(page, "which")
        expect(said(page, "Answer one.").or_(said(page, "Answer two."))).to_be_visible()
        page.get_by_role("button", name="Answer again").click()
        expect(page.get_by_text("2 of 2")).to_be_visible()
        page.get_by_role("button", name="Earlier version").click()
        expect(page.get_by_text("1 of 2")).to_be_visible()
        message = page.get_by_role("article", name="You")
        message.hover()
        message.get_by_role("button", name="Edit").click()
        message.get_by_label("Edit").fill("other words")
        message.get_by_role("button", name="Save and answer").click()
        expect(said(page, "Answer three.")).to_be_visible()
        expect(page.get_by_role("article", name="You").get_by_text("2 of 2")).to_be_visible()
        take_screenshots(tab, "chat-branches")
        page.get_by_role("button", name="Earlier version").click()
        expect(said(page, "Answer three.")).to_be_hidden()


IS_AT_END = """() => {
  const region = document.querySelector('main [role=region]')
  return region.scrollHeight - region.scrollTop - region.clientHeight < 60
}"""


def test_scrolling_up_stops_following_and_a_button_resumes_it(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        send(page, "endless")
        expect(page.get_by_text("Line 60.", exact=True)).to_be_attached()
        page.wait_for_function(IS_AT_END)
        page.get_by_role("region", name="Conversations").hover()
        page.mouse.wheel(0, -600)
        jump = page.get_by_role("button", name="Jump to latest")
        expect(jump).to_be_visible()
        top = "document.querySelector('main [role=region]').scrollTop"
        here = page.evaluate(top)
        expect(page.get_by_text("Line 120.", exact=True)).to_be_attached()
        assert abs(page.evaluate(top) - here) < 2
        jump.click()
        expect(jump).to_be_hidden()
        expect(page.get_by_text("Line 200.", exact=True)).to_be_attached(timeout=WAIT_MS)
        page.wait_for_function(IS_AT_END)
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_text("Stopped; this is what was written.")).to_be_visible()


def test_a_failed_answer_says_why_and_can_be_tried_again(person: Person) -> None:
    empty = person.post("/conversations", {"title": "Begun elsewhere"})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{empty}")
        start = page.get_by_role("heading", name="What would you like to do?")
        expect(start).to_be_visible()
        send(page, "broken")
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("bad key")
        expect(start).to_be_hidden()
        expect(page.get_by_role("button", name="Answer again")).to_have_count(1)
        answer = page.get_by_role("article", name="Answer")
        expect(answer.get_by_role("button", name="Copy the message")).to_have_count(0)
        take_screenshots(tab, "chat-failed")
        page.reload()
        expect(alert).to_contain_text("bad key")
        alert.get_by_role("button", name="Answer again").click()
        expect(said(page, "Now it works.")).to_be_visible()
        expect(alert).to_be_hidden()
        expect(answer.get_by_role("button", name="Copy the message")).to_be_visible()


def test_a_question_of_another_conversation_is_a_notice_that_can_be_answered(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        chat = person.post("/conversations", {"title": "Elsewhere"})["id"]
        person.put("/permissions/rules?scope=user", [{"tool": "python_eval", "action": "ask"}])
        body = {"conversation_id": chat, "content": "evaluate", "tools": True}
        run = person.api.post("/messages/stream", json=body).raise_for_status().json()["data"]
        notices = page.get_by_role("region", name="Notices")
        expect(notices).to_contain_text("Elsewhere", timeout=WAIT_MS)
        take_screenshots(tab, "notice")
        expect(page.get_by_role("link", name="Chat, Waiting for you: 1")).to_be_visible()
        notices.get_by_role("button", name="Once").click()
        expect(notices.get_by_role("button", name="Once")).to_be_hidden()
        expect(notices).to_contain_text("Done", timeout=WAIT_MS)
        assert person.get(f"/runs/{run['id']}")["status"] == "completed"


def test_a_run_that_began_to_wait_without_the_page_is_a_notice_when_it_opens(person: Person) -> None:
    chat = person.post("/conversations", {"title": "Earlier"})["id"]
    person.put("/permissions/rules?scope=user", [{"tool": "python_eval", "action": "ask"}])
    body = {"conversation_id": chat, "content": "evaluate", "tools": True}
    run = person.api.post("/messages/stream", json=body).raise_for_status().json()["data"]
    person.wait_for(run["id"], "waiting")
    with person.tab() as tab:
        page = tab.open()
        notices = page.get_by_role("region", name="Notices")
        expect(notices.get_by_role("button", name="Once")).to_be_visible()
        expect(notices).to_contain_text("Earlier")
        questions = person.get(f"/runs/{run['id']}/questions")["items"]
        person.post(f"/runs/{run['id']}/questions/{questions[0]['id']}/answer", {"answer": "once"})
        expect(notices.get_by_role("button", name="Once")).to_be_hidden()
        expect(notices).to_contain_text("Done")


def test_an_answer_that_is_stored_before_its_events_arrive_is_shown_once(person: Person) -> None:
    conversation = person.post("/conversations", {"title": "Fast"})["id"]

    def answer_later(route: Route) -> None:
        [run] = person.get("/runs", subject_id=conversation)["items"]
        person.wait_for(run["id"], "completed")
        route.continue_()

    with person.tab() as tab:
        tab.expected_problems.append("Failed to load")
        page = tab.open(f"/ui/chat/{conversation}")
        page.wait_for_load_state("networkidle")
        page.route("**/runs/*/events*", lambda _: None)
        for address in ("**/messages?*", "**/tree"):
            page.route(address, answer_later)
        page.get_by_label("Message", exact=True).fill("other words")
        page.keyboard.press("Enter")
        answer = page.get_by_role("article", name="Answer")
        expect(answer.get_by_role("button", name="Answer again")).to_be_visible()
        expect(answer).to_have_count(1)
        page.unroute_all(behavior="ignoreErrors")
