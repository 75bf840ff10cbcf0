"""The chat page: answers as they are written, steps, and what model output must not do."""

from playwright.sync_api import expect

from luxx.providers.scripted import ScriptedProvider
from web_ui.browser import PHONE, take_screenshots
from web_ui.person import Person
from web_ui.scripts import hostile_corpus
from web_ui.test_chat_runs import choose_all_tools


def test_a_first_message_begins_a_conversation(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        take_screenshots(tab, "chat-start")
        page.get_by_label("Message", exact=True).fill("hello")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Hello to you")
        expect(page.get_by_role("heading", name="hello")).to_be_visible()
        expect(page.get_by_role("link", name="hello")).to_be_visible()
        assert person.get("/conversations")["total"] == 1


def test_thinking_closes_with_its_duration_and_a_tool_card_shows_arguments_and_output(
    person: Person, models: ScriptedProvider
) -> None:
    with person.tab() as tab:
        page = tab.open()
        choose_all_tools(page)
        page.get_by_label("Message", exact=True).fill("calculate")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("I need the tool for this.")).to_be_visible()
        models.release("thought")
        expect(page.get_by_text("42", exact=True)).to_be_visible()
        expect(page.get_by_text("I need the tool for this.")).to_be_hidden()
        thought = page.get_by_role("button", name="Thought for")
        thought.click()
        expect(page.get_by_text("I need the tool for this.")).to_be_visible()
        card = page.get_by_role("button", name="python_eval")
        expect(card).to_contain_text("6 * 7")
        expect(card).to_contain_text("Done")
        card.click()
        expect(page.get_by_role("group", name="What is asked for")).to_have_text(">>> 6 * 7")
        expect(page.get_by_role("group", name="Output")).to_have_text("42")
        take_screenshots(tab, "chat-tool")


def test_markdown_is_drawn_with_code_math_tables_and_diagrams(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        page.get_by_label("Message", exact=True).fill("markdown")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Greenhouses")).to_be_visible()
        expect(page.locator(".katex").first).to_be_visible()
        expect(page.locator(".hljs-keyword").first).to_be_visible()
        expect(page.locator(".katex-display")).to_have_count(3)
        expect(
            page.get_by_role("paragraph").filter(has_text="$5 now and 6$ later: echo $HOME:$PATH.")
        ).to_be_visible()
        expect(page.locator("strong", has_text="（测试）")).to_be_visible()
        expect(page.get_by_role("checkbox", name="order film")).to_be_checked()
        expect(page.get_by_role("checkbox", name="order glass")).not_to_be_checked()
        diagram = page.locator("img.diagram")
        expect(diagram).to_be_visible()
        light = diagram.get_attribute("src")
        page.keyboard.press("Control+k")
        page.keyboard.type("theme dark")
        page.keyboard.press("Enter")
        expect(diagram).not_to_have_attribute("src", light or "")
        expect(diagram).to_have_count(1)
        take_screenshots(tab, "chat-markdown")
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        take_screenshots(tab, "chat-markdown-phone")


REACHES = """async () => {
  const found = { origin: self.origin }
  const tries = {
    page: () => parent.document.title,
    storage: () => localStorage.length,
    session: () => sessionStorage.length,
    cookies: () => document.cookie,
    database: () => indexedDB.open('x') && new Promise((ok, no) => setTimeout(no, 300)),
    network: () => fetch('/health'),
    image: () => new Promise((ok, no) => {
      const image = Object.assign(new Image(), { onload: ok, onerror: no })
      image.src = '/ui/icon.svg'
    }),
    window: () => open('/ui/') ?? Promise.reject(),
  }
  for (const [name, attempt] of Object.entries(tries)) {
    found[name] = await (async () => attempt())().then(() => true, () => false)
  }
  return found
}"""


def test_the_frame_of_diagrams_reaches_nothing(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        page.get_by_label("Message", exact=True).fill("markdown")
        page.keyboard.press("Enter")
        diagram = page.locator("img.diagram")
        expect(diagram).to_be_visible()
        assert diagram.evaluate("each => each.naturalWidth") > 100
        assert page.locator("iframe.diagram-frame").get_attribute("sandbox") == "allow-scripts"
        (frame,) = (each for each in page.frames if each.url.endswith("/ui/diagram.html"))
        tab.expected_problems += ["Content Security Policy", "Blocked opening", "sandboxed"]
        reached = frame.evaluate(REACHES)
        assert reached.pop("origin") == "null"
        assert not any(reached.values()), reached


def test_the_page_of_diagrams_has_no_origin_when_it_is_opened_by_itself(person: Person) -> None:
    policy = person.api.get("/ui/diagram.html").headers["content-security-policy"]
    assert policy.endswith("; sandbox allow-scripts")
    with person.tab() as tab:
        assert tab.open("/ui/diagram.html").evaluate("self.origin") == "null"


def test_hostile_output_stays_inert(person: Person) -> None:
    assert len(hostile_corpus()) >= 200
    with person.tab() as tab:
        # Only the frame that draws diagrams has this directive; it refuses what the library lets through.
        tab.expected_problems.append(
            "Executing inline event handler violates the following Content Security "
            "Policy directive 'script-src 'self''"
        )
        page = tab.open()
        page.get_by_label("Message", exact=True).fill("hostile")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Answer again")).to_be_visible()
        answer = page.get_by_role("article", name="Answer")
        expect(answer.get_by_text("The end.", exact=True)).to_be_visible()
        expect(answer.locator("img.diagram, .hljs-tag").first).to_be_visible()
        forbidden = "script, style, iframe, object, embed, form, input, video, audio, link, meta, base"
        forbidden += ", [style]:not(.katex *)"
        assert answer.locator(forbidden).evaluate_all("all => all.map(each => each.outerHTML)") == []
        for element in answer.locator("a, img").all():
            address = element.get_attribute("href") or element.get_attribute("src") or "https:"
            assert address.startswith(("https:", "http:", "mailto:", "blob:")), address
        for button in answer.locator("a:not([href]), .citation").all():
            button.click()
        assert page.evaluate("window.hacked") is None
