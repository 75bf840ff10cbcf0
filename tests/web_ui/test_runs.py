"""The pages of runs: the list, a run as it works, and the timeline of one that has ended."""

import re

import pytest
from playwright.sync_api import Page, expect

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, Thinking, When
from web_ui.axe import check_both_themes
from web_ui.browser import PHONE, take_screenshots
from web_ui.person import Person


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            Rule(
                when=When(user="calculate", has_tool_result=False),
                reply=[
                    Thinking(text="I need the tool for this."),
                    Call(name="python_eval", arguments={"expression": "6 * 7"}),
                ],
            ),
            Rule(
                when=When(user="calculate", has_tool_result=True), reply=[Text(text="The result is **42**.")]
            ),
            Rule(when=When(user="fail"), status=401, message="this key has expired", reply=[]),
            Rule(when=When(user="only the result"), reply=[Text(text="A shed for tools.")]),
            Rule(
                when=When(user="slowly"),
                reply=[Text(text="one two"), Gate(name="slow"), Text(text=" three.")],
            ),
        ]
    )


def calculate(person: Person) -> str:
    """A run with thinking, a permission that was asked for, a tool call and an answer. Returns its id."""
    chat = person.post("/conversations", {"title": "Sums"})["id"]
    person.put("/permissions/rules?scope=user", [{"tool": "python_eval", "action": "ask"}])
    body = {"conversation_id": chat, "content": "calculate", "tools": True}
    run_id = str(person.post("/messages/stream", body)["id"])
    person.wait_for(run_id, "waiting")
    [question] = person.get(f"/runs/{run_id}/questions")["items"]
    person.post(f"/runs/{run_id}/questions/{question['id']}/answer", {"answer": "once"})
    person.wait_for(run_id, "completed")
    return run_id


def steps_shown(page: Page) -> list[str]:
    """What the transcript shows: of the thinking, the question, the call and the answer."""
    shown = page.get_by_role("region", name="Transcript")
    looked_for = {
        "thinking": shown.get_by_role("button", name="Thought"),
        "question": shown.get_by_text("The run waited for an answer at this moment."),
        "call": shown.get_by_role("button", name="python_eval"),
        "answer": shown.get_by_text("The result is 42."),
    }
    return [name for name, locator in looked_for.items() if locator.count() > 0]


def test_the_timeline_of_a_finished_run_is_scrubbed_and_nothing_is_called_again(
    person: Person, models: ScriptedProvider
) -> None:
    run_id = calculate(person)
    calls, runs = len(models.requests), person.get("/runs")["total"]
    with person.tab() as tab:
        page = tab.open("/ui/runs")
        page.get_by_role("complementary", name="Runs").get_by_role("link", name="Sums").click()
        expect(page.get_by_role("heading", name="Chat: Sums")).to_be_visible()
        slider = page.get_by_role("slider", name="Timeline")
        expect(page.get_by_text("The result is 42.")).to_be_visible()
        # The scripted model has no price.
        expect(page.get_by_role("main").locator("dl").first).to_contain_text(re.compile(r"Cost\s*unknown"))
        take_screenshots(tab, "run")
        end = int(slider.get_attribute("max") or 0)
        assert slider.input_value() == str(end)
        whole = steps_shown(page)
        assert whole == ["thinking", "call", "answer"]

        slider.focus()
        page.keyboard.press("Home")
        expect(page.get_by_text("Nothing had happened yet.")).to_be_visible()
        seen: list[list[str]] = []
        for number in range(1, end + 1):
            page.keyboard.press("ArrowRight")
            # Its value is there at once, and the page of it later.
            expect(slider).to_have_attribute("aria-valuetext", re.compile(rf"Event {number} of {end}\b"))
            seen.append(steps_shown(page))
        assert seen[0] != whole
        assert seen[-1] == whole
        assert any("question" in each for each in seen)
        assert ["thinking"] in seen

        page.get_by_role("region", name="Events").get_by_role("button", name="Thinking").click()
        assert steps_shown(page) == ["thinking"]
        page.get_by_role("button", name="Play").click()
        expect(slider).to_have_value(str(end))
        expect(page.get_by_role("button", name="Play")).to_be_visible()
        expect(page.get_by_text(f"Event {end} of {end}")).to_be_visible()
        assert steps_shown(page) == whole
        check_both_themes(tab, "run-timeline")
    assert len(models.requests) == calls
    assert person.get("/runs")["total"] == runs
    assert person.get(f"/runs/{run_id}")["status"] == "completed"


