"""A hit of the search opens its message: far up in a long conversation, on another branch, or deleted."""

import re

import pytest
from playwright.sync_api import Page, expect

from luxx.providers.scripted import Rule, Script, Text
from web_ui.axe import check_both_screens
from web_ui.browser import take_screenshots
from web_ui.person import Person
from web_ui.timing import long_conversation

pytestmark = pytest.mark.heavy

MESSAGES = 600
FOUND = "[data-message][role=group]"
TO_END = """words => {
  const region = document.querySelector('main [role=region]')
  region.scrollTop = region.scrollHeight
  return region.textContent.includes(words)
}"""


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(rules=[Rule(reply=[Text(text="A heron stands in the reeds.")])])


def imported(person: Person) -> str:
    answer = person.api.post(
        "/conversations/import",
        content=long_conversation(MESSAGES),
        headers={"content-type": "application/json"},
    )
    return str(answer.raise_for_status().json()["data"]["conversation_ids"][0])


def is_at_the_message(page: Page, words: str) -> None:
    found = page.locator(FOUND)
    expect(found).to_contain_text(words)
    expect(found).to_be_in_viewport()
    expect(found).to_be_focused()
    expect(found).to_have_class(re.compile("bg-waiting-soft"))


def test_a_hit_opens_its_message_in_a_long_conversation(person: Person) -> None:
    conversation_id = imported(person)
    with person.tab() as tab:
        page = tab.open()
        # From the list.
        page.get_by_label("Search conversations").fill('"message 150."')
        pane = page.get_by_role("complementary", name="Conversations")
        hit = pane.get_by_role("link").filter(has_text="Message 150.")
        hit.click()
        is_at_the_message(page, "Message 150.")
        expect(page).to_have_url(re.compile(rf"/chat/{conversation_id}\?message="))
        take_screenshots(tab, "found-message")
        page.reload()
        is_at_the_message(page, "Message 150.")
        # The same hit shows the place again.
        region = page.locator("main [role=region]")
        region.evaluate("each => { each.scrollTop = 0 }")
        expect(page.locator(FOUND)).not_to_be_in_viewport()
        page.get_by_label("Search conversations").fill('"message 150."')
        hit.click()
        is_at_the_message(page, "Message 150.")
        # What is later is loaded too, until the end.
        page.wait_for_function(TO_END, arg=f"Message {MESSAGES - 1}.")
        # From the palette, by keys, in the same conversation.
        page.keyboard.press("Control+k")
        page.keyboard.type('"message 420."')
        option = page.get_by_role("option").filter(has_text="Message 420.")
        expect(option).to_be_visible()
        page.keyboard.press("Enter")
        is_at_the_message(page, "Message 420.")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('[data-message]')?.role") == "group"
        page.go_back()
        is_at_the_message(page, "Message 150.")
        page.get_by_role("button", name="Jump to latest").click()
        expect(page.get_by_text(f"Message {MESSAGES - 1}.")).to_be_in_viewport()
        expect(page).to_have_url(re.compile(rf"/chat/{conversation_id}$"))
        # What is sent from the middle is at the end.
        page.go_back()
        page.keyboard.press("Control+k")
        page.keyboard.type('"message 30."')
        expect(page.get_by_role("option").filter(has_text="Message 30.")).to_be_visible()
        page.keyboard.press("Enter")
        is_at_the_message(page, "Message 30.")
        page.get_by_label("Message", exact=True).fill("And which bird is that?")
        page.keyboard.press("Enter")
        answer = page.get_by_role("article", name="Answer").filter(has_text="A heron stands in the reeds.")
        expect(answer).to_be_in_viewport()
        expect(page.get_by_text(f"Message {MESSAGES - 1}.")).to_be_attached()


def test_a_hit_on_another_branch_or_a_deleted_one_is_shown_without_a_change(person: Person) -> None:
    conversation_id = person.post("/conversations", {"title": "Pond"})["id"]

    def send(content: str) -> str:
        body = {"conversation_id": conversation_id, "content": content, "tools": False}
        return str(person.post("/messages", body)["id"])

    send("Which bird is this?")
    first = send("The one beside the osier?")
    asked = person.get("/messages", conversation_id=conversation_id)["items"][1]
    person.put(f"/messages/{asked['id']}", {"content": "The one on the meadow?"})
    chosen = person.get(f"/conversations/{conversation_id}/tree")["selected_leaf_id"]
    with person.tab() as tab:
        page = tab.open()
        page.get_by_label("Search conversations").fill("osier")
        page.get_by_role("complementary", name="Conversations").get_by_role("link").filter(
            has_text="beside the osier"
        ).click()
        is_at_the_message(page, "The one beside the osier?")
        notice = page.get_by_role("status").filter(has_text="another version of the conversation")
        expect(notice).to_be_visible()
        check_both_screens(tab, "found-branch")
        page.set_viewport_size({"width": 1280, "height": 800})
        assert person.get(f"/conversations/{conversation_id}/tree")["selected_leaf_id"] == chosen
        notice.get_by_role("button", name="Back to the chosen version").click()
        expect(page.get_by_text("The one on the meadow?")).to_be_visible()
        expect(notice).to_be_hidden()
        page.goto(f"{tab.url}/ui/chat/{conversation_id}?message={asked['id']}")
        is_at_the_message(page, "The one beside the osier?")
        notice.get_by_role("button", name="Choose this version").click()
        expect(notice).to_be_hidden()
        assert person.get(f"/conversations/{conversation_id}/tree")["selected_leaf_id"] == first
        person.put(f"/conversations/{conversation_id}", {"selected_leaf_id": chosen})
        # What one sends below it continues it.
        page.goto(f"{tab.url}/ui/chat/{conversation_id}?message={asked['id']}")
        is_at_the_message(page, "The one beside the osier?")
        page.get_by_label("Message", exact=True).fill("Is it a heron?")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer")).to_have_count(3)
        expect(notice).to_be_hidden()
        tree = person.get(f"/conversations/{conversation_id}/tree")
        assert first in tree["selected_path"]
        person.api.delete(f"/messages/{asked['id']}").raise_for_status()
        page.goto(f"{tab.url}/ui/chat/{conversation_id}?message={asked['id']}")
        gone = page.get_by_role("status").filter(has_text="it was deleted")
        expect(gone).to_be_visible()
        expect(page.get_by_text("Which bird is this?")).to_be_visible()
        take_screenshots(tab, "found-deleted")
        gone.get_by_role("button", name="Close").click()
        expect(gone).to_be_hidden()
        expect(page).to_have_url(re.compile(rf"/chat/{conversation_id}$"))
