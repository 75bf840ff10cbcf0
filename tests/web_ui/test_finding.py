"""The list of conversations by day, the search in messages, and the title of the browser's tab."""

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Rule, Script, Text, When
from web_ui.axe import check_both_screens
from web_ui.person import Person

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def script() -> Script:
    rules = [
        Rule(when=When(user="frame"), reply=[Text(text="Cedar lasts longer than 😀 pine in a wet garden.")]),
        Rule(reply=[Text(text="Seen.")]),
    ]
    return Script(rules=rules)


def test_messages_are_found_in_the_list_with_marks(person: Person) -> None:
    garden = person.post("/conversations", {"title": "Greenhouse"})["id"]
    for content in ("Which wood for the frame?", "And for the roof?"):
        person.post("/messages", {"conversation_id": garden, "content": content, "tools": False})
    person.post("/conversations", {"title": "Pine furniture"})
    with person.tab() as tab:
        page = tab.open()
        expect(page.get_by_role("heading", name="Today")).to_be_visible()
        expect(page).to_have_title("Chat · Luxx")
        search = page.get_by_label("Search conversations")
        search.fill("pine")
        pane = page.get_by_role("complementary", name="Conversations")
        expect(pane.get_by_role("heading", name="In messages")).to_be_visible()
        expect(pane.get_by_role("link", name="Pine furniture")).to_be_visible()
        hit = pane.get_by_role("link").filter(has_text="Cedar lasts longer")
        expect(hit.locator("mark")).to_have_text(["pine"])
        expect(hit.locator("time")).to_be_visible()
        check_both_screens(tab, "found")
        page.set_viewport_size({"width": 1280, "height": 800})
        # By keys: from the field over the titles to the message.
        search.focus()
        while not hit.evaluate("each => each === document.activeElement"):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer").first).to_contain_text("Cedar lasts longer")
        expect(page).to_have_title("Greenhouse · Luxx")
        search.fill("cedar")
        expect(pane.get_by_role("link").filter(has_text="Cedar lasts longer")).to_be_visible()
        search.fill("nowhere")
        expect(page.get_by_text("No conversation has these words. Try fewer of them.")).to_be_visible()
        page.goto(f"{tab.url}/ui/settings")
        expect(page).to_have_title("Account · Luxx")
        page.goto(f"{tab.url}/ui/usage")
        expect(page).to_have_title("Usage · Luxx")
