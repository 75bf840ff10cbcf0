"""Below the newest answer stand the next messages that a model proposes, for who has turned that on."""

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import LAPTOP, PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy
HOSTILE = "<img src=x onerror=\"document.title='taken'\"> and **bold**?"
PROPOSED = f"- When do I water them?\n- {HOSTILE}\n- {'Which sort is best here, ' * 7}please?"


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            Rule(when=When(system="You propose", user="(?s)tomatoes"), reply=[Text(text=PROPOSED)]),
            Rule(when=When(system="You propose"), reply=[Text(text="And in winter?")]),
            Rule(when=When(system="You write the title"), reply=[Text(text="Tomatoes")]),
            Rule(when=When(), reply=[Text(text="In a greenhouse.")]),
        ],
    )


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_a_click_on_a_proposed_message_writes_it_into_the_field(
    person: Person, models: ScriptedProvider, size: tuple[int, int]
) -> None:
    with person.tab(size) as tab:
        page = tab.open("/ui/settings/defaults")
        page.get_by_label("Titles of conversations").select_option("Their first words")
        expect(page.get_by_label("Provider of titles")).to_be_hidden()
        page.get_by_label("Suggest next messages").check()
        page.get_by_label("Provider of titles").select_option(index=1)
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        assert person.get("/settings")["follow_ups"] is True
        check_both_themes(tab, f"settings-follow-ups-{size[0]}")

        page = tab.open("/ui/chat?new")
        box = page.get_by_role("textbox", name="Message")
        box.fill("How do I grow tomatoes?")
        box.press("Enter")
        proposed = page.get_by_role("list", name="Suggested next messages")
        expect(proposed.get_by_role("button")).to_have_count(3)
        # Text of a model is text.
        expect(proposed.get_by_role("button").nth(1)).to_have_text(HOSTILE.replace("**", ""))
        assert page.locator("main img[src=x]").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        check_both_themes(tab, f"follow-ups-{size[0]}")

        def calls() -> int:
            return sum(one.method == "POST" for one in models.requests)

        asked = calls()
        page.reload()
        expect(proposed.get_by_role("button")).to_have_count(3)
        box.fill("A draft.")
        proposed.get_by_role("button", name="When do I water them?").click()
        expect(box).to_have_value("A draft.\nWhen do I water them?")
        expect(box).to_be_focused()
        expect(page.get_by_role("article", name="Answer")).to_have_count(1)
        assert calls() == asked
        box.press("Enter")
        expect(proposed.get_by_role("button")).to_have_text(["And in winter?"])
        expect(page.get_by_role("article", name="Answer")).to_have_count(2)
