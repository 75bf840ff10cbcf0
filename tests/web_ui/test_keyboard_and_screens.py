"""Keyboard only, input methods, screen readers, small screens, and axe on every page in both themes."""

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Call, Rule, Script, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import PHONE, take_screenshots
from web_ui.person import Person
from web_ui.test_chat_runs import choose_all_tools


@pytest.fixture(scope="module")
def script() -> Script:
    call = Call(name="python_eval", arguments={"expression": "1 + 1"})
    return Script(
        rules=[
            Rule(when=When(user="evaluate", has_tool_result=False), reply=[call]),
            Rule(when=When(user="evaluate", has_tool_result=True), reply=[Text(text="Evaluated.")]),
            Rule(when=When(user="hello"), reply=[Text(text="Hello to you")]),
        ]
    )


def test_chat_approval_and_commands_with_the_keyboard_only(person: Person) -> None:
    person.put("/permissions/rules?scope=user", [{"tool": "python_eval", "action": "ask"}])
    with person.tab() as tab:
        page = tab.open()
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        page.get_by_role("button", name="Tools for the next messages").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("combobox", name="Search tools")).to_be_focused()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Tools for the next messages: All I may use")).to_be_focused()
        page.keyboard.press("Control+k")
        page.keyboard.type("new chat")
        page.keyboard.press("Enter")
        page.get_by_label("Message", exact=True).focus()
        page.keyboard.type("evaluate")
        page.keyboard.press("Enter")
        once = page.get_by_role("button", name="Once")
        expect(once).to_be_visible()
        for _ in range(40):
            if once.evaluate("each => each === document.activeElement"):
                break
            page.keyboard.press("Shift+Tab")
        expect(once).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Evaluated.")
        page.keyboard.press("Control+k")
        page.keyboard.type("theme dark")
        page.keyboard.press("Enter")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


SENDS_NOTHING = """field => {
  let heard = 0
  const count = () => { heard += 1 }
  field.addEventListener('keydown', count)
  field.focus()
  // Chromium's order, and Safari's: the composition ends before its Enter, which only has the key code then.
  for (const [order, init] of [['key', { isComposing: true }], ['end', { keyCode: 229 }]]) {
    const ended = new CompositionEvent('compositionend', { bubbles: true, data: '你好' })
    if (order === 'end') field.dispatchEvent(ended)
    for (const key of ['Enter', 'Escape', 'Tab', 'ArrowDown']) {
      field.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true, ...init }))
    }
    const enter = new KeyboardEvent('keydown', { key: 'Enter', bubbles: true, cancelable: true, ...init })
    if (field.dispatchEvent(enter)) field.form?.requestSubmit()
    if (order === 'key') field.dispatchEvent(ended)
  }
  field.removeEventListener('keydown', count)
  return heard
}"""


def test_enter_of_an_input_method_never_sends(person: Person) -> None:
    chat = person.post("/conversations", {"title": "Old title"})["id"]
    room = person.post("/chat-rooms", {"title": "R", "task": "t", "agents": [{"name": "A"}]})["id"]
    with person.tab() as tab:
        page = tab.open()
        sent: list[str] = []
        page.on("request", lambda request: sent.append(f"{request.method} {request.url}"))
        field = page.get_by_label("Message", exact=True)
        field.fill("ni hao")
        assert field.evaluate(SENDS_NOTHING) == 0
        expect(field).to_have_value("ni hao")
        entry = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="Old title"))
        entry.hover()
        entry.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Rename").click()
        title = page.get_by_label("Title", exact=True)
        title.fill("xin")
        assert title.evaluate(SENDS_NOTHING) == 0
        expect(title).to_have_value("xin")
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        words = page.get_by_role("dialog").get_by_role("combobox")
        words.fill("theme dark")
        assert words.evaluate(SENDS_NOTHING) == 0
        expect(words).to_be_focused()
        page.keyboard.press("Escape")
        page.goto(f"{tab.url}/ui/rooms/{room}")
        field = page.get_by_label("Say something", exact=False)
        field.fill("ni hao")
        assert field.evaluate(SENDS_NOTHING) == 0
        expect(field).to_have_value("ni hao")
        page.goto(f"{tab.url}/ui/chat/{chat}")
        page.get_by_role("button", name="Details").click()
        tag = page.get_by_label("Add a tag")
        tag.fill("biao qian")
        assert tag.evaluate(SENDS_NOTHING) == 0
        expect(tag).to_have_value("biao qian")
        changes = [each for each in sent if not each.startswith("GET ") and "/auth/" not in each]
        assert changes == []


def test_screen_readers_hear_the_finished_answer(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        page.get_by_label("Message", exact=True).fill("hello")
        page.keyboard.press("Enter")
        expect(page.locator("main [aria-live=polite], [aria-live=polite].sr-only").first).to_contain_text(
            "Hello to you"
        )
        assert page.locator("article[aria-label=Answer]").get_attribute("aria-live") is None


def test_axe_finds_nothing_serious_on_the_chat_pages(person: Person) -> None:
    person.put("/permissions/rules?scope=user", [{"tool": "python_eval", "action": "ask"}])
    with person.tab() as tab:
        page = tab.open()
        expect(page.get_by_text("No conversations yet")).to_be_visible()
        check_both_themes(tab, "axe-start")
        choose_all_tools(page)
        page.get_by_label("Message", exact=True).fill("evaluate")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Once")).to_be_visible()
        page.get_by_role("button", name="Details").click()
        expect(page.get_by_role("heading", name="System prompt")).to_be_visible()
        check_both_themes(tab, "chat-details")
        page.get_by_role("button", name="Once").click()
        expect(page.get_by_role("button", name="Answer again")).to_be_visible()
        page.keyboard.press("Control+k")
        expect(page.get_by_role("option", name="New chat")).to_be_visible()
        check_both_themes(tab, "palette")


def test_everything_can_be_reached_on_a_phone(person: Person) -> None:
    with person.tab(PHONE) as tab:
        page = tab.open()
        expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
        take_screenshots(tab, "phone-list")
        page.get_by_role("link", name="New chat").click()
        page.get_by_label("Message", exact=True).fill("hello")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Hello to you")
        page.get_by_role("button", name="Details").click()
        expect(page.get_by_role("heading", name="System prompt")).to_be_visible()
        take_screenshots(tab, "phone-details")
        page.get_by_role("button", name="Close the details").click()
        page.keyboard.press("Control+k")
        expect(page.get_by_role("option", name="New chat")).to_be_visible()
        # List and page are never side by side here.
        expect(page.get_by_role("option", name="Hide the list")).to_have_count(0)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Conversations").click()
        expect(page.get_by_role("link", name="hello")).to_be_visible()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE[0]
        check_both_themes(tab, "phone-list-2")


def test_fields_do_not_enlarge_the_page_of_a_phone(person: Person) -> None:
    """Safari does so for a field whose text is smaller than 16 pixels."""
    with person.tab(PHONE, is_touched=True) as tab:
        for path in ("/ui/chat?new", "/ui/rooms/new", "/ui/agents/new", "/ui/settings/defaults"):
            page = tab.open(path)
            expect(page.locator("textarea").first).to_be_visible()
            fields = page.locator("textarea, select, input:not([type=checkbox], [type=color], [type=file])")
            sizes = fields.evaluate_all("all => all.map(each => parseFloat(getComputedStyle(each).fontSize))")
            assert min(sizes) >= 16, path