def test_a_run_that_works_is_followed_stopped_and_then_has_a_timeline(
    person: Person, models: ScriptedProvider
) -> None:
    chat = person.post("/conversations", {})["id"]
    body = {"conversation_id": chat, "content": "slowly"}
    run_id = person.post("/messages/stream", body)["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/runs/{run_id}")
        expect(page.get_by_text("one two")).to_be_visible()
        expect(page.get_by_role("slider")).to_have_count(0)
        page.get_by_role("main").get_by_role("button", name="Stop").click()
        expect(page.get_by_role("slider", name="Timeline")).to_be_visible()
        expect(page.get_by_role("main").get_by_text("Stopped", exact=True)).to_be_visible()
        assert person.get(f"/runs/{run_id}")["status"] == "cancelled"
    models.release("slow")


def test_runs_are_filtered_reached_from_an_answer(person: Person) -> None:
    run_id = calculate(person)
    with person.tab() as tab:
        page = tab.open("/ui/runs")
        runs = page.get_by_role("complementary", name="Runs")
        runs.get_by_label("State").select_option("failed")
        expect(runs.get_by_text("No such runs")).to_be_visible()
        runs.get_by_label("State").select_option("completed")
        runs.get_by_role("link", name="Sums").click()
        page.get_by_role("link", name="Open the chat").click()
        answer = page.get_by_role("article", name="Answer")
        answer.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Open the timeline").click()
        expect(page).to_have_url(f"{tab.url}/ui/runs/{run_id}")
        tab.expected_problems.append("404")
        page.goto(f"{tab.url}/ui/runs/01a201c1-9860-7658-90cf-d1532fa01612")
        expect(page.get_by_role("alert")).to_contain_text("run")
        expect(page.get_by_role("button", name="Try again")).to_have_count(0)
        page.get_by_role("button", name="Back to the list").click()
        expect(page).to_have_url(f"{tab.url}/ui/runs")


def test_a_timeline_says_once_what_failed_and_what_came_out(person: Person) -> None:
    chat = person.post("/conversations", {"title": "Key"})["id"]
    failed = person.api.post("/messages", json={"conversation_id": chat, "content": "fail", "tools": False})
    assert failed.status_code >= 400
    [failed_run] = person.get("/runs")["items"]
    steps = [
        {"id": "a", "name": "Measure", "goal": "only the result"},
        {"id": "b", "name": "Build", "goal": "only the result", "depends_on": ["a"]},
    ]
    task = person.post("/tasks", {"name": "Shed", "goal": "only the result", "steps": steps})["id"]
    task_run = person.post(f"/tasks/{task}/execute")["id"]
    person.wait_for(task_run, "completed")
    with person.tab() as tab:
        page = tab.open(f"/ui/runs/{failed_run['id']}")
        shown = page.get_by_role("region", name="Transcript")
        expect(shown.get_by_text("this key has expired")).to_have_count(1)
        expect(shown.get_by_text("Nothing had happened yet.")).to_have_count(0)
        page = tab.open(f"/ui/runs/{task_run}")
        events = page.get_by_role("region", name="Events")
        expect(events.get_by_role("button", name="Step ends Done").first).to_be_visible()
        result = shown.get_by_role("region", name="Result")
        expect(result).to_have_count(1)
        # Of the two steps and of the result.
        written = person.get(f"/tasks/{task}")["result"]
        expect(shown.get_by_text(written)).to_have_count(3)


def test_runs_on_a_phone(person: Person) -> None:
    with person.tab(PHONE) as tab:
        page = tab.open("/ui/runs")
        expect(page.get_by_text("No runs yet")).to_be_visible()
        check_both_themes(tab, "phone-runs-empty")
        calculate(person)
        page.reload()
        page.get_by_role("complementary", name="Runs").get_by_role("link", name="Sums").click()
        expect(page.get_by_role("slider", name="Timeline")).to_be_visible()
        check_both_themes(tab, "phone-run")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
