"""The rail with its labels, and the page of a chat that has no messages yet."""

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Rule, Script, Text, When
from web_ui.axe import check_both_screens
from web_ui.browser import PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        models=["scripted", "gpt-4.1", "nameless-7b"], rules=[Rule(when=When(), reply=[Text(text="Seen.")])]
    )


def test_the_rail_has_labels_where_there_is_room_and_remembers_the_choice(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        rail = page.get_by_role("navigation", name="Areas")
        expect(rail.get_by_text("Knowledge", exact=True)).to_be_visible()
        hide = rail.get_by_role("button", name="Hide labels")
        hide.focus()
        page.keyboard.press("Enter")
        expect(rail.get_by_text("Knowledge", exact=True)).to_be_hidden()
        expect(rail.get_by_role("link", name="Knowledge")).to_be_visible()
        page.reload()
        expect(rail.get_by_role("button", name="Show labels")).to_be_visible()
        expect(rail.get_by_text("Knowledge", exact=True)).to_be_hidden()
        rail.get_by_role("button", name="Show labels").click()
        page.set_viewport_size({"width": 820, "height": 1180})
        expect(rail.get_by_text("Knowledge", exact=True)).to_be_visible()
        page.evaluate("localStorage.removeItem('luxx.rail')")
        page.reload()
        expect(rail.get_by_role("button", name="Show labels")).to_be_visible()


def test_a_phone_has_words_at_the_bottom_and_the_other_areas_in_a_menu(person: Person) -> None:
    with person.tab(PHONE, is_touched=True) as tab:
        page = tab.open()
        rail = page.get_by_role("navigation", name="Areas")
        for label in ("Chat", "Rooms", "Tasks"):
            expect(rail.get_by_text(label, exact=True)).to_be_visible()
        rail.get_by_role("button", name="More").tap()
        expect(page.get_by_role("menuitem", name="Commands")).to_be_visible()
        page.get_by_role("menuitem", name="Knowledge").tap()
        expect(page.get_by_role("heading", name="Knowledge", exact=True)).to_be_visible()


def test_an_empty_chat_offers_what_its_model_can_and_what_was_done_last(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        field = page.get_by_label("Message", exact=True)
        main = page.get_by_role("main")
        expect(main.get_by_role("button", name="Calculate")).to_be_visible()
        page.get_by_role("button", name="Model: scripted").click()
        page.get_by_role("option", name="nameless-7b").click()
        # Nothing is known of this model, so that nothing is offered that takes a tool.
        expect(main.get_by_role("button", name="Explain something")).to_be_visible()
        expect(main.get_by_role("button", name="Calculate")).to_be_hidden()
        page.get_by_role("button", name="Model: nameless-7b").click()
        page.get_by_role("option", name="gpt-4.1").click()
        expect(main.get_by_role("button", name="Calculate")).to_be_visible()
        main.get_by_role("button", name="Calculate").click()
        expect(field).to_be_focused()
        main.get_by_role("button", name="Explain something").click()
        assert "hash table" in field.input_value()
        assert "Python" not in field.input_value()
        field.fill("My own words")
        main.get_by_role("button", name="Explain something").click()
        assert field.input_value().startswith("My own words\n")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Seen.")
        expect(main.get_by_role("button", name="Explain something")).to_be_hidden()
        page.get_by_role("link", name="New chat").click()
        expect(main.get_by_role("link", name="My own words")).to_be_hidden()
        page.get_by_role("button", name="Hide the list").click()
        expect(main.get_by_role("link", name="My own words")).to_be_visible()
        check_both_screens(tab, "first-page")
        page.evaluate("localStorage.setItem('luxx.language', 'zh')")
        page.reload()
        expect(main.get_by_role("button", name="解释概念")).to_be_visible()
        check_both_screens(tab, "first-page-zh")
        page.evaluate("localStorage.removeItem('luxx.language')")
        page.reload()
        main.get_by_role("link", name="Plan a task").click()
        expect(page.get_by_role("heading", name="New task")).to_be_visible()
        page.goto(f"{tab.url}/ui/chat?new=")
        main.get_by_role("link", name="Start a room").click()
        expect(page.get_by_role("heading", name="New room")).to_be_visible()


def test_the_buttons_below_the_text_have_words_where_there_is_room(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        composer = page.locator("main form")
        for word in ("Files", "Agent", "Tools", "Thinking"):
            expect(composer.get_by_text(word, exact=True)).to_be_visible()
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{tab.url}/ui/chat?new=")
        expect(composer.get_by_role("button", name="Attach files")).to_be_visible()
        for word in ("Files", "Agent", "Tools", "Thinking"):
            expect(composer.get_by_text(word, exact=True)).to_be_hidden()
