"""Pages of artifacts that a model writes anew, and what somebody else saved meanwhile."""

import pytest
from api.server_process import ServerProcess
from playwright.sync_api import Browser, Page, expect

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_screens
from web_ui.browser import LAPTOP, open_tab
from web_ui.person import Person
from web_ui.test_artifacts import create, mode

pytestmark = pytest.mark.heavy

BEFORE = "## Ingredients\n\n- flour\n- water\n- salt"
TABLE = "## Ingredients\n\n| what | grams |\n| --- | ---: |\n| flour | 500 |\n| water | 350 |"


@pytest.fixture(scope="module")
def script() -> Script:
    start, end = TABLE[:40], TABLE[40:]
    gated = {"as a table": "table", "als Tabelle": "other", "stop this": "stop", "late": "late"}
    rules = [
        Rule(when=When(user=asked), reply=[Text(text=start, pieces=4), Gate(name=gate), Text(text=end)])
        for asked, gate in gated.items()
    ]
    return Script(rules=[*rules, Rule(when=When(user="as it is"), reply=[Text(text=BEFORE)])])


def ask_for(page: Page, instructions: str) -> None:
    page.get_by_label("What should become of page 2?").fill(instructions)
    page.get_by_role("button", name="Write it again").click()


def open_form(page: Page) -> None:
    page.get_by_role("list", name="Pages").get_by_role("button").nth(1).click()
    mode(page, "Change with a model")


def text_of(person: Person, deck: str) -> str:
    return str(person.get(f"/artifacts/{deck}/content", page=2)["content"]).strip()


def test_a_page_is_written_anew_and_kept_or_discarded(
    person: Person, browser: Browser, server: ServerProcess, models: ScriptedProvider
) -> None:
    deck = create(person, "ppt")
    with (
        person.profile() as profile,
        open_tab(browser, server.url, profile=profile) as tab,
        open_tab(browser, server.url, profile=profile) as second,
    ):
        page = tab.open(f"/ui/artifacts/{deck}")
        open_form(page)
        page.get_by_label("What should become of page 2?").fill("as a table")
        check_both_screens(tab, "regenerate-form")
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
        ask_for(page, "as a table")
        expect(page.get_by_text("Page 2 is being written")).to_be_visible()
        stream = page.get_by_role("region", name="New text")
        expect(stream).to_contain_text("| what |")
        page.wait_for_function("document.activeElement.closest('section') !== null")
        check_both_screens(tab, "regenerate-stream")
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})

        # A reload and another tab show the same.
        page.reload()
        expect(stream).to_contain_text("| what |")
        other = second.open(f"/ui/artifacts/{deck}")
        expect(other.get_by_role("region", name="New text")).to_contain_text("| what |")
        models.release("table")
        expect(page.get_by_role("heading", name="Before and after")).to_be_visible()
        expect(other.get_by_role("heading", name="Before and after")).to_be_visible()
        page.reload()
        expect(page.get_by_role("img", name="Page 2. Ingredients")).to_have_count(2)
        expect(page.get_by_role("group", name="Difference")).to_contain_text("+| flour | 500 |")
        check_both_screens(tab, "regenerate-compare")
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})

        # Another page that somebody changed since stays changed, and the instructions stay.
        person.put(f"/artifacts/{deck}/content", {"page": 1, "content": "# Spelt bread", "base_version": 2})
        page.get_by_role("button", name="Discard it").click()
        expect(page.get_by_text("The old text is back.")).to_be_visible()
        expect(page.get_by_label("What should become of page 2?")).to_have_value("as a table")
        content = person.get(f"/artifacts/{deck}/content")["content"]
        assert "# Spelt bread" in content
        assert BEFORE in content

        ask_for(page, "as a table")
        expect(page.get_by_role("heading", name="Before and after")).to_be_visible()
        page.get_by_role("button", name="Keep it").click()
        assert text_of(person, deck) == TABLE
        expect(page.get_by_role("list", name="Pages")).to_be_visible()
        mode(page, "Change with a model")
        expect(page.get_by_label("What should become of page 2?")).to_have_value("")


