"""Long pastes, completion of agents and files, answers that go on, and the settings of all of it."""

import pytest
from playwright.sync_api import Page, expect

from luxx.providers.scripted import Finish, Rule, Script, Text, When
from web_ui.axe import check_both_screens
from web_ui.browser import LAPTOP, PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def script() -> Script:
    rules = [
        Rule(when=When(user="count"), reply=[Text(text="One, two and"), Finish(reason="length")]),
        Rule(reply=[Text(text="Seen.")]),
    ]
    return Script(rules=rules)


def paste(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).evaluate(
        """(area, text) => {
          const data = new DataTransfer()
          data.setData('text/plain', text)
          const options = { clipboardData: data, bubbles: true, cancelable: true }
          area.dispatchEvent(new ClipboardEvent('paste', options))
        }""",
        text,
    )


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_a_long_paste_is_a_file_and_can_be_text_again(person: Person, size: tuple[int, int]) -> None:
    log = "a line of a long log\n" * 400
    with person.tab(size) as tab:
        page = tab.open("/ui/chat?new=")
        field = page.get_by_label("Message", exact=True)
        field.fill("Before ")
        paste(page, log)
        expect(page.get_by_text("pasted-1.txt")).to_be_visible()
        check_both_screens(tab, f"pasted-{size[0]}")
        page.get_by_role("button", name="Paste as text").press("Enter")
        expect(page.get_by_text("pasted-1.txt")).to_be_hidden()
        assert field.input_value().startswith("Before a line of")
        field.fill("look at this")
        paste(page, log)
        expect(page.get_by_text("pasted-1.txt")).to_be_visible()
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("article", name="You").get_by_text("pasted-1.txt")).to_be_visible()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Seen.")
    chat = person.get("/conversations")["items"][0]["id"]
    messages = person.get("/messages", conversation_id=chat)["items"]
    (sent,) = [each for each in messages if each["role"] == "user"]
    assert sent["attachments"][0]["content"] == log


def test_agents_and_files_are_completed_within_the_text(person: Person) -> None:
    person.post("/agents", {"name": "Botanist", "role": "Knows plants", "system_prompt": "You know plants."})
    person.api.post("/files", files={"file": ("plan.md", b"# Plan")}).raise_for_status()
    person.api.post(
        "/files", files={"file": ("beds.md", b"# Beds")}, data={"path": "garden"}
    ).raise_for_status()
    with person.tab() as tab:
        page = tab.open()
        field = page.get_by_label("Message", exact=True)
        expect(field).to_be_focused()
        page.keyboard.type("Ask @bot")
        expect(page.get_by_role("option", name="@Botanist")).to_be_visible()
        check_both_screens(tab, "completion")
        page.set_viewport_size({"width": 1280, "height": 800})
        field.press("End")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Agent: Botanist")).to_be_visible()
        expect(field).to_have_value("Ask ")
        page.keyboard.type("about #gar")
        expect(page.get_by_role("option", name="#garden/")).to_be_visible()
        page.keyboard.press("Enter")
        expect(field).to_have_value("Ask about #garden/")
        expect(page.get_by_role("option", name="#garden/beds.md")).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Remove beds.md")).to_be_visible()
        expect(field).to_have_value("Ask about ")
        page.keyboard.type("#pl")
        expect(page.get_by_role("option", name="#plan.md")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("option", name="#plan.md")).to_be_hidden()
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="You")).to_contain_text("Ask about #pl")
        expect(page.get_by_role("article", name="You").get_by_text("beds.md")).to_be_visible()


