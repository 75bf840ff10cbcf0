"""Checks of agents: their form, and the verdicts on calls and answers, on a laptop and on a phone."""

import json

import pytest
from playwright.sync_api import Page, expect

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_screens
from web_ui.browser import PHONE, WAIT_MS
from web_ui.person import Person
from web_ui.test_chat_runs import said, send

JUDGE = "You judge whether"
CRITERIA = "The sum is right and names its parts."


def verdict(result: str, reason: str, evidence: str) -> Text:
    return Text(text=json.dumps({"result": result, "reasons": [reason], "evidence": evidence}))


@pytest.fixture(scope="module")
def script() -> Script:
    wrong, right = verdict("invalid", "The sum is wrong.", "It is 41."), verdict("valid", "It is right.", "")
    call = Call(name="python_eval", arguments={"expression": "40 + 1"})
    return Script(
        rules=[
            Rule(when=When(system=JUDGE, user=r"It is 41\.\s*```\s*$"), reply=[wrong]),
            Rule(when=When(system=JUDGE, user="sum"), reply=[Gate(name="judge"), right]),
            Rule(when=When(user="A check of your answer"), reply=[Text(text="It is 42, of 40 and 2.")]),
            Rule(when=When(has_tool_result=True), reply=[Text(text="It is 41.")]),
            Rule(reply=[call]),
        ]
    )


def add_check(page: Page, number: int, judged: str, judge: str) -> None:
    page.get_by_role("button", name="Add a check").click()
    check = page.get_by_role("group", name=f"Check {number}", exact=True)
    check.get_by_label("What is judged").fill(judged)
    check.get_by_label("Who judges").select_option(judge)


def test_checks_are_set_in_the_form_and_their_verdicts_shown(
    person: Person, models: ScriptedProvider
) -> None:
    provider = person.get("/providers")["items"][0]
    with person.tab() as tab:
        page = tab.open("/ui/agents/new")
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        page.get_by_label("Name", exact=True).fill("Careful")
        add_check(page, 1, "answer", "Facts, then a model")
        first = page.get_by_role("group", name="Check 1", exact=True)
        first.get_by_label("Criteria").fill(CRITERIA)
        first.get_by_label("Provider of the judge").select_option(provider["name"])
        first.get_by_label("Model of the judge").fill("scripted")
        first.get_by_label("Goes back to the model").select_option("Twice at most")
        add_check(page, 2, "python_*", "Facts")
        check_both_screens(tab, "agent-checks")
        page.get_by_role("button", name="Create", exact=False).click()
        expect(page.get_by_role("heading", name="Careful")).to_be_visible()
        agent = next(each for each in person.get("/agents")["items"] if each["name"] == "Careful")
        assert agent["checks"] == [
            {
                "on": "answer", "by": "model", "criteria": CRITERIA, "provider_id": provider["id"],
                "model": "scripted", "rounds": 2,
            },
            {"on": "python_*"},
        ]  # fmt: skip

        conversation = person.post("/conversations", {"agent_id": agent["id"]})["id"]
        page.goto(f"{page.url.split('/ui/')[0]}/ui/chat/{conversation}")
        send(page, "sum")
        refused = page.get_by_text("A model checked the answer: not passed. The sum is wrong.")
        expect(refused).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_text("Check of the result: passed.")).to_be_visible()
        expect(said(page, "It is 42, of 40 and 2.")).to_be_visible()
        expect(page.get_by_text("It is 41.", exact=True).first).to_be_hidden()
        models.release("judge")
        passed = page.get_by_text("A model checked the answer: passed. It is right.")
        expect(passed).to_be_visible(timeout=WAIT_MS)
        page.reload()
        expect(passed).to_be_visible()
        page.get_by_text("An answer that a check refused").click()
        expect(page.get_by_text("It is 41.", exact=True).first).to_be_visible()
        refused.click()
        check_both_screens(tab, "chat-verdicts")