def test_what_stops_or_fails_keeps_the_instructions(person: Person, models: ScriptedProvider) -> None:
    deck = create(person, "ppt")
    with person.tab() as tab:
        page = tab.open(f"/ui/artifacts/{deck}")
        open_form(page)
        ask_for(page, "stop this")
        expect(page.get_by_role("region", name="New text")).to_contain_text("| what |")
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("alert")).to_have_text("It was stopped.")
        expect(page.get_by_label("What should become of page 2?")).to_have_value("stop this")
        assert text_of(person, deck) == BEFORE

        page.get_by_label("What should become of page 2?").fill("as it is")
        page.get_by_role("button", name="Write it again").click()
        expect(page.get_by_role("alert")).to_have_text("The page has not changed.")
        tab.expected_problems.append("400")
        page.get_by_label("What should become of page 2?").fill("x" * 10_001)
        page.get_by_role("button", name="Write it again").click()
        expect(page.locator("[aria-invalid=true]")).to_be_visible()
        expect(page.get_by_label("What should become of page 2?")).to_have_value("x" * 10_001)


def test_what_somebody_else_saved_is_never_replaced_unseen(person: Person, models: ScriptedProvider) -> None:
    deck = create(person, "ppt")
    with person.tab() as tab:
        page = tab.open(f"/ui/artifacts/{deck}")
        open_form(page)
        ask_for(page, "late")
        expect(page.get_by_role("region", name="New text")).to_contain_text("| what |")
        other = {"page": 2, "content": "## Ingredients\n\n- spelt", "base_version": 1}
        person.put(f"/artifacts/{deck}/content", other)
        models.release("late")
        expect(page.get_by_role("alert")).to_contain_text("was changed or deleted while")
        expect(page.get_by_role("region", name="What the model wrote")).to_contain_text("| water | 350 |")
        check_both_screens(tab, "regenerate-late")
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
        page.get_by_role("button", name="Use it as the source").click()
        expect(page.get_by_label("Yours", exact=True)).to_have_value(TABLE)
        expect(page.get_by_label("The newest version", exact=True)).to_contain_text("- spelt")
        page.get_by_role("button", name="Take the newest").click()
        assert text_of(person, deck) == "## Ingredients\n\n- spelt"

        # Between the new page and its discard.
        mode(page, "Change with a model")
        ask_for(page, "late")
        expect(page.get_by_role("heading", name="Before and after")).to_be_visible()
        other = {"page": 2, "content": "## Ingredients\n\n- oats", "base_version": 3}
        person.put(f"/artifacts/{deck}/content", other)
        page.get_by_role("button", name="Discard it").click()
        expect(page.get_by_label("Yours", exact=True)).to_have_value("## Ingredients\n\n- spelt")
        expect(page.get_by_label("The newest version", exact=True)).to_contain_text("- oats")
        assert text_of(person, deck) == "## Ingredients\n\n- oats"


def test_a_page_is_written_anew_in_chinese(person: Person, models: ScriptedProvider) -> None:
    deck = create(person, "ppt")
    with person.tab() as tab:
        tab.page.add_init_script("localStorage.setItem('luxx.language', 'zh')")
        page = tab.open(f"/ui/artifacts/{deck}")
        page.get_by_role("list", name="页面").get_by_role("button").nth(1).click()
        page.get_by_role("button", name="用模型修改").click()
        page.get_by_label("第 2 页应如何修改？").fill("als Tabelle")
        page.get_by_role("button", name="重新撰写").click()
        expect(page.get_by_text("正在撰写第 2 页")).to_be_visible()
        check_both_screens(tab, "regenerate-stream-zh")
        models.release("other")
        expect(page.get_by_role("heading", name="修改前后")).to_be_visible()
        check_both_screens(tab, "regenerate-compare-zh")
        page.get_by_role("button", name="保留").click()
        expect(page.get_by_role("list", name="页面")).to_be_visible()
