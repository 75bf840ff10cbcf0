"""The pages of tasks: a plan that is changed and run, the graph as it runs, a failure, a refused cycle."""

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import serious_violations
from web_ui.browser import LAPTOP, PHONE, take_screenshots
from web_ui.person import Person

PLAN = """{"steps": [
  {"id": "yield", "name": "Estimate the yield", "goal": "Kilowatt hours of a year."},
  {"id": "cost", "name": "Collect the costs", "goal": "Prices of the parts."},
  {"id": "advice", "name": "Give advice", "depends_on": ["yield", "cost"]}
]}"""


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            Rule(when=When(system="Split the goal"), reply=[Text(text=PLAN, pieces=5)]),
            Rule(
                when=When(user="Kilowatt hours of a year", has_tool_result=False),
                reply=[Call(name="python_eval", arguments={"expression": "0.8 * 850"})],
            ),
            Rule(
                when=When(user="Kilowatt hours of a year", has_tool_result=True),
                reply=[Text(text="The sun gives "), Gate(name="sun"), Text(text="**680** kilowatt hours.")],
            ),
            Rule(when=When(user="Prices of the parts"), reply=[Text(text="It costs 400 euros.")]),
            Rule(when=When(user="Fails once"), status=400, message="no such thing", times=1),
            Rule(when=When(user="Fails once"), reply=[Text(text="Now it works.")]),
            Rule(when=When(user="Your step .broken"), status=400, message="no such thing"),
            Rule(reply=[Text(text="Buy it [yield], it pays off.", pieces=3)]),
        ]
    )


def test_a_goal_becomes_a_plan_that_is_changed_and_runs_as_a_graph(
    person: Person, models: ScriptedProvider
) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/tasks")
        take_screenshots(tab, "tasks-empty")
        page.get_by_role("main").get_by_role("button", name="Create a task").click()
        page.get_by_label("Goal").fill("Is a balcony power station worth it?")
        page.get_by_role("button", name="Propose steps").click()
        steps = page.get_by_role("region", name="Steps")
        expect(steps.get_by_role("listitem")).to_have_count(3)
        expect(steps).to_contain_text("Needs the results of: Estimate the yield, Collect the costs")
        steps.get_by_role("button", name="Give advice").click()
        steps.get_by_label("What the result looks like").fill("One sentence.")
        take_screenshots(tab, "task-plan")
        page.get_by_role("button", name="Create and run").click()

        graph = page.get_by_role("group", name="The steps as a graph")
        expect(graph.get_by_role("button", name="Collect the costs")).to_contain_text("Done")
        sun = graph.get_by_role("button", name="Estimate the yield")
        expect(sun).to_contain_text("Running")
        sun.click()
        panel = page.get_by_role("complementary", name="Estimate the yield")
        expect(panel.get_by_role("button", name="python_eval")).to_be_visible()
        expect(panel).to_contain_text("The sun gives")
        take_screenshots(tab, "task-running")
        page.reload()
        expect(sun).to_contain_text("Running")
        models.release("sun")
        expect(graph.get_by_role("button", name="Give advice")).to_contain_text("Done")
        result = page.get_by_role("complementary", name="Result")
        expect(result).to_contain_text("Buy it [yield], it pays off.")
        assert serious_violations(page) == []
        take_screenshots(tab, "task-done")
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        take_screenshots(tab, "task-done-phone")
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
        result.get_by_role("button", name="[yield]").press("Enter")
        expect(panel).to_contain_text("680")
        # A copy has the same steps, of which none has begun.
        page.get_by_role("main").get_by_role("button", name="More").last.click()
        page.get_by_role("menuitem", name="Duplicate").click()
        expect(page.get_by_role("heading", name="(copy)")).to_be_visible()
        expect(graph.get_by_role("button", name="Give advice")).to_contain_text("Not started")
        [copy] = [each for each in person.get("/tasks")["items"] if each["name"].endswith("(copy)")]
        assert {step["status"] for step in person.get(f"/tasks/{copy['id']}")["steps"]} == {"pending"}


