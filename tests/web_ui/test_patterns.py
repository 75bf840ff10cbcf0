"""Learned patterns in the web UI: written, changed, turned off, given in chats, judged and deleted."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_screens, check_both_themes
from web_ui.browser import PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy

CHART = {
    "name": "Chart of the sales",
    "description": "Makes a chart of sales.",
    "goal": "Make a chart of the sales in sales.csv",
    "steps": [{"description": "Read the file", "tools": ["file_read"], "decision_points": ["by month"]}],
}


def test_a_pattern_is_written_changed_turned_off_and_deleted(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/patterns")
        expect(page.get_by_text("Ways of working that went well")).to_be_visible()
        page.get_by_role("button", name="Write a pattern").click()
        page.get_by_label("Name", exact=True).fill("Chart of the sales")
        page.get_by_label("A request that it is for").fill("4711")
        page.get_by_label("What is done").fill("Read the file")
        page.get_by_role("textbox", name="Tools").fill("file_read, python_execute")
        tab.expected_problems.append("400")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("has no general word by which")).to_be_visible()
        expect(page.get_by_label("What is done")).to_have_value("Read the file")
        page.get_by_label("A request that it is for").fill("Make a chart of the sales of Anna Vogel")
        page.get_by_role("button", name="Add a step").click()
        page.get_by_label("What is done").last.fill("Draw the chart")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("heading", name="Chart of the sales")).to_be_visible()
        (pattern,) = person.get("/patterns")["items"]
        assert [step["tools"] for step in pattern["steps"]] == [["file_read", "python_execute"], []]
        assert "Vogel" not in pattern["signature"]
        expect(page.get_by_text("chart sale | name")).to_be_visible()
        check_both_themes(tab, "pattern")

        page.get_by_role("button", name="Archive").click()
        expect(page.get_by_text("Archived: it is not used")).to_be_visible()
        expect(page.get_by_text("changed the status")).to_be_visible()
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_text("Active: it is given")).to_be_visible()
        page.get_by_role("button", name="Delete the pattern").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page).to_have_url(f"{tab.url}/ui/patterns")
    assert person.get("/patterns")["items"] == []


def test_the_pattern_of_an_answer_leads_to_its_page_on_a_phone(person: Person) -> None:
    pattern = person.post("/patterns", CHART)
    with person.tab(size=PHONE) as tab:
        page = tab.open(f"/ui/patterns/{pattern['id']}")
        expect(page.get_by_text("Decided before: by month")).to_be_visible()
        check_both_themes(tab, "pattern-phone")
        page.get_by_label("Name", exact=True).fill("Chart of sales by month")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("changed the name")).to_be_visible()
    assert person.get(f"/patterns/{pattern['id']}")["steps"][0]["decision_points"] == ["by month"]


@pytest.fixture(scope="module")
def script() -> Script:
    plan = Rule(when=When(system="Split the goal"), reply=[Text(text='{"steps": [{"name": "Draw"}]}')])
    return Script(rules=[plan, Rule(reply=[Text(text="Here it is.")])])


@pytest.fixture
def learning(person: Person) -> Iterator[None]:
    with person.sign_in_as_admin() as admin:
        admin.put("/tenant", json={"learn_patterns": True}).raise_for_status()
        yield
        admin.put("/tenant", json={"learn_patterns": False}).raise_for_status()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_chat_asks_whether_the_pattern_is_used_and_shows_what_its_reader_thinks(
    person: Person, models: ScriptedProvider, learning: None, language: str
) -> None:
    use, line, useful, said_useful, switch = {
        "en": ("Use it", "A pattern that was learned", "Useful", "You found it useful.", "Learn from this"),
        "zh": ("使用", "已把从以往工作中学到的模式", "有用", "你认为它有用。", "从此对话中学习"),
    }[language]
    steps = [{"description": "Read the file", "decision_points": ["by month"]}, {"description": "Draw it"}]
    goal = "Make a chart of the sales" if language == "en" else "做一个销售图表"
    pattern = person.post("/patterns", CHART | {"name": goal, "goal": goal, "steps": steps})["id"]
    conversation = person.post("/conversations", {})["id"]
    with person.tab() as tab:
        tab.page.add_init_script(f"localStorage.setItem('luxx.language', '{language}')")
        page = tab.open(f"/ui/chat/{conversation}")
        page.get_by_role("textbox").last.fill(goal)
        page.keyboard.press("Enter")
        expect(page.get_by_text(goal).last).to_be_visible()
        expect(page.get_by_role("radio", name=use).first).to_be_checked()
        check_both_screens(tab, f"pattern-question-{language}")
        page.get_by_role("radiogroup").locator("xpath=ancestor::form").get_by_role("button").click()
        expect(page.get_by_role("article").get_by_text("Here it is.")).to_be_visible()
        page.get_by_text(line).click()
        expect(page.get_by_text("decided before: by month")).to_be_visible()
        page.get_by_role("button", name=useful, exact=True).click()
        expect(page.get_by_text(said_useful)).to_be_visible()
        check_both_screens(tab, f"pattern-line-{language}")
        assert person.get(f"/patterns/{pattern}")["useful"] is True

        details = "Details" if language == "en" else "详情"
        page.get_by_role("button", name=details).click()
        recorded = page.get_by_role("checkbox", name=switch)
        expect(recorded).to_be_checked()
        recorded.scroll_into_view_if_needed()
        check_both_screens(tab, f"pattern-switch-{language}")
        with page.expect_response(lambda answer: answer.request.method == "PUT"):
            recorded.uncheck()
        assert person.get(f"/conversations/{conversation}")["record"] is False
        page.reload()
        page.get_by_role("button", name=details).click()
        expect(page.get_by_role("checkbox", name=switch)).not_to_be_checked()


def test_a_task_names_the_pattern_of_its_plan(person: Person, learning: None) -> None:
    goal = "Make a chart of the sales"
    steps = [{"description": "Read the file"}, {"description": "Draw it"}]
    pattern = person.post("/patterns", CHART | {"name": goal, "goal": goal, "steps": steps})["id"]
    task = person.post("/tasks", {"name": "Chart", "goal": goal})["id"]
    person.wait_for(person.post(f"/tasks/{task}/execute")["id"], "completed")
    with person.tab() as tab:
        page = tab.open(f"/ui/tasks/{task}")
        page.get_by_text("The plan was drawn with a pattern").click()
        check_both_screens(tab, "task-pattern")
        # On a phone it stands in the other column.
        page.get_by_text("The plan was drawn with a pattern").click()
        page.get_by_role("main").locator(f"a[href$='/patterns/{pattern}']").click()
        expect(page.get_by_label("Name", exact=True)).to_have_value(goal)
