"""Plans as models write them: what is meant is read, what is not clear is refused with its reason."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luxx.features.tasks.graph import GraphStep, TaskGraph
from luxx.features.tasks.models import NewTaskStep
from luxx.features.tasks.plan_text import MAX_STEPS, Plan, PlanProblems, PlanScope, parse_plan
from luxx.features.tasks.planning import planned_steps

STEPS = [
    {"id": "a", "name": "Read", "goal": "Read the report.", "depends_on": []},
    {"id": "b", "name": "Sum", "goal": "Add the figures.", "depends_on": ["a"]},
    {"id": "c", "name": "Write", "goal": "Write a page.", "depends_on": ["a", "b"]},
]
PLAIN = json.dumps({"steps": STEPS})

WRITTEN = {
    "as asked": PLAIN,
    "in a code block": f"Here is the plan:\n```json\n{PLAIN}\n```\nShall I begin?",
    "in a code block without a language": f"```\n{PLAIN}\n```",
    "between sentences": f"Sure! {PLAIN} Tell me if {{this}} is right.",
    "a bare list": json.dumps(STEPS),
    "named plan": json.dumps({"plan": STEPS}),
    "a plan in a plan": json.dumps({"plan": {"goal": "x", "steps": STEPS}}),
    "numbers as ids": json.dumps(
        [
            {"id": 1, "title": "Read", "description": "Read the report."},
            {"id": 2, "title": "Sum", "description": "Add the figures.", "dependencies": [1]},
            {"id": 3, "title": "Write", "description": "Write a page.", "dependencies": [1, 2]},
        ]
    ),
    "names as dependencies": json.dumps(
        [
            {**step, "depends_on": [{"a": "read", "b": "Sum"}[one] for one in step["depends_on"]]}
            for step in STEPS
        ]
    ),
    "dependencies in one text": json.dumps(
        [{**step, "depends_on": ", ".join(step["depends_on"]) or "none"} for step in STEPS]
    ),
    "after something that is no plan": f'{{"thought": "first"}} {PLAIN}',
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_plan_is_read_however_it_is_written(text: str) -> None:
    plan = parse_plan(text)
    assert isinstance(plan, Plan), plan
    names = {step.id: step.name for step in plan.steps}
    assert [(step.name, step.goal) for step in plan.steps] == [
        ("Read", "Read the report."),
        ("Sum", "Add the figures."),
        ("Write", "Write a page."),
    ]
    assert [[names[one] for one in step.depends_on] for step in plan.steps] == [[], ["Read"], ["Read", "Sum"]]


def problems_of(steps: object) -> list[str]:
    parsed = parse_plan(json.dumps(steps))
    assert isinstance(parsed, PlanProblems), parsed
    return list(parsed.problems)


WRONG = {
    "a cycle": (
        [{"id": "a", "name": "A", "depends_on": ["b"]}, {"id": "b", "name": "B", "depends_on": ["a"]}],
        "these steps wait for each other: a → b → a",
    ),
    "a missing dependency": (
        [{"id": "a", "name": "A", "depends_on": ["zz"]}],
        "step 1 depends on 'zz', but there is no step with this id",
    ),
    "the same id twice": (
        [{"id": "a", "name": "A"}, {"id": "a", "name": "B"}],
        "2 steps have the id 'a'; ids are unique within a task",
    ),
    "a step of its own": ([{"id": "a", "name": "A", "depends_on": ["a"]}], "the step 'a' depends on itself"),
    "a step without words": ([{"id": "a", "name": "A"}, {"id": "b"}], "step 2 has neither a name nor a goal"),
    "dependencies that are no list": (
        [{"id": "a", "name": "A", "depends_on": {"x": 1}}],
        "depends_on of step 1 must be a list of step ids",
    ),
    "no steps": ({"steps": []}, "the plan has no steps"),
    "too many": (
        [{"name": f"n{n}"} for n in range(MAX_STEPS + 1)],
        f"the plan has {MAX_STEPS + 1} steps; the limit is {MAX_STEPS}",
    ),
    "a name of a page": (
        [{"name": "x" * 201, "goal": "y"}],
        "the name of step 1 has 201 characters; the limit is 200",
    ),
}


@pytest.mark.parametrize(("steps", "problem"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(steps: object, problem: str) -> None:
    assert problems_of(steps) == [problem]


@pytest.mark.parametrize("text", ["", "I cannot plan this.", "[1, 2]", '{"a": 1}', PLAIN[:-2], "[" * 100_000])
def test_a_text_without_a_plan_says_so(text: str) -> None:
    parsed = parse_plan(text)
    assert isinstance(parsed, PlanProblems)
    assert "has no plan" in parsed.problems[0]


SCOPE = PlanScope(tools=["web_search", "file_read"], agents=["Careful", "Quick", "Quick (7)"])
WHOLE = {
    "steps": [
        {"id": "a", "name": "Read", "goal": "Read it.", "depends_on": [], "tools": ["file_read"]},
        {
            "id": "b",
            "name": "Search",
            "goal": "Find it.",
            "tools": "web_search, file_read",
            "agent": "careful",
        },
        {"id": "c", "name": "Write", "goal": 'Say "it\'s" /* done */ // now, # 1', "depends_on": ["a", "b"]},
    ]
}
WHOLE_TEXT = json.dumps(WHOLE, indent=1)


def without_quotes(text: str) -> str:
    return text.replace('"', "'").replace("\\'it's\\'", "it").replace("\\'", "")


READABLE = {
    "plain": WHOLE_TEXT,
    "prose with brackets around it": f"Sure [as asked] (see {{note}}):\n{WHOLE_TEXT}\nIs {{it}} good [1]?",
    "a fence": f"Here's it:\n```json\n{WHOLE_TEXT}\n```\nDone.",
    "a fence after a broken bracket": f'It begins {{"steps": as\n```\n{WHOLE_TEXT}\n```',
    "two fences": f"```python\nprint([1])\n```\n```json5\n{WHOLE_TEXT}\n```",
    "line comments": WHOLE_TEXT.replace("\n", " // a comment, with {brackets} and it's quote\n").replace(
        "it's quote", "so on"
    ),
    "block comments": WHOLE_TEXT.replace("{", "{ /* why: [x] */", 3),
    "hash comments": WHOLE_TEXT.replace(",\n", ", # next\n"),
    "trailing commas": WHOLE_TEXT.replace("}\n", "},\n").replace("]\n", "],\n").rstrip(",\n").rstrip(","),
    "single quotes": without_quotes(WHOLE_TEXT),
    "Python's constants": WHOLE_TEXT.replace('"depends_on": []', '"depends_on": None, "x": True'),
    "line breaks in texts": WHOLE_TEXT.replace("Read it.", "Read\nit."),
    "unknown fields": WHOLE_TEXT.replace('"id"', '"priority": {"level": [1, 2]}, "note": null, "id"'),
    "a byte order mark": "\ufeff" + WHOLE_TEXT,
    "thoughts before it": f"<think>Maybe {{a}}?</think>{WHOLE_TEXT}",
    "carriage returns": WHOLE_TEXT.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("text", READABLE.values(), ids=READABLE)
def test_a_whole_plan_is_read_with_its_tools_and_agents(text: str) -> None:
    plan = parse_plan(text, SCOPE)
    assert isinstance(plan, Plan), plan
    assert [step.id for step in plan.steps] == ["a", "b", "c"]
    assert [step.tools for step in plan.steps] == [("file_read",), ("web_search", "file_read"), ()]
    assert [step.agent for step in plan.steps] == [None, "Careful", None]
    assert plan.steps[2].depends_on == ("a", "b")


def changed(number: int, **fields: object) -> str:
    steps = [dict(step) for step in WHOLE["steps"]]
    steps[number] |= fields
    return json.dumps({"steps": steps})


NESTED = {"id": "b", "name": "B", "steps": [{"id": "x", "name": "Inner"}, {"id": "y", "name": "Other"}]}
NOT_PLANS = {
    "nothing": "",
    "an excuse": "I'm sorry, I can't [do] {that}.",
    "no steps": '{"steps": []}',
    "null": '{"steps": null}',
    "a number": "42",
    "steps as text": '{"steps": "read, write"}',
    "steps as an object of texts": '{"steps": {"a": "Read", "b": "Write"}}',
    "steps as texts": '{"steps": ["Read", "Write"]}',
    "a text among the steps": json.dumps({"steps": [*WHOLE["steps"], "and so on"]}),
    "a null among the steps": json.dumps({"steps": [*WHOLE["steps"], None]}),
    "only numbers": "[1, 2, 3]",
    "a step without words": changed(0, name="", goal=None),
    "a step without a name that is a text": changed(0, name=["Read"], goal="x"),
    "an id that is an object": changed(0, id={"a": 1}),
    "an id that is true": changed(0, id=True),
    "a long id": changed(0, id="x" * 65),
    "a long name": changed(0, name="x" * 201),
    "a long goal": changed(0, goal="x" * 4_001),
    "the same id twice": changed(1, id="a"),
    "a missing dependency": changed(1, depends_on=["zz"]),
    "a dependency on itself": changed(1, depends_on=["b"]),
    "a cycle": changed(0, depends_on=["c"]),
    "a dependency that is an object": changed(1, depends_on=[{"id": "a"}]),
    "dependencies as an object": changed(1, depends_on={"a": True}),
    "dependencies as true": changed(1, depends_on=True),
    "a number that is no step": changed(1, depends_on=[9]),
    "an unknown tool": changed(1, tools=["rocket_launch"]),
    "tools as an object": changed(1, tools={"web_search": {}}),
    "tools as numbers with unknown names": changed(1, tools=[1]),
    "an unknown agent": changed(1, agent="Nobody"),
    "an agent that is an object": changed(1, agent={"name": "Careful"}),
    "an agent that is a list": changed(1, agent=["Careful"]),
    "steps within a step": json.dumps({"steps": [WHOLE["steps"][0], NESTED]}),
    "too many steps": json.dumps({"steps": [{"name": f"n{n}"} for n in range(MAX_STEPS + 1)]}),
    "too many dependencies": json.dumps(
        [{"id": f"s{n}", "name": f"n{n}", "depends_on": [f"s{m}" for m in range(n)]} for n in range(100)]
    ),
    "cut in a text": WHOLE_TEXT[: WHOLE_TEXT.index("Find") + 2],
    "cut after a step": WHOLE_TEXT[: WHOLE_TEXT.index("}") + 1],
    "cut behind the last step": WHOLE_TEXT.rstrip("}\n ").rstrip("]"),
    "cut with inner steps": json.dumps({"steps": [NESTED, WHOLE["steps"][0]]})[:-5],
    "cut in a fence": f"```json\n{WHOLE_TEXT[:-40]}\n```",
    "broken before inner steps": json.dumps({"steps": [WHOLE["steps"][0], NESTED]}).replace(
        '"id": "a"', '"id" "a"'
    ),
    "two objects for a list": '{"id": "a", "name": "A"}\n{"id": "b", "name": "B"}',
    "brackets only": "[[[[{{{{" * 1_000,
    "deep nesting": '{"steps":' * 5_000 + "1" + "}" * 5_000,
    "quotes only": "{\"'" * 5_000,
    "comments only": "{ /* // # " * 2_000,
}


@pytest.mark.parametrize("text", NOT_PLANS.values(), ids=NOT_PLANS)
def test_a_bad_reply_is_refused_whole_with_sentences(text: str) -> None:
    parsed = parse_plan(text, SCOPE)
    assert isinstance(parsed, PlanProblems), parsed
    assert parsed.problems
    assert all(len(problem) < 1_500 and "\x00" not in problem for problem in parsed.problems)


def check(parsed: Plan | PlanProblems) -> None:
    """A valid plan that a task can have, or problems."""
    if isinstance(parsed, PlanProblems):
        assert parsed.problems
        return
    graph = TaskGraph([GraphStep(id=step.id, depends_on=step.depends_on) for step in parsed.steps])
    assert graph.problems() == []
    for step in planned_steps(parsed, dict.fromkeys(SCOPE.agents, 1)):
        # The checks of the API: names, ids, lengths.
        assert msgspec.convert(msgspec.to_builtins(step), NewTaskStep) == step
        assert not {*(step.required_tools or ())} - {*SCOPE.tools}
        json.dumps(msgspec.to_builtins(step), ensure_ascii=False).encode()
        assert "\x00" not in f"{step.name}{step.goal}{step.expected_output}"


REPLIES = [*READABLE.values(), *(text for text in NOT_PLANS.values() if len(text) < 3_000)]
PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from([
        "{", "}", "[", "]", '"', "'", ",", ":", "//", "/*", "*/", "#", "\\", "```", "\n", "null",
        "\x00", "\\u0000", "\\ud800", '"steps": [', '{"name": "x"}', '"depends_on": ["a"]', "NaN", "1e999",
    ]),
)  # fmt: skip


@st.composite
def mutated_replies(draw: st.DrawFn) -> str:
    """A reply with a few places cut out, replaced or repeated."""
    text = draw(st.sampled_from(REPLIES))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        repeated = text[start:end] if draw(st.booleans()) else ""
        text = text[:start] + repeated + draw(PIECES) + text[end if not repeated else start :]
    return text


@settings(max_examples=200, deadline=None)
@given(mutated_replies())
def test_a_mutated_reply_is_a_valid_plan_or_refused(text: str) -> None:
    check(parse_plan(text, SCOPE))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE_TEXT) - 2))
def test_a_reply_that_is_cut_is_no_plan(end: int) -> None:
    assert isinstance(parse_plan(WHOLE_TEXT[:end], SCOPE), PlanProblems)


@given(st.integers(0, len(PLAIN)), st.integers(0, 20), st.text(max_size=20))
def test_a_mutated_plan_is_valid_as_a_whole_or_refused(position: int, cut: int, inserted: str) -> None:
    parsed = parse_plan(PLAIN[:position] + inserted + PLAIN[position + cut :])
    if isinstance(parsed, Plan):
        steps = [GraphStep(id=step.id, depends_on=step.depends_on) for step in parsed.steps]
        assert TaskGraph(steps).problems() == []
        assert all(step.name and step.goal for step in parsed.steps)
    else:
        assert parsed.problems
