"""Messages whose words ask for a skill or an agent: what acts, what the model gets, what never acts."""

from collections.abc import Iterator
from typing import Any

import pytest
from api.client import ApiClient, document_of
from api.conftest import answering
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Finish, Rule, ScriptedProvider, Text, When

INVOICES = (
    "---\nname: invoice-maker\ndescription: Makes invoices for customers.\nallowed-tools: file_read\n"
    "triggers:\n  - make an invoice\n---\n\nNumber invoices by year.\n"
)
OWN = "---\nname: haiku-poems\ndescription: Writes haiku poems in three lines.\n---\n\nCount syllables.\n"
CALENDAR = (
    "---\nname: calendar-entry\ndescription: Puts meetings into the calendar.\n---\n\nUse local times.\n"
)
BOTH = "Please make an invoice for our customer. Also put the meeting into the calendar."
INVOICE, POEM, TRANSLATE = (
    "Please make an invoice for our customer",
    "Write three haiku poems",
    "Translate this letter into Portuguese",
)
AGENT = {
    "name": "Lusophone",
    "description": "Translates letters into Portuguese and from Portuguese.",
    "system_prompt": "You translate.",
}


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    called = Call(name="file_list", arguments={}, id="call-1")
    rules = [
        Rule(
            when=When(user="Number invoices", has_tool_result=False),
            reply=[called, Finish(reason="tool_calls")],
        ),
        Rule(reply=[Text(text="Done."), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory, model: ScriptedProvider) -> Iterator[ApiClient]:
    data_dir = tmp_path_factory.mktemp("routed") / "data"
    (data_dir / "skills" / "invoice-maker").mkdir(parents=True)
    (data_dir / "skills" / "invoice-maker" / "SKILL.md").write_text(INVOICES, "utf-8")
    (data_dir / "skills" / "calendar-entry").mkdir()
    (data_dir / "skills" / "calendar-entry" / "SKILL.md").write_text(CALENDAR, "utf-8")
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


def ask(
    person: ApiClient,
    content: str,
    routing: str | None = None,
    *,
    tools: bool | list[str] = True,
    **fields: Any,
) -> tuple[str, dict[str, Any]]:
    """The conversation in which this was said first, and the answer."""
    conversation = person.good("POST", "/conversations", json={"routing": routing, **fields})["id"]
    body = {"conversation_id": conversation, "content": content, "tools": tools}
    return conversation, person.good("POST", "/messages", json=body)


def events_of(person: ApiClient, conversation: str, kind: str) -> list[dict[str, Any]]:
    found = person.good("GET", f"/conversations/{conversation}/events", params={"limit": 200})["events"]
    return [event for event in found if event["type"] == kind]


def prompt(model: ScriptedProvider, at: int = -1) -> list[dict[str, Any]]:
    return model.requests[at].json["messages"]


def matched(person: ApiClient, kind: str, text: str) -> list[dict[str, Any]]:
    found = person.good("POST", f"/{kind}/match", json={"text": text})
    return [match for match in found["matches"] if match["score"] >= found["threshold"]]


def test_auto_loads_the_text_of_a_skill_once_with_the_score_of_match_and_limits_no_tools(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    before = len(model.requests)
    conversation, answer = ask(admin, INVOICE, "auto", tools=["file_list", "file_read", "activate_skill"])
    first, second = prompt(model, before), prompt(model, before + 1)
    assert "Number invoices by year." in first[-1]["content"]
    assert "allowed_tools" not in first[-1]["content"]
    assert second[: len(first)] == first
    assert [step["success"] for step in answer["steps"] if step["type"] == "tool_result"] == [True]
    (active,) = events_of(admin, conversation, "skill_activated")
    (match,) = matched(admin, "skills", INVOICE)
    assert (active["by"], active["name"], active["allowed_tools"]) == ("router", "invoice-maker", None)
    assert (active["score"], match["name"]) == (match["score"], "invoice-maker")
    # Answered again, the same text asks for the same skill.
    assert "skill_activated" in admin.ask("POST", f"/messages/{answer['id']}/regenerate", json={}).text
    assert len(events_of(admin, conversation, "skill_activated")) == 2
    assert "Number invoices by year." in str(prompt(model))


def test_suggest_names_what_fits_behind_the_history_and_off_and_no_match_change_nothing(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    ask(admin, INVOICE)
    suggested = prompt(model)
    assert suggested[-1]["role"] == "user"
    assert "invoice-maker" in suggested[-1]["content"]
    ask(admin, INVOICE, "off")
    plain = prompt(model)
    assert suggested[:-1] == plain
    # Without tools the model could not act on it, and a message that matches nothing is sent as it is.
    ask(admin, INVOICE, tools=False)
    assert prompt(model)[-1]["content"] == INVOICE
    for mode in ("off", "suggest", "auto"):
        conversation, _ = ask(admin, "What is an invoice?", mode)
        assert prompt(model) == [*plain[:-1], {"role": "user", "content": "What is an invoice?"}], mode
        assert events_of(admin, conversation, "skill_activated") == []


def test_an_agent_that_matches_answers_directly_with_one_call_unless_it_is_disabled(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    agent = admin.good("POST", "/agents", json=AGENT)["id"]
    own = admin.good("POST", "/agents", json={"name": "Own", "system_prompt": "Be short."})["id"]
    before = len(model.requests)
    conversation, answer = ask(admin, TRANSLATE, "auto", agent_id=own)
    assert len(model.requests) == before + 1
    assert "You translate." in prompt(model)[0]["content"]
    assert "Be short." not in prompt(model)[0]["content"]
    (assigned,) = events_of(admin, conversation, "subagent_assigned")
    (match,) = matched(admin, "agents", TRANSLATE)
    assert (assigned["by"], assigned["agent_id"], assigned["agent_name"]) == ("router", agent, "Lusophone")
    assert (assigned["score"], answer["sender_name"]) == (match["score"], "Lusophone")
    assert assigned["subagent_run_id"] == assigned["run_id"]
    assert admin.good("GET", f"/agents/{agent}/stats")["total_invocations"] == 1
    # The agent of the conversation answers what asks for nobody, and an agent that may decide for itself.
    admin.good("POST", "/messages", json={"conversation_id": conversation, "content": "Thanks"})
    assert "Be short." in prompt(model)[0]["content"]
    ask(admin, TRANSLATE, agent_id=own)
    assert "Lusophone" in prompt(model)[-1]["content"]
    admin.good("PATCH", f"/agents/{agent}/enable", json={"enabled": False})
    for mode in ("auto", "suggest"):
        later, _ = ask(admin, TRANSLATE, mode, agent_id=own)
        assert events_of(admin, later, "subagent_assigned") == []
        assert "Lusophone" not in prompt(model)[-1]["content"]
    admin.good("PATCH", f"/agents/{agent}/enable", json={"enabled": True})
    # One whose provider is gone cannot answer; then the agent of the conversation does.
    new = {"name": "gone", "provider_type": "openai", "base_url": f"{model.url}/v1", "api_key": "sk-a-key"}
    gone = admin.good("POST", "/providers", json=new)["id"]
    admin.good("PUT", f"/agents/{agent}", json={"provider_id": gone, "model": "scripted"})
    admin.good("DELETE", f"/providers/{gone}")
    conversation, _ = ask(admin, TRANSLATE, "auto", agent_id=own)
    assert "Be short." in prompt(model)[0]["content"]
    (warning,) = events_of(admin, conversation, "warning")
    assert "Lusophone" in warning["message"]
    admin.good("DELETE", f"/agents/{agent}")


def test_the_first_of_conversation_agent_and_settings_decides_whether_words_choose(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    agent = admin.good("POST", "/agents", json={"name": "Quiet", "routing": "off"})
    assert agent["routing"] == "off"
    admin.good("PUT", "/settings", json={"routing": "auto"})
    assert "Number invoices" in str(prompt_after(admin, model))
    assert "invoice-maker" not in prompt_after(admin, model, agent_id=agent["id"])[-1]["content"]
    assert "Number invoices" in str(prompt_after(admin, model, "auto", agent_id=agent["id"]))
    admin.good("PUT", "/settings", json={"routing": None})


def test_a_part_of_a_message_whose_skill_was_not_used_is_reminded_of_once(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    before = len(model.requests)
    _, answer = ask(admin, BOTH, tools=["activate_skill"])
    assert len(model.requests) == before + 2
    reminder = prompt(model)[-1]["content"]
    assert '"put the meeting into the calendar.": calendar-entry' in prompt(model)[-2]["content"]
    assert "invoice-maker" in prompt(model)[-2]["content"], reminder
    assert [step.get("name") for step in answer["steps"] if step["type"] == "user"] == ["reminder"]
    # A skill that acts is active; only the other one is left.
    before = len(model.requests)
    ask(admin, BOTH, "auto", tools=["activate_skill"])
    assert len(model.requests) == before + 2
    assert ("calendar-entry" in str(prompt(model)[-1]), "invoice-maker" in str(prompt(model)[-1])) in (
        (True, False),
        (False, True),
    )
    for text, mode in ((INVOICE, "suggest"), (BOTH, "off"), ("Say hello and also say goodbye", "suggest")):
        before = len(model.requests)
        ask(admin, text, mode, tools=["activate_skill"])
        assert len(model.requests) == before + 1, text


def prompt_after(
    person: ApiClient, model: ScriptedProvider, routing: str | None = None, **fields: Any
) -> list[dict[str, Any]]:
    ask(person, INVOICE, routing, tools=["activate_skill", "file_list"], **fields)
    return prompt(model)


def test_text_that_nobody_reviewed_never_activates_itself_and_foreign_items_are_never_matched(
    admin: ApiClient, model: ScriptedProvider
) -> None:
    body = {"name": "haiku-poems", "scope": "tenant", "content": OWN, "description": "Haiku."}
    skill = admin.good("POST", "/skills", json=body)["id"]
    conversation, _ = ask(admin, POEM, "auto")
    assert events_of(admin, conversation, "skill_activated") == []
    # The model of its owner gets its name, and decides.
    assert "haiku-poems" in prompt(model)[-1]["content"]
    agent = admin.good("POST", "/agents", json={**AGENT, "name": "Private"})["id"]
    with ApiClient(admin.server, None).register("other") as other:
        key = {"api_key": "sk-a-key", "default_model": "scripted"}
        new = {"name": "scripted", "provider_type": "openai", "base_url": f"{model.url}/v1", **key}
        provider = other.good("POST", "/providers", json=new)
        other.good("PUT", "/settings", json={"default_provider_id": provider["id"]})
        for text in (POEM, TRANSLATE):
            foreign, _ = ask(other, text, "auto")
            assert events_of(other, foreign, "skill_activated") == []
            assert events_of(other, foreign, "subagent_assigned") == []
            assert prompt(model)[-1]["content"] == text
    admin.good("POST", f"/skills/{skill}/review", json={})
    conversation, _ = ask(admin, POEM, "auto")
    (active,) = events_of(admin, conversation, "skill_activated")
    assert (active["name"], active["scope"], active["by"]) == ("haiku-poems", "tenant", "router")
    assert events_of(admin, conversation, "tainted") == []
    admin.good("DELETE", f"/agents/{agent}")
    admin.good("DELETE", f"/skills/{skill}")
