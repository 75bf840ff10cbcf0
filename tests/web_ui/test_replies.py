"""Replies in rooms, and messages of rooms that are opened at their place, from a quotation or a search."""

import re

import pytest
from playwright.sync_api import Page, expect

from web_ui.axe import check_both_screens
from web_ui.browser import LAPTOP, PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy

NOTES = 120
"""More than the page loads at first."""


def is_at_the_message(page: Page, message_id: str) -> None:
    found = page.locator(f"[data-message='{message_id}']")
    expect(found).to_be_in_viewport()
    expect(found).to_be_focused()
    expect(found).to_have_class(re.compile("bg-waiting-soft"))


def test_a_person_replies_and_messages_are_opened_at_their_place(person: Person) -> None:
    body = {"title": "Garden", "task": "Plan the garden.", "agents": [{"name": "Anna"}]}
    room = person.post("/chat-rooms", body)["id"]
    path = f"/chat-rooms/{room}/messages"
    roses = person.post(path, {"content": "Roses need the sun."})["id"]
    for number in range(NOTES):
        person.post(path, {"content": f"Note {number}. {'Soil and water. ' * 8}"})
    with person.tab() as tab:
        page = tab.open(f"/ui/rooms/{room}")
        field = page.get_by_label("Say something to the room")
        quotation = page.get_by_role("group", name=f"You reply to {person.name}")
        last = page.get_by_role("article").last
        expect(last).to_contain_text(f"Note {NOTES - 1}.")
        last.get_by_role("button", name="Reply").press("Enter")
        expect(field).to_be_focused()
        expect(quotation).to_contain_text(f"Note {NOTES - 1}.")
        check_both_screens(tab, "room-reply")
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
        page.keyboard.press("Escape")
        expect(quotation).to_be_hidden()

        # A hit of the search, of a message that is not loaded, and the same hit again.
        for _ in range(2):
            page.keyboard.press("Control+k")
            page.keyboard.type('"roses need"')
            expect(page.get_by_role("option").filter(has_text="Roses need")).to_be_visible()
            page.keyboard.press("Enter")
            is_at_the_message(page, roses)
            expect(page).to_have_url(re.compile(rf"/rooms/{room}\?message={roses}"))
            page.get_by_role("button", name="Jump to the latest").click()
            expect(page).to_have_url(re.compile(rf"/rooms/{room}$"))
            expect(last).to_be_in_viewport()
        page.get_by_role("searchbox", name="Search rooms").fill('"roses need"')
        page.get_by_role("link", name="Garden").filter(has_text="Roses need").click()
        is_at_the_message(page, roses)

        # What one replies to is kept with what one types.
        page.locator(f"[data-message='{roses}']").get_by_role("button", name="Reply").click()
        field.fill("On which side?")
        page.reload()
        is_at_the_message(page, roses)
        expect(quotation).to_contain_text("Roses need the sun.")
        expect(field).to_have_value("On which side?")
        field.press("Enter")
        expect(quotation).to_be_hidden()
        expect(last).to_contain_text("On which side?")
        [said, *_] = person.get(path)["items"]
        assert (said["content"], said["reply_to"]) == ("On which side?", roses)
        check_both_screens(tab, "room-replied")
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
        last.get_by_role("button", name="Roses need the sun.").press("Enter")
        is_at_the_message(page, roses)

        person.api.delete(f"/messages/{roses}").raise_for_status()
        page.goto(f"{tab.url}/ui/rooms/{room}?message={roses}")
        gone = page.get_by_role("status").filter(has_text="it was deleted")
        expect(gone).to_be_visible()
        expect(last).to_contain_text("In reply to a message that was deleted")
        gone.get_by_role("button", name="Close").click()
        expect(gone).to_be_hidden()
        # What is answered is deleted while one writes: the words stay, and one may leave the reply out.
        note = page.get_by_role("article").filter(has_text=f"Note {NOTES - 1}.")
        note.get_by_role("button", name="Reply").click()
        noted = person.get(path)["items"][1]["id"]
        person.api.delete(f"/messages/{noted}").raise_for_status()
        tab.expected_problems.append("404")
        field.fill("All of it?")
        field.press("Enter")
        expect(page.get_by_text("not in this room; it may have been deleted")).to_be_visible()
        expect(field).to_have_value("All of it?")
        page.get_by_role("button", name="Do not reply").click()
        field.press("Enter")
        expect(last).to_contain_text("All of it?")
    with person.tab(PHONE, is_touched=True) as tab:
        page = tab.open(f"/ui/rooms/{room}")
        reply = page.get_by_role("article").last.get_by_role("button", name="Reply")
        expect(reply.locator("xpath=..")).to_have_css("opacity", "1")
        reply.tap()
        expect(page.get_by_label("Say something to the room")).to_be_focused()
