"""Links: making, opening and revoking them, the page that shows them, and printing a conversation."""

import os
from pathlib import Path

import pytest
from api.server_process import ServerProcess
from playwright.sync_api import Page, expect

from luxx.providers.scripted import Call, Finish, Rule, Script, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import PHONE, Tab, take_screenshots
from web_ui.conftest import OpenTab
from web_ui.person import Person
from web_ui.scripts import MARKDOWN

pytestmark = pytest.mark.heavy
LONG = "x" * 400
CODE = f"\n```text\n{LONG}\n```\n\n| a | b |\n| --- | --- |\n| {'cell ' * 60} | end of the row |\n"
STUBBED_PRINT = """window.print = () => {
  const count = (selector) => document.querySelectorAll(`.printed ${selector}`).length
  window.hasPrinted = { diagrams: count('img.diagram'), formulas: count('[data-math]:not(.is-drawn)') }
}"""
"""`window.hasPrinted`: diagrams that are drawn when the printer is called, and formulas that are not."""


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            Rule(
                when=When(user="Look at the files", has_tool_result=False),
                reply=[Call(name="file_list", arguments={}, id="call-1"), Finish(reason="tool_calls")],
            ),
            Rule(when=When(user="Look at the files"), reply=[Text(text=MARKDOWN + CODE), Finish()]),
            Rule(when=When(), reply=[Text(text="Seen."), Finish()]),
        ],
    )


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


def chat(person: Person) -> str:
    conversation_id: str = person.post("/conversations", {"title": "A greenhouse"})["id"]
    person.post("/messages", {"conversation_id": conversation_id, "content": "Look at the files"})
    return conversation_id


def make_link(page: Page, audience: str) -> str:
    page.get_by_role("main").get_by_role("button", name="More actions").first.click()
    page.get_by_role("menuitem", name="Share").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(audience).check()
    dialog.get_by_role("button", name="Make the link").click()
    address = dialog.get_by_label("The link", exact=True).inner_text()
    expect(dialog.get_by_role("button", name="Revoke")).to_be_visible()
    return address


@pytest.mark.parametrize("size", [(1280, 800), PHONE], ids=["laptop", "phone"])
def test_a_link_is_made_opened_without_a_sign_in_and_revoked(
    person: Person, new_tab: OpenTab, size: tuple[int, int]
) -> None:
    with person.sign_in_as_admin() as admin:
        admin.put("/tenant", json={"public_links": True}).raise_for_status()
    conversation_id = chat(person)
    name = "phone" if size == PHONE else "laptop"
    with person.tab(size) as tab:
        page = tab.open(f"/ui/chat/{conversation_id}")
        address = make_link(page, "Anybody with the link")
        take_screenshots(tab, f"share-dialog-{name}")
        check_both_themes(tab, f"share-dialog-{name}")
        page.get_by_role("dialog").get_by_role("button", name="Close").first.click()
        with new_tab(size=size) as reader:
            shared = reader.open(address.removeprefix(reader.url))
            expect(shared.locator("meta[name=robots]")).to_have_attribute("content", "noindex")
            expect(shared.get_by_role("heading", name="A greenhouse")).to_be_visible()
            expect(shared.get_by_role("heading", name="Greenhouses")).to_be_visible()
            expect(shared.get_by_text("file_list")).to_have_count(0)
            assert shared.title() == "A greenhouse · Luxx"
            loaded = shared.evaluate("performance.getEntriesByType('resource').map((each) => each.name)")
            assert not [each for each in loaded if "ChatPage" in each or "ConversationView" in each]
            width = shared.evaluate("document.documentElement.scrollWidth")
            assert width <= size[0]
            take_screenshots(reader, f"shared-{name}")
            check_both_themes(reader, f"shared-{name}")
            page = tab.open("/ui/settings/links")
            expect(page.get_by_role("link", name="A greenhouse")).to_be_visible()
            take_screenshots(tab, f"links-{name}")
            page.get_by_role("button", name="Revoke the link").click()
            page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
            expect(page.get_by_text("No links")).to_be_visible()
            reader.expected_problems.append("404")
            shared.reload()
            expect(shared.get_by_text("There is nothing to see here")).to_be_visible()
            expect(shared.get_by_role("link", name="Sign in")).to_be_visible()


def print_pages(tab: Tab, name: str) -> None:
    """As the browser's printer would see them."""
    tab.page.emulate_media(media="print")
    if folder := os.environ.get("LUXX_SCREENSHOTS"):
        tab.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("size", [(1280, 800), PHONE], ids=["laptop", "phone"])
def test_a_conversation_is_printed_whole_with_its_tool_calls_folded(
    person: Person, size: tuple[int, int]
) -> None:
    conversation_id = chat(person)
    for number in range(30):
        body = {"conversation_id": conversation_id, "content": f"Note {number}"}
        person.post("/messages", body)
    with person.tab(size) as tab:
        tab.page.add_init_script(STUBBED_PRINT)
        page = tab.open(f"/ui/chat/{conversation_id}")
        expect(page.get_by_text("Note 29")).to_be_visible()
        page.get_by_role("main").get_by_role("button", name="More actions").first.click()
        page.get_by_role("menuitem", name="Print").click()
        page.wait_for_function("() => window.hasPrinted")
        assert page.evaluate("window.hasPrinted") == {"diagrams": 1, "formulas": 0}
        print_pages(tab, f"print-{'phone' if size == PHONE else 'laptop'}")
        printed = page.locator(".printed")
        assert [printed.get_by_text(f"Note {number}", exact=True).count() for number in range(30)] == [1] * 30
        expect(printed.get_by_role("heading", name="A greenhouse")).to_be_visible()
        expect(page.locator("#app")).to_be_hidden()
        expect(printed.get_by_text("file_list")).to_be_visible()
        cut = printed.evaluate(
            """(root) => [...root.querySelectorAll('pre, .table-frame, table')]
                .filter((each) => each.scrollWidth > Math.min(root.clientWidth, each.clientWidth) + 1)
                .map((each) => each.textContent.slice(0, 40))"""
        )
        assert cut == []
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        expect(printed).to_have_count(0)
