"""A temporary chat says what becomes of it; it is ended or kept."""

import re

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Rule, Script, Text
from web_ui.axe import check_both_screens
from web_ui.browser import LAPTOP, PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(rules=[Rule(reply=[Text(text="It is a heron.")])])


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_a_temporary_chat_is_ended_or_kept(person: Person, size: tuple[int, int]) -> None:
    with person.tab(size) as tab:
        page = tab.open("/ui/chat?new=")
        page.get_by_role("button", name="Temporary chat").click()
        bar = page.get_by_role("region", name="Temporary chat")
        expect(bar).to_contain_text("after 60 minutes without use")
        chat = page.url.rsplit("/", 1)[1]
        page.get_by_label("Message", exact=True).fill("Which bird is it?")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("It is a heron.")
        check_both_screens(tab, f"temporary-{size[0]}")
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.reload()
        expect(bar).to_be_visible()
        # What the page still asks for would find no chat any more.
        page.wait_for_load_state("networkidle")
        page.get_by_label("Message", exact=True).fill("A draft.")
        bar.get_by_role("button", name="End").click()
        expect(page).to_have_url(re.compile("/chat.new"))
        assert person.api.get(f"/conversations/{chat}").status_code == 404
        assert "A draft." not in page.evaluate("JSON.stringify(localStorage)")
        page.get_by_role("button", name="Temporary chat").click()
        expect(bar).to_be_visible()
        page.get_by_label("Message", exact=True).fill("And this?")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("It is a heron.")
        assert person.get("/conversations")["items"] == []
        bar.get_by_role("button", name="Keep this chat").click()
        expect(bar).to_be_hidden()
        assert [each["title"] for each in person.get("/conversations")["items"]] == ["And this?"]
