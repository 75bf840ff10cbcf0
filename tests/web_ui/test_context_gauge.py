"""How full the context window of a conversation is, on the chat page of a laptop and of a phone."""

import re

import pytest
from playwright.sync_api import Page, expect

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import WAIT_MS
from web_ui.person import Person
from web_ui.test_chat_runs import said, send
from web_ui.test_plans_and_loops import WIDTHS, is_wide_enough

SUMMARY = "## Goal and limits\nDescribe the garden."
ASKS_FOR_SUMMARY = "no longer fits your context window"
LONG = "The old pear tree stands behind the wall of the garden, beside the well. " * 800
"""About 13,000 tokens."""


@pytest.fixture(scope="module")
def script() -> Script:
    gates = [
        Rule(when=When(user=ASKS_FOR_SUMMARY, system=f"Phone {width}"), reply=reply)
        for width in WIDTHS
        for reply in [[Gate(name=f"summary{width}"), Text(text=SUMMARY, pieces=1)]]
    ]
    return Script(rules=[*gates, Rule(reply=[Text(text="The apple tree too.")])])


def long_conversation(person: Person, width: int) -> str:
    """An imported conversation of seven turns, about half of what a prompt may have."""
    texts = [("human", "Describe the garden."), ("assistant", LONG)] * 7
    messages = [
        {"uuid": str(number), "sender": sender, "text": text} for number, (sender, text) in enumerate(texts)
    ]
    document = [{"uuid": "1", "name": "The garden", "chat_messages": messages}]
    conversation = person.post("/conversations/import", document)["conversation_ids"][0]
    person.put(f"/conversations/{conversation}", {"system_prompt": f"Phone {width}"})
    return str(conversation)


def percent_of(page: Page) -> int:
    gauge = page.get_by_role("button", name="Context window:")
    expect(gauge).to_be_visible()
    found = re.search(r"\d+", gauge.inner_text())
    assert found
    return int(found[0])


@pytest.mark.parametrize("width", WIDTHS)
def test_the_gauge_says_how_full_the_window_is_and_compresses(
    person: Person, models: ScriptedProvider, width: int
) -> None:
    conversation = long_conversation(person, width)
    with person.tab() as tab:
        tab.expected_problems.append("status of 409")  # A second compression is refused.
        page = tab.open(f"/ui/chat/{conversation}")
        page.set_viewport_size({"width": width, "height": 800})
        assert 45 <= percent_of(page) <= 70
        page.get_by_role("button", name="Context window:").click()
        dialog = page.get_by_role("dialog", name="Context window")
        window = "The window of scripted has 1M tokens; this server uses at most 170k of it for a prompt."
        expect(dialog.get_by_text(window)).to_be_visible()
        expect(dialog.get_by_text("Messages", exact=True)).to_be_visible()
        expect(dialog.get_by_text("Nothing has been left out so far.")).to_be_visible()
        check_both_themes(tab, f"chat-context-{width}")
        assert is_wide_enough(page)
        dialog.get_by_role("button", name="Compress now").click()
        expect(dialog.get_by_role("button", name="Summarising the earlier messages")).to_be_disabled()
        models.release(f"summary{width}")
        summary = dialog.get_by_text("are summarised for the model")
        expect(summary).to_be_visible(timeout=WAIT_MS)
        summary.click()
        expect(dialog.get_by_role("heading", name="Goal and limits")).to_be_visible()
        check_both_themes(tab, f"chat-context-compressed-{width}")
        page.keyboard.press("Escape")
        words = page.get_by_label("Message", exact=True)
        words.fill("/compress")
        words.press("Enter")
        # Why it was refused stands above the field until something else is typed.
        refused = page.get_by_role("main").get_by_role("alert")
        expect(refused).to_contain_text("would save too little")
        before = percent_of(page)
        assert before < 30
        send(page, f"And {LONG}")
        expect(refused).to_be_hidden()
        expect(said(page, "The apple tree too.")).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_role("button", name=f"Context window: {before}% used")).to_be_hidden()
        assert percent_of(page) > before
        assert is_wide_enough(page)


def test_a_person_sets_how_many_messages_are_read(person: Person) -> None:
    conversation = person.post("/conversations", {"title": "Plants"})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        page.get_by_role("button", name="Details").click()
        field = page.get_by_label("Newest messages that it reads")
        for typed, kept in (("20", 20), ("", None)):
            field.fill(typed)
            page.keyboard.press("Enter")
            expect(page.get_by_role("button", name="Save")).to_be_hidden()
            assert person.get(f"/conversations/{conversation}")["sliding_window"] == kept
        page = tab.open("/ui/agents/new")
        page.get_by_label("Name", exact=True).fill("Anna")
        page.get_by_label("Newest messages that it reads").fill("6")
        page.get_by_role("button", name="Create the agent").click()
        expect(page.get_by_role("heading", name="Anna")).to_be_visible()
    [anna] = [each for each in person.get("/agents")["items"] if each["name"] == "Anna"]
    assert anna["sliding_window"] == 6
