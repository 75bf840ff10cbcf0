"""Skills that a person activates with a message: their texts in prompts, their limits, what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.client import ApiClient, document_of
from api.conftest import answering
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Finish, Rule, ScriptedProvider, Text, When

STRICT = (
    "---\nname: strict\ndescription: Reads only.\nallowed-tools: file_read\n---\n\nOnly read, never list.\n"
)
DEPLOY = (
    "---\nname: deploy\ndescription: Deploys the web shop.\ntriggers: [deploy the web shop]\n"
    "disable-model-invocation: true\n---\n\nAsk for the version first.\n"
)
LOOSE = "---\nname: own-style\ndescription: A style.\n---\n\nWrite in capitals.\n"


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    """Lists files, although the skill forbids it, then answers."""
    called = Call(name="file_list", arguments={}, id="call-1")
    rules = [
        Rule(when=When(user=said, has_tool_result=False), reply=[called, Finish(reason="tool_calls")])
        for said in ("Only read, never list.", "list them")
    ]
    activate = Call(name="activate_skill", arguments={"name": "deploy"}, id="call-2")
    asked = When(user="activate it", has_tool_result=False)
    rules.append(Rule(when=asked, reply=[activate, Finish(reason="tool_calls")]))
    rules += [
        Rule(reply=[Text(text="Done."), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory, model: ScriptedProvider) -> Iterator[ApiClient]:
    data_dir = tmp_path_factory.mktemp("given") / "data"
    for name, content in (("strict", STRICT), ("deploy", DEPLOY)):
        (data_dir / "skills" / name).mkdir(parents=True)
        Path(data_dir / "skills" / name / "SKILL.md").write_text(content, "utf-8")
    with (
        ServerProcess(data_dir.parent, data_dir=data_dir) as server,
        ApiClient(server, document_of(server)).sign_in() as person,
    ):
        person.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
        body = {"name": "scripted", "provider_type": "openai", "base_url": f"{model.url}/v1"}
        keys = {"api_key": "sk-a-key", "default_model": "scripted"}
        provider = person.good("POST", "/providers", json={**body, **keys})
        person.good("PUT", "/settings", json={"default_provider_id": provider["id"]})
        yield person


def sent(person: ApiClient, conversation: str, content: str, **more: Any) -> dict[str, Any]:
    body = {"conversation_id": conversation, "content": content, **more}
    return person.good("POST", "/messages", json=body)


def events_of(person: ApiClient, conversation: str) -> list[dict[str, Any]]:
    return person.good("GET", f"/conversations/{conversation}/events", params={"limit": 200})["events"]


def test_a_skill_of_a_message_follows_it_in_all_later_prompts_and_limits_the_tools(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    conversation = admin.good("POST", "/conversations", json={})["id"]
    # `_` and `-` are equal in names, and a skill that is named twice is activated once.
    given = {"skills": ["strict", "Strict"], "tools": ["file_list", "file_read"]}
    before = len(model.requests)
    answer = sent(admin, conversation, "list them", **given)
    first, second = (request.json for request in model.requests[before:])
    assert [message["role"] for message in first["messages"]][-2:] == ["user", "user"]
    assert "Only read, never list." in first["messages"][-1]["content"]
    assert second["tools"] == first["tools"]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    result = next(step for step in answer["steps"] if step["type"] == "tool_result")
    assert (result["success"], "strict" in result["content"], answer["text"]) == (False, True, "Done.")
    (active,) = (one for one in events_of(admin, conversation) if one["type"] == "skill_activated")
    listed = next(one for one in admin.good("GET", "/skills")["items"] if one["name"] == "strict")
    assert {name: active[name] for name in ("name", "by", "scope", "digest", "score", "allowed_tools")} == {
        "name": "strict",
        "by": "person",
        "scope": "system",
        "digest": listed["digest"],
        "score": None,
        "allowed_tools": ["file_read"],
    }
    # The next message repeats the prompt, but its tools are free again.
    later = sent(admin, conversation, "list them again", tools=given["tools"])
    third = model.requests[before + 2].json
    assert third["messages"][: len(second["messages"])] == second["messages"]
    assert [step["success"] for step in later["steps"] if step["type"] == "tool_result"] == [True]


def test_a_skill_without_a_review_taints_also_where_the_model_has_no_tools(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    admin.good(
        "POST",
        "/skills",
        json={"name": "own-style", "description": "A style.", "scope": "tenant", "content": LOOSE},
    )
    conversation = admin.good("POST", "/conversations", json={})["id"]
    answer = sent(admin, conversation, "Hello", skills=["own_style"], tools=False)
    assert "Write in capitals." in model.requests[-1].json["messages"][-1]["content"]
    assert answer["text"] == "Done."
    assert [one["by"] for one in events_of(admin, conversation) if one["type"] == "tainted"] == [
        "activate_skill"
    ]
    again = admin.good("GET", "/search", params={"q": "capitals"})
    assert again["items"] == []


def test_answer_again_activates_the_skills_of_the_answer_before_again(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    project = admin.good("POST", "/projects", json={"name": "Verse"})["id"]
    body = {"name": "rhymes", "description": "Rhymes.", "scope": "project", "content": "Write in rhymes."}
    skill = admin.good("POST", "/skills", json={**body, "project_id": project})["id"]
    conversation = admin.good("POST", "/conversations", json={"project_id": project})["id"]
    answer = sent(admin, conversation, "Hello", skills=["rhymes", "strict"], tools=False)

    def again(message_id: str, **options: Any) -> tuple[list[str], str]:
        """The skills that a person activated for the next answer, and what the model was sent."""
        before = len(events_of(admin, conversation))
        path = f"/messages/{message_id}/regenerate"
        admin.http.post(path, json={"tools": False, **options}).raise_for_status()
        events = events_of(admin, conversation)[before:]
        active = [one for one in events if one["type"] == "skill_activated"]
        assert all(one["by"] == "person" for one in active)
        return [one["name"] for one in active], str(model.requests[-1].json["messages"])

    for message_id in (answer["id"], answer["parent_id"]):
        names, prompt = again(message_id)
        assert names == ["rhymes", "strict"]
        assert "Write in rhymes." in prompt
    admin.good("DELETE", f"/skills/{skill}")
    assert again(answer["parent_id"])[0] == ["strict"]
    (warning,) = (one for one in events_of(admin, conversation) if one["type"] == "warning")
    assert "The answer before had the skill rhymes, which cannot be used" in warning["message"]
    assert again(answer["parent_id"], skills=[])[0] == []
    # The newest answer had none.
    assert again(answer["parent_id"])[0] == []


def test_unknown_skills_and_skills_that_an_agent_has_not_are_refused(admin: ApiClient) -> None:
    conversation = admin.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": "Hello"}
    unknown = admin.bad("POST", "/messages", 400, json={**body, "skills": ["missing"]})
    assert (unknown["detail"]["kind"], "missing" in str(unknown)) == ("skill_unknown", True)
    agent = admin.good("POST", "/agents", json={"name": "Plain", "skills": []})["id"]
    with_agent = admin.good("POST", "/conversations", json={"agent_id": agent})["id"]
    refused = admin.bad(
        "POST", "/messages", 400, json={**body, "conversation_id": with_agent, "skills": ["strict"]}
    )
    assert refused["detail"]["kind"] == "skill_refused"
    assert admin.good("GET", "/messages", params={"conversation_id": conversation})["items"] == []


def test_a_skill_that_is_used_keeps_its_description_where_the_list_has_no_room(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    """Without uses the first entries keep theirs; the kept list of a conversation does not change."""

    def new_skill(name: str) -> dict[str, Any]:
        body = {"name": name, "description": f"Of {name}. " * 80, "content": "Do it.", "scope": "tenant"}
        return admin.good("POST", "/skills", json=body)

    skills = [new_skill(f"long-{number:02}") for number in range(100)]

    def listed(conversation: str, **more: Any) -> list[str]:
        sent(admin, conversation, "hello", tools=["activate_skill"], **more)
        system = model.requests[-1].json["messages"][0]["content"]
        return [line[:16] for line in system.splitlines() if line.startswith("- long-")]

    first, second = (admin.good("POST", "/conversations", json={})["id"] for _ in range(2))
    before = listed(first)
    assert (before[0], before[-1]) == ("- long-00: Of lo", "- long-99")
    listed(first, skills=["long-99"])
    # Uses are read again after two seconds, or when skills change.
    new_skill("other")
    after = listed(second)
    assert len(after) == len(before) == 100
    assert after[-1] == "- long-99: Of lo"
    assert listed(first) == before
    # The count ends with the skill.
    admin.good("DELETE", f"/skills/{skills[-1]['id']}")
    new_skill("long-99")
    third = admin.good("POST", "/conversations", json={})["id"]
    assert listed(third)[-1] == "- long-99"


def test_a_skill_for_people_is_activated_by_a_person_and_never_by_a_model(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    skills = admin.good("GET", "/skills", params={"page_size": 100})["items"]
    (deploy,) = (skill for skill in skills if skill["name"] == "deploy")
    assert (deploy["is_for_people"], deploy["warning"]) == (True, None)
    assert [skill["name"] for skill in skills if skill["is_for_people"]] == ["deploy"]
    text = "Please deploy the web shop: deploy the web shop now"
    matches = admin.good("POST", "/skills/match", json={"text": text})["matches"]
    assert "deploy" not in [match["name"] for match in matches]
    conversation = admin.good("POST", "/conversations", json={"routing": "auto"})["id"]
    answer = sent(admin, conversation, f"{text}. activate it", tools=["activate_skill"])
    prompt = str(model.requests[-1].json["messages"])
    assert "- strict: " in prompt
    assert "Deploys the web shop." not in prompt
    assert "Ask for the version first." not in prompt
    (result,) = (step for step in answer["steps"] if step["type"] == "tool_result")
    assert (result["success"], "only people activate the skill deploy" in result["content"]) == (False, True)
    sent(admin, conversation, "now", skills=["deploy"])
    assert "Ask for the version first." in model.requests[-1].json["messages"][-1]["content"]
