"""Answers that are made by a plan, and calls that repeat, on the chat page of a laptop and of a phone."""

import json

import pytest
from playwright.sync_api import Page, expect

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_screens
from web_ui.browser import PHONE, WAIT_MS
from web_ui.person import Person
from web_ui.test_chat_runs import choose_all_tools, said, send

WIDTHS = (1280, 390)
PLANS = ("watched", "stopped")
STEPS = [
    {"id": "a", "name": "Read the figures of both quarters", "goal": "The revenue of each quarter."},
    {"id": "b", "name": "Read what customers say", "goal": "What they praise and what they miss."},
    {"id": "c", "name": "Write the report", "goal": "The report.", "depends_on": ["a", "b"]},
]
SEEN = Call(name="file_exists", arguments={"path": "seen.txt"})


def plan(name: str) -> Rule:
    """A plan whose second step has its name: each test has an answer of its own to let go on."""
    steps = [one if one["id"] != "b" else one | {"goal": f"{one['goal']} {name}"} for one in STEPS]
    return Rule(
        when=When(system="Split the goal", user=name), reply=[Text(text=json.dumps({"steps": steps}))]
    )


def step(step_id: str, *reply: Text | Gate, goal: str = "") -> Rule:
    return Rule(when=When(user=rf"Your step \[{step_id}\](?s:.*){goal}"), reply=[*reply])


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            *(plan(name) for name in PLANS),
            step("a", Text(text="The fourth quarter was better.")),
            *(
                step(
                    "b",
                    Text(text="They like "),
                    Gate(name=f"plan{name}"),
                    Text(text="it."),
                    goal=name,
                )
                for name in PLANS
            ),
            step("c", Text(text="A report.")),
            Rule(when=When(user="look"), times=3, reply=[SEEN]),
            Rule(when=When(user="look"), reply=[Text(text="It is not there.")]),
            Rule(reply=[Text(text="The whole answer.")]),
        ]
    )


def is_wide_enough(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_plan_shows_its_steps_while_they_run_and_afterwards(
    person: Person, models: ScriptedProvider
) -> None:
    conversation = person.post("/conversations", {"planning": "always"})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        send(page, "Compare the quarters watched")
        plan = page.get_by_role("region", name="Plan")
        expect(plan.get_by_text("1 of 3 steps")).to_be_visible()
        plan.get_by_text("Read the figures of both quarters", exact=True).click()
        expect(plan.get_by_text("The fourth quarter was better.")).to_be_visible()
        plan.get_by_text("Read what customers say", exact=True).click()
        expect(plan.get_by_text("They like")).to_be_visible()
        check_both_screens(tab, "chat-plan")
        models.release("planwatched")
        expect(said(page, "The whole answer.")).to_be_visible(timeout=WAIT_MS)
        page.reload()
        expect(plan.get_by_text("3 of 3 steps")).to_be_visible()
        plan.get_by_text("Write the report", exact=True).click()
        needs = "Needs: Read the figures of both quarters, Read what customers say"
        expect(plan.get_by_text(needs)).to_be_visible()
        expect(plan.get_by_text("A report.")).to_be_visible()
        check_both_screens(tab, "chat-plan-stored")


def test_a_stopped_plan_says_which_steps_will_not_be_carried_out(person: Person) -> None:
    conversation = person.post("/conversations", {"planning": "always"})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        send(page, "Compare the quarters stopped")
        plan = page.get_by_role("region", name="Plan")
        expect(plan.get_by_text("1 of 3 steps")).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        expect(plan.get_by_text("Stopped", exact=True)).to_have_count(2)
        expect(plan.get_by_text("Done", exact=True)).to_have_count(1)


def test_the_chat_says_which_agent_answered_by_the_words_of_the_message(person: Person) -> None:
    about = "Translates letters into Portuguese and from Portuguese."
    person.post("/agents", {"name": "Lusophone", "description": about})
    conversation = person.post("/conversations", {"routing": "auto"})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        send(page, "Translate this letter into Portuguese")
        answered = "Lusophone answered, because the words of the message ask for this agent."
        expect(page.get_by_text(answered)).to_be_visible(timeout=WAIT_MS)
        check_both_screens(tab, "chat-agent-by-words")


def test_a_repeated_call_waits_for_a_person_who_corrects_it(person: Person, models: ScriptedProvider) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/chat?new=")
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        choose_all_tools(page)
        send(page, "look")
        question = page.get_by_role("region", name="file_exists was called 2 times")
        expect(question.get_by_role("button", name="Skip the call")).to_be_visible()
        expect(page.get_by_text("The model repeats itself.")).to_be_visible()
        question.get_by_role("button", name="Note").click()
        question.get_by_label("Note").fill("Look elsewhere.")
        check_both_screens(tab, "chat-loop")
        question.get_by_role("button", name="Send the correction").click()
        expect(said(page, "It is not there.")).to_be_visible(timeout=WAIT_MS)
