"""Voice by the browser: answers are read aloud, and what is dictated stands in the field. The interfaces of
the browser are replaced in the page: here they are the edge of the network."""

import pytest
from playwright.sync_api import Page, expect

from luxx.providers.scripted import Rule, Script, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import LAPTOP, PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy
ANSWER = """# Regen

Das Wetter ist **nicht** schön, und `pip` hilft nicht.

```python
print("code")
```

$$E = mc^2$$
"""

STUB = """
window.spoken = []; window.cancelled = 0; window.isHeld = false; window.voices = []
const speech = new EventTarget()
speech.getVoices = () => window.voices
speech.cancel = () => { window.cancelled += 1 }
speech.speak = (said) => {
  window.spoken.push([said.text, said.lang])
  if (!window.isHeld) setTimeout(() => said.onend && said.onend())
}
Object.defineProperty(window, 'speechSynthesis', { value: speech })
window.SpeechSynthesisUtterance = class { constructor(text) { this.text = text } }
window.SpeechRecognition = window.webkitSpeechRecognition = class extends EventTarget {
  start() { window.recognition = this; window.started = (window.started || 0) + 1 }
  stop() { this.dispatchEvent(new Event('end')) }
}
window.hear = (words, isFinal) => {
  const results = [Object.assign([{ transcript: words }], { isFinal })]
  window.recognition.dispatchEvent(Object.assign(new Event('result'), { results, resultIndex: 0 }))
}
window.refuse = (error) => {
  window.recognition.dispatchEvent(Object.assign(new Event('error'), { error }))
  window.recognition.dispatchEvent(new Event('end'))
}
"""
VOICES = """window.voices = [
  { lang: 'en-GB', localService: true },
  { lang: 'de-AT', localService: false },
  { lang: 'de-DE', localService: true },
]"""


@pytest.fixture(scope="module")
def script() -> Script:
    code = "```\nonly code\n```"
    return Script(
        rules=[
            Rule(when=When(user="code"), reply=[Text(text=code)]),
            Rule(when=When(), reply=[Text(text=ANSWER)]),
        ]
    )


def read_aloud(page: Page) -> None:
    answer = page.get_by_role("article", name="Answer").last
    answer.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Read aloud").click()


def ask(page: Page, words: str, answers: int) -> None:
    box = page.get_by_role("textbox", name="Message")
    box.fill(words)
    box.press("Enter")
    expect(page.get_by_role("article", name="Answer")).to_have_count(answers)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_an_answer_is_read_in_its_language_until_it_ends_or_is_stopped(
    person: Person, size: tuple[int, int]
) -> None:
    with person.tab(size) as tab:
        tab.page.add_init_script(STUB)
        page = tab.open("/ui/chat?new")
        ask(page, "Wie ist das Wetter?", 1)
        bar = page.get_by_role("region", name="Reading aloud")
        alert = bar.get_by_role("alert")
        read_aloud(page)
        expect(alert).to_have_text(
            "This browser has no voice to read with. "
            "Install one in the settings of the system, under speech or accessibility."
        )
        check_both_themes(tab, f"no-voice-{size[0]}")
        bar.get_by_role("button", name="Close").click()
        page.evaluate("window.voices = [{ lang: 'en-GB', localService: true }]")
        read_aloud(page)
        expect(alert).to_contain_text("no voice for this language: German.")
        bar.get_by_role("button", name="Close").click()

        page.evaluate(VOICES)
        read_aloud(page)
        # It closes by itself when all is said.
        expect(bar).to_be_hidden()
        said = [["Regen", "de-DE"], ["Das Wetter ist nicht schön, und pip hilft nicht.", "de-DE"]]
        assert page.evaluate("spoken") == said
        page.evaluate("spoken.length = 0; isHeld = true")
        read_aloud(page)
        expect(bar.get_by_role("status")).to_have_text("Reading aloud")
        check_both_themes(tab, f"reading-{size[0]}")
        before = page.evaluate("cancelled")
        bar.get_by_role("button", name="Stop").click()
        expect(bar).to_be_hidden()
        assert page.evaluate("[spoken.length, cancelled]") == [1, before + 1]
        # Leaving the page stops it too.
        read_aloud(page)
        expect(bar).to_be_visible()
        page.get_by_role("link", name="Files").first.click()
        expect(bar).to_be_hidden()
        assert page.evaluate("cancelled") == before + 2

        page.go_back()
        ask(page, "Show code", 2)
        page.evaluate("isHeld = false")
        read_aloud(page)
        expect(alert).to_have_text("There is nothing to read aloud here: code and formulas are left out.")


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_dictated_words_stand_at_the_caret_and_nothing_is_sent(person: Person, size: tuple[int, int]) -> None:
    with person.tab(size) as tab:
        tab.page.add_init_script(STUB)
        page = tab.open("/ui/chat?new")
        assert page.evaluate("!document.featurePolicy || document.featurePolicy.allowsFeature('microphone')")
        box = page.get_by_role("textbox", name="Message")
        box.fill("Say  now")
        box.evaluate("area => area.setSelectionRange(4, 4)")
        button = page.get_by_role("button", name="Dictate")
        bar = page.get_by_role("region", name="Dictation")
        button.click()
        expect(bar).to_contain_text("Some browsers send the sound to their maker")
        assert page.evaluate("window.started") is None
        check_both_themes(tab, f"dictation-asks-{size[0]}")
        bar.get_by_role("button", name="Start dictation").click()
        expect(bar.get_by_role("status")).to_have_text("Listening…")
        box.evaluate("area => area.setSelectionRange(4, 4)")
        page.evaluate("hear('hello wor', false)")
        expect(bar.get_by_role("status")).to_have_text("hello wor")
        check_both_themes(tab, f"dictation-{size[0]}")
        page.evaluate("hear('hello world', true)")
        expect(box).to_have_value("Say hello world now")
        page.evaluate("hear(' again', true)")
        expect(box).to_have_value("Say hello world again now")
        bar.get_by_role("button", name="Done").click()
        expect(bar).to_be_hidden()
        assert person.get("/conversations")["items"] == []

        # What becomes of the sound is said once; a refusal is said beside the field.
        page.reload()
        button.click()
        expect(bar.get_by_role("status")).to_be_visible()
        page.evaluate("refuse('not-allowed')")
        expect(bar.get_by_role("alert")).to_contain_text("The browser refuses the microphone.")
        check_both_themes(tab, f"dictation-refused-{size[0]}")
        bar.get_by_role("button", name="Close").click()
        button.click()
        page.evaluate("refuse('no-speech')")
        expect(bar.get_by_role("alert")).to_contain_text("Nothing was heard.")


def test_there_is_no_button_where_the_browser_cannot_listen_or_speak(person: Person) -> None:
    with person.tab() as tab:
        tab.page.add_init_script(
            "delete window.webkitSpeechRecognition; delete window.SpeechRecognition;"
            "delete window.speechSynthesis"
        )
        page = tab.open("/ui/chat?new")
        ask(page, "Wie ist das Wetter?", 1)
        expect(page.get_by_role("button", name="Dictate")).to_have_count(0)
        page.get_by_role("article", name="Answer").get_by_role("button", name="More actions").click()
        expect(page.get_by_role("menuitem", name="Copy the conversation up to here")).to_be_visible()
        expect(page.get_by_role("menuitem", name="Read aloud")).to_have_count(0)
