"""What the server refuses is said beside what was typed, until it is sent again, changed or dismissed."""

import pytest
from playwright.sync_api import Page, Route, expect

from luxx.providers.scripted import Rule, Script, Text
from web_ui.axe import check_both_screens
from web_ui.browser import LAPTOP, PHONE
from web_ui.person import Person

REFUSED = "the daily limit is reached"
SHOWN = "The daily limit is reached."


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(rules=[Rule(reply=[Text(text="Hello to you.")])])


def refuse(page: Page, pattern: str, method: str) -> None:
    def answer(route: Route) -> None:
        if route.request.method != method:
            route.fallback()
            return
        route.fulfill(status=409, json={"error": REFUSED, "success": False, "detail": {}})

    page.route(pattern, answer)


def expect_to_stay(page: Page) -> None:
    """Longer than a notice does."""
    alert = page.get_by_role("alert").filter(has_text=SHOWN)
    expect(alert).to_be_visible()
    page.clock.fast_forward(60_000)
    expect(alert).to_be_visible()


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_a_refusal_stands_beside_the_text_until_it_is_sent_changed_or_dismissed(
    person: Person, size: tuple[int, int]
) -> None:
    chat = person.post("/conversations", {"title": "Plants"})["id"]
    room = person.post("/chat-rooms", {"title": "A garden", "task": "Plan", "agents": [{"name": "Ann"}]})[
        "id"
    ]
    with person.tab(size) as tab:
        tab.expected_problems.append("409")
        tab.page.clock.install()
        page = tab.open(f"/ui/chat/{chat}")
        alert = page.get_by_role("alert")
        refuse(page, "**/messages/stream", "POST")
        field = page.get_by_label("Message", exact=True)
        field.fill("hello")
        page.get_by_role("button", name="Send").click()
        expect_to_stay(page)
        expect(field).to_have_value("hello")
        check_both_screens(tab, f"refused-{size[0]}")
        page.get_by_role("button", name="Dismiss this message").click()
        expect(alert).to_be_hidden()
        page.get_by_role("button", name="Send").click()
        expect_to_stay(page)
        field.press("End")
        field.press_sequentially("!")
        expect(alert).to_be_hidden()
        page.unroute("**/messages/stream")
        page.get_by_role("button", name="Send").click()
        answer = page.get_by_role("article", name="Answer")
        expect(answer).to_contain_text("Hello to you")

        # Another text for an answer stays in its field.
        refuse(page, "**/messages/*", "PUT")
        answer.hover()
        answer.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Edit answer").click()
        edited = page.get_by_label("Edit answer")
        edited.fill("Good day.")
        page.get_by_role("button", name="Save", exact=True).click()
        expect_to_stay(page)
        expect(edited).to_have_value("Good day.")
        page.unroute("**/messages/*")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Good day.")
        expect(alert).to_be_hidden()

        # A tag in the details, and what one says in a room.
        page = tab.open(f"/ui/rooms/{room}")
        refuse(page, "**/chat-rooms/*/messages", "POST")
        said = page.get_by_label("Say something")
        said.fill("And glass?")
        said.press("Enter")
        expect_to_stay(page)
        expect(said).to_have_value("And glass?")
        check_both_screens(tab, f"refused-in-room-{size[0]}")
        page.unroute("**/chat-rooms/*/messages")
        said.press("Enter")
        expect(page.get_by_text("And glass?").first).to_be_visible()
        expect(said).to_have_value("")
        expect(alert).to_be_hidden()