def test_a_task_with_times_is_ordered_snoozed_and_shown_again(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/tasks/new")
        page.get_by_label("Goal").fill("Order coffee for the office")
        page.get_by_label("Priority").select_option("2")
        page.get_by_label("Starts by itself").fill("2190-12-01T15:00")
        page.get_by_label("Due").fill("2190-12-02T12:00")
        take_screenshots(tab, "task-times")
        page.get_by_role("button", name="Create; it starts by itself").click()
        header = page.get_by_role("main").locator("header").filter(has_text="Order coffee")
        expect(header).to_contain_text("starts 1 Dec 2190 15:00")
        listed = page.get_by_role("link", name="Order coffee for the office")
        expect(listed).to_contain_text("due 2 Dec 2190 12:00")
        page.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Name, goal and times").click()
        page.get_by_label("Leave out of the list until").fill("2190-11-30T08:00")
        page.get_by_role("button", name="Save").click()
        expect(listed).to_have_count(0)
        page.get_by_label("Show snoozed").check()
        expect(listed).to_contain_text("snoozed until 30 Nov 2190 08:00")
        page.get_by_label("Order").select_option("due")
        expect(listed).to_be_visible()
        take_screenshots(tab, "task-times-list")
        assert serious_violations(page) == []
        page.get_by_label("Show snoozed").uncheck()
        expect(listed).to_have_count(0)


def test_what_a_dialog_cannot_save_is_said_in_it_by_the_name_of_the_field(person: Person) -> None:
    steps = [{"id": "a", "name": "First", "goal": "Say it"}]
    task = person.post("/tasks", {"name": "Chain", "goal": "Try it", "steps": steps})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/tasks/{task}")
        page.get_by_role("button", name="More actions").last.click()
        page.get_by_role("menuitem", name="Name, goal and times").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("x" * 201)
        tab.expected_problems.append("400")
        dialog.get_by_role("button", name="Save").click()
        alert = dialog.get_by_role("alert")
        expect(alert).to_have_text(
            "Name: must be text of 1 to 200 characters: one line with a visible character."
        )
        dialog.get_by_label("Name").fill("Short")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
        expect(page.get_by_role("heading", name="Short")).to_be_visible()
        # Nothing is left of it, in the tray below neither.
        expect(page.get_by_text("must be text")).to_have_count(0)


def test_a_failed_step_names_what_it_held_up_and_a_cycle_is_refused(person: Person) -> None:
    steps = [
        {"id": "a", "name": "First", "goal": "Fails once"},
        {"id": "b", "name": "Second", "depends_on": ["a"]},
        {"id": "c", "name": "Third", "depends_on": ["b"]},
    ]
    task = person.post("/tasks", {"name": "Chain", "goal": "Try it", "steps": steps})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/tasks/{task}")
        graph = page.get_by_role("group", name="The steps as a graph")
        expect(graph.get_by_role("button", name="Third")).to_be_in_viewport(ratio=1)
        page.set_viewport_size({"width": 1020, "height": 600})
        expect(graph.get_by_role("button", name="First")).to_be_in_viewport(ratio=1)
        expect(graph.get_by_role("button", name="Third")).to_be_in_viewport(ratio=1)
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
        third, first = (graph.locator(f"[data-id='{each}'] .vue-flow__handle") for each in ("c", "a"))
        third.last.drag_to(first.first)
        expect(page.get_by_text("First cannot need Third")).to_be_visible()
        assert person.get(f"/tasks/{task}")["steps"][0]["depends_on"] == []
        graph.locator("[data-id='a'] .vue-flow__handle").last.drag_to(
            graph.locator("[data-id='c'] .vue-flow__handle").first
        )
        expect(page.get_by_text("Third needs First now")).to_be_visible()
        assert sorted(person.get(f"/tasks/{task}")["steps"][2]["depends_on"]) == ["a", "b"]

        page.get_by_role("button", name="Run", exact=True).click()
        expect(graph.get_by_role("button", name="Third")).to_contain_text("Skipped")
        graph.get_by_role("button", name="First").click()
        panel = page.get_by_role("complementary", name="First")
        expect(panel).to_contain_text("Skipped because of this: Second, Third.")
        take_screenshots(tab, "task-failed")
        panel.get_by_role("button", name="Try again").click()
        expect(graph.get_by_role("button", name="Third")).to_contain_text("Done")
        expect(panel).to_contain_text("Now it works.")
        page.get_by_role("button", name="List", exact=True).click()
        expect(page.get_by_role("list", name="Steps").get_by_role("button")).to_have_count(3)


def test_a_failed_step_is_skipped_the_next_one_approved_and_all_of_it_run_again(person: Person) -> None:
    steps = [
        {"id": "broken", "name": "First", "goal": "Say it"},
        {"id": "b", "name": "Second", "depends_on": ["broken"], "require_approval": True},
    ]
    task = person.post("/tasks", {"name": "Chain", "goal": "Try it", "steps": steps})["id"]
    with person.tab(PHONE) as tab:
        page = tab.open(f"/ui/tasks/{task}")
        header = page.get_by_role("main").locator("header").first
        page.get_by_role("button", name="Run", exact=True).click()
        rows = page.get_by_role("list", name="Steps")
        expect(rows.get_by_role("button", name="Second")).to_contain_text("Skipped")
        rows.get_by_role("button", name="First").click()
        page.get_by_role("button", name="Skip", exact=True).click()
        expect(page.get_by_text("It failed, and a person skipped it.")).to_be_visible()
        take_screenshots(tab, "task-passed-over")
        approve = header.get_by_role("button", name="Approve", exact=True)
        expect(approve).to_be_in_viewport(ratio=1)
        assert serious_violations(page) == []
        take_screenshots(tab, "task-approve")
        approve.click()
        again = header.get_by_role("button", name="Run again")
        expect(again).to_be_visible()
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
        assert [step["status"] for step in person.get(f"/tasks/{task}")["steps"]] == ["skipped", "completed"]
        take_screenshots(tab, "task-again")

        again.click()
        expect(page.get_by_role("heading", name="Chain (2)")).to_be_visible()
        expect(header.get_by_role("link", name="Chain", exact=True)).to_have_attribute(
            "href", f"/ui/tasks/{task}"
        )
        graph = page.get_by_role("group", name="The steps as a graph")
        expect(graph.get_by_role("button", name="First")).to_contain_text("Failed")
        assert [step["status"] for step in person.get(f"/tasks/{task}")["steps"]] == ["skipped", "completed"]
        assert person.get(f"/tasks/{task}")["result"]
        take_screenshots(tab, "task-run-again")
