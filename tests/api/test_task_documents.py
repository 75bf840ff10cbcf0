"""Documents of tasks: an exported task imports as an equal one, and wrong documents are refused whole."""

import json
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from process_environment import ROOT

from api.client import ApiClient
from luxx.features.tasks.document import document_schema

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "task.schema.json").read_text("utf-8")),
    format_checker=jsonschema.FormatChecker(),
)
JSON = {"content-type": "application/json"}
YAML = {"content-type": "application/yaml"}
GIVEN_BY_SERVER = {"id", "created_at", "updated_at"}

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
names = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)


@st.composite
def graphs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Up to 200 steps in any order; each depends on some of those before it in a hidden order."""
    count = draw(st.sampled_from([0, 1, 5, 30, 200]))
    random = draw(st.randoms(use_true_random=False))
    labels = [f"{random.choice(['step', 's', 'Z_', '0'])}{number}.x" for number in range(count)]
    steps: list[dict[str, Any]] = []
    for position, label in enumerate(labels):
        before = random.sample(labels[:position], min(position, random.randrange(10)))
        steps.append({"id": label, "name": draw(names) if position < 5 else label, "depends_on": before})
    for step in steps[:5]:
        step["goal"], step["thought_prompt"] = draw(texts), draw(st.none() | texts)
        step["require_approval"] = draw(st.booleans())
        step["required_tools"] = draw(st.sampled_from([None, [], ["file_read"]]))
    random.shuffle(steps)
    return steps


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), names, names, st.dictionaries(texts, values, max_size=3), st.sampled_from(["yaml", "json"]))
def test_an_exported_task_imports_as_an_equal_one(
    anna: ApiClient, steps: list[dict[str, Any]], name: str, goal: str, metadata: dict[str, Any], format: str
) -> None:
    body = {
        "name": name,
        "goal": f"{goal}\n\n- no: colons\n\tno # tabs",
        "steps": steps,
        "metadata": metadata,
    }
    task = anna.good("POST", "/tasks", json=body)
    assert [step["id"] for step in task["steps"]] == [step["id"] for step in steps]
    exported = anna.ask("GET", f"/tasks/{task['id']}/export?format={format}").text
    plain = json.loads(exported) if format == "json" else yaml.safe_load(exported)
    SCHEMA.validate(plain)
    headers = JSON if format == "json" else YAML
    copy = anna.good("POST", "/tasks/import", content=exported.encode(), headers=headers)
    assert {field: copy[field] for field in copy if field not in GIVEN_BY_SERVER} == {
        field: task[field] for field in task if field not in GIVEN_BY_SERVER
    }
    graph, copied = (anna.good("GET", f"/tasks/{one['id']}/graph") for one in (task, copy))
    assert copied == graph
    assert anna.ask("GET", f"/tasks/{copy['id']}/export?format={format}").text == exported


def test_a_document_names_agents_and_providers(anna: ApiClient, bob: ApiClient) -> None:
    agent_id = anna.good("POST", "/agents", json={"name": "Only Anna's"})["id"]
    providers = anna.good("GET", "/providers?page_size=100")["items"]
    provider = next(one for one in providers if one["is_own"])
    steps = [{"id": "a", "name": "A", "agent_id": agent_id}, {"id": "b", "name": "B"}]
    body = {
        "name": "Named",
        "goal": "Go.",
        "provider_id": provider["id"],
        "agent_id": agent_id,
        "steps": steps,
    }
    task = anna.good("POST", "/tasks", json=body)
    exported = anna.ask("GET", f"/tasks/{task['id']}/export").text
    document = yaml.safe_load(exported)
    assert (document["agent"], document["provider"]) == ("Only Anna's", provider["name"])
    assert [step.get("agent") for step in document["steps"]] == ["Only Anna's", None]
    copy = anna.good("POST", "/tasks/import", content=exported)
    assert (copy["agent_id"], copy["provider_id"]) == (agent_id, provider["id"])
    assert [step["agent_id"] for step in copy["steps"]] == [agent_id, None]
    refused = bob.bad("POST", "/tasks/import", 400, content=exported)
    assert list(refused["detail"]["fields"]) == ["$.agent", "$.steps[0].agent"]


HEAD = "version: 1\nname: Imported\ngoal: Go.\n"
BAD_DOCUMENTS: dict[str, tuple[str, ...]] = {
    "": ("$",),
    "just text": ("$",),
    "[1, 2]": ("$",),
    "name: Imported\ngoal: Go.\n": ("$.version",),
    "version: 1\n": ("$.name", "$.goal"),
    "version: 2\nname: a\ngoal: b\n": ("$.version",),
    "version: '1'\nname: a\ngoal: b\n": ("$.version",),
    HEAD + "status: completed\n": ("$.status",),
    HEAD + "agent_id: 5\n": ("$.agent_id",),
    HEAD + "max_concurrent_steps: 100\n": ("$.max_concurrent_steps",),
    HEAD + "metadata: text\n": ("$.metadata",),
    HEAD + "metadata: {a: .nan}\n": ("$.metadata.a",),
    HEAD + "metadata: {a: 99999999999999999999}\n": ("$.metadata.a",),
    HEAD + "steps: write\n": ("$.steps",),
    HEAD + "steps: [{name: a}]\n": ("$.steps[0].id",),
    HEAD + "steps: [{id: a}, {id: b, name: 5}]\n": ("$.steps[0].name", "$.steps[1].name"),
    HEAD + "steps: [{id: a, name: a, output: done}]\n": ("$.steps[0].output",),
    HEAD + "steps: [{id: a b, name: a}]\n": ("$.steps[0].id",),
    HEAD + "steps: [{id: a, name: a, depends_on: b}]\n": ("$.steps[0].depends_on",),
    HEAD + "steps: [{id: a, name: a, depends_on: [b]}]\n": ("$.steps[0].depends_on",),
    HEAD + "steps: [{id: a, name: a, depends_on: [a]}]\n": ("$.steps[0].depends_on",),
    HEAD + "steps: [{id: a, name: a, required_tools: [fly]}]\n": ("$.steps[0].required_tools",),
    HEAD + "steps: [{id: a, name: a}, {id: a, name: b}, {id: c, name: c, depends_on: [d, c]}]\n": (
        "$.steps[1].id", "$.steps[2].depends_on",
    ),
    HEAD + "steps: [{id: a, name: a, depends_on: [b]}, {id: b, name: b, depends_on: [a]}]\n": (
        "$.steps[0].depends_on",
    ),
    HEAD + "agent: Nobody\nsteps: [{id: a, name: a, agent: Nobody, depends_on: [b],"
    " required_skills: [fly]}]\n": (
        "$.agent", "$.steps[0].agent", "$.steps[0].depends_on", "$.steps[0].required_skills",
    ),
    # Unknown and mistyped fields do not hide the other problems.
    HEAD + "colour: red\nagent: Nobody\nsteps: [{id: a, name: a, goals: x, depends_on: [z],"
    " required_tools: [fly]}, {id: b, name: 7, agent: Nobody}]\n": (
        "$.colour", "$.agent", "$.steps[0].goals", "$.steps[0].depends_on", "$.steps[0].required_tools",
        "$.steps[1].name", "$.steps[1].agent",
    ),
    "version: '1'\ngoal: b\nsteps: [{id: a, name: a, depends_on: [a]}]\n": (
        "$.version", "$.name", "$.steps[0].depends_on",
    ),
    # Nothing is said of steps whose ids are not known.
    HEAD + "steps: [{ids: a, name: a}, {id: b, name: b, depends_on: [a], required_skills: [fly]}]\n": (
        "$.steps[0].ids", "$.steps[0].id", "$.steps[1].required_skills",
    ),
}  # fmt: skip
UNREADABLE = {
    "a: [1": "not valid YAML",
    HEAD + "name: b\n": "twice",
    "a: &x [1]\nb: *x": "alias",
    "[" * 50: "nested",
    "a: 2026-06-31": "cannot be read",
    "a: !!python/object:os.system 1": "not valid YAML",
    HEAD + "metadata: {1: 2}\n": "put it in quotes",
    HEAD + "metadata: {a: !!set {b}}\n": "no YAML tags",
    HEAD + "metadata: {a: !!binary aGk=}\n": "no YAML tags",
    'version: 1\nname: a\ngoal: "a\\0b"\n': "NUL",
    'version: 1\nname: a\ngoal: "\\ud800"\n': "half a character",
    HEAD + "metadata:\n" + "".join(f"  k{number}: 1\n" for number in range(12_000)): "values",
    HEAD + f"metadata: {{a: {'x' * 500_000}}}\n": "the limit is 500,000",
}


@pytest.mark.parametrize("text", BAD_DOCUMENTS)
def test_a_wrong_document_is_refused_whole_with_every_problem(anna: ApiClient, text: str) -> None:
    before = anna.good("GET", "/tasks")["total"]
    refused = anna.bad("POST", "/tasks/import", 400, content=text, headers=YAML)
    assert set(refused["detail"]["fields"]) == set(BAD_DOCUMENTS[text])
    if text:
        plain = json.dumps(yaml.safe_load(text))
        if "metadata: {a: " not in text:  # YAML is checked for what JSON cannot express first.
            as_json = anna.bad("POST", "/tasks/import", 400, content=plain, headers=JSON)
            assert as_json["detail"] == refused["detail"]
    assert anna.good("GET", "/tasks")["total"] == before


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[-30:])
def test_an_unreadable_document_is_refused_with_a_sentence(anna: ApiClient, text: str) -> None:
    assert UNREADABLE[text] in anna.bad("POST", "/tasks/import", 400, content=text, headers=YAML)["error"]
    assert anna.bad("POST", "/tasks/import", 400, content=text, headers=JSON)


def test_the_schema_file_is_the_schema_of_the_document() -> None:
    assert SCHEMA.schema == document_schema()


@pytest.mark.parametrize("text", [text for text in BAD_DOCUMENTS if text and "depends_on: [" not in text])
def test_the_schema_refuses_what_is_wrong_in_a_single_field(text: str) -> None:
    known_to_servers = ("fly", "Nobody", ".nan", "9999")
    assert SCHEMA.is_valid(yaml.safe_load(text)) == any(word in text for word in known_to_servers)
