"""Long conversations and fast streams: what the page keeps in its DOM, and how soon it shows things."""

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from web_ui.person import Person
from web_ui.timing import FIRST_TOKEN, OPENING, long_conversation

MESSAGES = 2_000


@pytest.fixture(scope="module")
def script() -> Script:
    reply = [Gate(name="token"), Text(text="first words", pieces=2)]
    return Script(rules=[Rule(when=When(user="token"), reply=reply)])


def import_conversation(person: Person, count: int) -> str:
    answer = person.api.post(
        "/conversations/import",
        content=long_conversation(count),
        headers={"content-type": "application/json"},
    )
    return str(answer.raise_for_status().json()["data"]["conversation_ids"][0])


def test_two_thousand_messages_are_usable_at_once_and_few_are_in_the_page(person: Person) -> None:
    conversation_id = import_conversation(person, MESSAGES)
    with person.tab() as tab:
        page = tab.open()
        link = page.get_by_role("link", name="A long talk")
        expect(link).to_be_visible()
        page.evaluate(OPENING, [conversation_id, "Message 1999."])
        page.wait_for_function("() => window.openedIn !== undefined")
        opened_in = page.evaluate("window.openedIn")
        nodes = page.evaluate("document.querySelectorAll('*').length")
        print(f"opened in {opened_in:.0f} ms, {nodes} DOM nodes")
        expect(page.get_by_text("Message 1999.")).to_be_in_viewport()
        assert opened_in < 3_000  # on a machine that does other things too; `make bench` measures
        assert nodes < 1_500
        region = page.locator("main [role=region]")
        for number in (1939, 1839, 1739):
            region.evaluate("each => { each.scrollTop = 0 }")
            expect(page.get_by_text(f"Message {number}.")).to_be_attached()
        assert page.evaluate("document.querySelectorAll('*').length") < 1_500


def test_a_first_token_is_shown_soon_after_its_event(person: Person, models: ScriptedProvider) -> None:
    with person.tab() as tab:
        page = tab.open()
        page.evaluate(FIRST_TOKEN, "first")
        page.get_by_label("Message", exact=True).fill("token")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer")).to_be_visible()
        models.release("token")
        page.wait_for_function("() => window.tokenTimes.shown !== undefined")
        times = page.evaluate("window.tokenTimes")
        print(f"shown {times['shown'] - times['received']:.0f} ms after its event")
        assert times["shown"] - times["received"] < 250  # 100 ms on a machine that does nothing else
