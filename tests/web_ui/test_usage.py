"""The usage page: totals, chart, groups and limits."""

import re

import pytest
from playwright.sync_api import expect

from web_ui.axe import check_both_themes
from web_ui.browser import PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy


def use(person: Person, times: int) -> None:
    chat = person.post("/conversations", {"title": "Greetings"})["id"]
    for _ in range(times):
        person.post("/messages", {"conversation_id": chat, "content": "hello"})


def test_what_was_used_is_shown_by_day_and_model(person: Person) -> None:
    use(person, 2)
    with person.tab() as tab:
        page = tab.open("/ui/usage")
        table = page.get_by_role("table", name="Usage")
        expect(table.get_by_role("row")).to_have_count(2)
        expect(page.get_by_role("img", name="Tokens by Day")).to_be_visible()
        sums = person.get("/usage")["sums"]
        assert sums["completions"] == 2
        expect(page.locator("dl", has_text="Model calls").first).to_contain_text("2")
        # The scripted model has no price: its cost is unknown, and not 0.
        expect(table.get_by_role("row").nth(1)).to_contain_text("unknown")
        expect(table.get_by_role("row").nth(1)).to_contain_text(re.compile(r"\b\d{1,2} [A-Z][a-z]+ 20\d\d"))
        expect(page.get_by_text("The prices of 2 calls are not known")).to_be_visible()
        page.get_by_label("Group by").select_option("conversation")
        expect(table.get_by_role("row").nth(1)).to_contain_text("Greetings")
        expect(page.get_by_label("Of whom")).to_have_count(0)
        expect(page.get_by_role("region", name="Limits of today")).to_contain_text("no limit")
        expect(page.get_by_text("$0")).to_have_count(0)
        check_both_themes(tab, "usage")


def test_usage_without_a_call_on_a_phone(person: Person) -> None:
    with person.tab(PHONE) as tab:
        page = tab.open("/ui/usage")
        expect(page.get_by_text("Nothing used")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        use(person, 1)
        page.reload()
        expect(page.get_by_role("img", name="Tokens by Day")).to_be_visible()
        check_both_themes(tab, "phone-usage")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