def test_a_cut_answer_goes_on(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        page.get_by_label("Message", exact=True).fill("count")
        page.keyboard.press("Enter")
        expect(page.get_by_text("it reached the length that the model allows")).to_be_visible()
        check_both_screens(tab, "cut")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.get_by_label("Message", exact=True).fill("not sent yet")
        page.get_by_role("button", name="Continue", exact=True).click()
        expect(page.get_by_role("article", name="Answer").last).to_contain_text("Seen.")
        expect(page.get_by_role("article", name="You").last).to_contain_text("where your last answer stopped")
        expect(page.get_by_role("button", name="Continue", exact=True)).to_be_hidden()
        expect(page.get_by_label("Message", exact=True)).to_have_value("not sent yet")


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_an_edited_answer_is_a_branch_with_its_author(person: Person, size: tuple[int, int]) -> None:
    with person.tab(size) as tab:
        page = tab.open("/ui/chat?new=")
        page.get_by_label("Message", exact=True).fill("hello")
        page.get_by_role("button", name="Send").click()
        answer = page.get_by_role("article", name="Answer").last
        expect(answer).to_contain_text("Seen.")
        answer.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Edit answer").click()
        field = page.get_by_role("textbox", name="Edit answer")
        expect(field).to_have_value("Seen.")
        expect(field).to_be_focused()
        field.fill("Not seen.")
        page.reload()
        expect(field).to_have_value("Not seen.")
        check_both_screens(tab, f"editing-answer-{size[0]}")
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.get_by_role("button", name="Save", exact=True).click()
        expect(field).to_be_hidden()
        expect(answer).to_contain_text("Not seen.")
        expect(answer.get_by_text(f"Edited by {person.name}", exact=True)).to_be_visible()
        expect(answer.get_by_text("2 of 2", exact=True)).to_be_visible()
        check_both_screens(tab, f"edited-answer-{size[0]}")
        page.set_viewport_size({"width": size[0], "height": size[1]})
        answer.get_by_role("button", name="Earlier version").click()
        expect(answer.get_by_text("Seen.", exact=True)).to_be_visible()
        expect(answer.get_by_text("Edited by")).to_be_hidden()
        answer.get_by_role("button", name="Later version").click()
        expect(answer.get_by_text("Not seen.", exact=True)).to_be_visible()


def test_appearance_and_keys_are_remembered(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/settings/appearance")
        page.get_by_label("Text size").select_option("Larger")
        page.get_by_label("Contrast").select_option("High")
        page.get_by_label("Motion").select_option("Reduced")
        page.get_by_label("The Enter key").select_option("Begins a new line")
        page.reload()
        root = page.locator("html")
        for name, value in (("text", "larger"), ("contrast", "high"), ("motion", "reduced")):
            expect(root).to_have_attribute(f"data-{name}", value)
        assert page.evaluate("getComputedStyle(document.documentElement).fontSize") == "18px"
        check_both_screens(tab, "appearance-high-contrast")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.get_by_label("A sound").check()
        page.reload()
        expect(page.get_by_label("A sound")).to_be_checked()
        page.goto(f"{tab.url}/ui/chat?new=")
        field = page.get_by_label("Message", exact=True)
        expect(field).to_be_focused()
        expect(page.get_by_text("Ctrl+Enter sends, Enter makes a new line")).to_be_visible()
        page.keyboard.type("one")
        page.keyboard.press("Enter")
        page.keyboard.type("two")
        expect(field).to_have_value("one\ntwo")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Seen.")
        check_both_screens(tab, "chat-high-contrast")


NOTICES = """() => {
  window.shownNotices = []
  window.Notification = class {
    static permission = 'default'
    static requestPermission() { this.permission = 'granted'; return Promise.resolve('granted') }
    constructor(title, options) { window.shownNotices.push([title, options.body]) }
  }
  document.hasFocus = () => false
}"""


def test_the_desktop_says_what_ends_while_one_looks_elsewhere(person: Person) -> None:
    chat = person.post("/conversations", {"title": "Elsewhere"})["id"]
    with person.tab() as tab:
        tab.page.add_init_script(f"({NOTICES})()")
        page = tab.open("/ui/settings/appearance")
        page.get_by_label("Desktop notices").check()
        expect(page.get_by_label("Desktop notices")).to_be_checked()
        body = {"conversation_id": chat, "content": "hello", "tools": False}
        person.api.post("/messages/stream", json=body).raise_for_status()
        page.wait_for_function("() => window.shownNotices.length > 0")
        assert page.evaluate("window.shownNotices") == [["Elsewhere", "Done"]]
