"""A model that asks the user questions: scripts for it, and requests about questions."""

import json
from typing import Any

from luxx.providers.scripted import Call, Counts, Rule, Script, Text, When
from scenarios.client import AsyncApiClient, Json

COLOURS = [
    {"label": "red", "description": "like a rose", "is_recommended": False},
    {"label": "blue", "description": "like the sea", "is_recommended": True},
]
FINAL_TEXT = "Now I know."


def clarification(call_id: str = "call-ask", **more: Any) -> Call:
    arguments = {"question_type": "scope", "question": "Which colour?", "options": COLOURS, **more}
    return Call(name="ask_clarification", arguments=arguments, id=call_id)


def decision(call_id: str = "call-decide", **more: Any) -> Call:
    arguments = {"decision_type": "branch", "context": "Left or right?", "options": COLOURS, **more}
    return Call(name="ask_decision", arguments=arguments, id=call_id)


def asks(*calls: Call, then: str = FINAL_TEXT) -> Script:
    """These calls at once, and a text when their results are in the prompt."""
    return Script(
        rules=[
            Rule(
                name="asks", when=When(has_tool_result=False), reply=[*calls, Counts(prompt=5, completion=3)]
            ),
            Rule(name="goes on", when=When(has_tool_result=True), reply=[Text(text=then)]),
        ]
    )


def only_asks(*calls: Call) -> Script:
    """These calls at once, whatever the prompt is."""
    return Script(rules=[Rule(name="asks", reply=[*calls, Counts(prompt=5, completion=3)])])


async def open_questions(person: AsyncApiClient, run_id: str) -> list[Json]:
    """Oldest first."""
    page = await person.get(f"/runs/{run_id}/questions", status="open")
    return page["items"][::-1]


async def answer(person: AsyncApiClient, question: Json, answer: Any, **more: Any) -> Json:
    path = f"/runs/{question['run_id']}/questions/{question['id']}/answer"
    return await person.post(path, {"answer": answer, **more})


async def set_rules(person: AsyncApiClient, *rules: str, **query: str) -> None:
    """Replaces the user's rules by these, such as `deny visit_risky(*)`."""
    body: Any = []
    for rule in rules:
        action, _, rest = rule.partition(" ")
        tool, _, pattern = rest.partition("(")
        body.append({"tool": tool, "pattern": pattern[:-1], "action": action})
    response = await person.ask("PUT", "/permissions/rules", body, **query)
    assert response.status_code == 200, response.text


def results(message: Json) -> list[Json]:
    return [json.loads(step["content"]) for step in message["steps"] if step["type"] == "tool_result"]
