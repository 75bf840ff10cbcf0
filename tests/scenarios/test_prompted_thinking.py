"""An agent with prompted thinking: a model that does not think by itself is asked to, and what it thinks is
no part of its text, in every dialect."""

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, Thinking, When
from scenarios.client import AsyncApiClient, Json
from scenarios.rooms import run_to_the_end, said

ASKED = "write <think>"
THINKS = [
    Rule(
        name="calls",
        when=When(has_tool_result=False, system=ASKED),
        reply=[
            Text(text="<think>\nI compute.</think>Let me see. ", pieces=9),
            Call(name="python_eval", arguments={"expression": "6*7"}),
        ],
    ),
    Rule(
        name="answers",
        when=When(has_tool_result=True, system=ASKED),
        reply=[Text(text="<think>That is all.</think>It is 42, as </think> shows.", pieces=7)],
    ),
]
MODELS = [
    ("openai_compatible", "gpt-4.1-mini"),
    ("openai_responses", "gpt-4.1-mini"),
    ("anthropic", "claude-3-5-haiku-latest"),
    ("gemini", "gemini-2.0-flash"),
]


async def agent_of(ann: AsyncApiClient, url: str, provider_type: str, model: str, **more: object) -> Json:
    body = {"name": "Careful", "provider_id": await ann.connect(url, provider_type, model), **more}
    return await ann.post("/agents", body)


async def steps_of(ann: AsyncApiClient, conversation: str, **more: object) -> list[tuple[str, str]]:
    """The types and contents of the stored steps of an answer, without those of tools."""
    async with ann.send_and_follow(conversation, "6 times 7?", **more) as stream:
        screen = await stream.to_the_end()
    stored = (await ann.messages(conversation))[-1]
    steps = [(step["type"], step["content"]) for step in stored["steps"] if "tool" not in step["type"]]
    assert screen.text == stored["text"] == "".join(text for kind, text in steps if kind == "text")
    return steps


@pytest.mark.parametrize(("provider_type", "model"), MODELS)
async def test_a_model_that_is_asked_to_think_does_so_apart_from_its_text(
    server: ServerProcess, provider_type: str, model: str
) -> None:
    async with ScriptedProvider(Script(rules=THINKS)) as upstream, AsyncApiClient(server.url) as ann:
        agent = await agent_of(ann, upstream.url, provider_type, model, prompted_thinking=True)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        steps = await steps_of(ann, conversation, tools=["python_eval"])
        second = upstream.requests[1].body.decode()
    assert steps == [
        ("thinking", "\nI compute."),
        ("text", "Let me see. "),
        ("thinking", "That is all."),
        ("text", "It is 42, as </think> shows."),
    ]
    assert "Let me see." in second
    assert "I compute." not in second, "the model does not get its thinking back"


async def test_a_model_that_thinks_by_itself_is_not_asked(server: ServerProcess) -> None:
    rule = Rule(name="thinks", reply=[Thinking(text="Hm."), Text(text="Write <think>x</think> first.")])
    async with ScriptedProvider(Script(rules=[rule])) as upstream, AsyncApiClient(server.url) as ann:
        agent = await agent_of(ann, upstream.url, "anthropic", "claude-sonnet-4-5", prompted_thinking=True)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        steps = await steps_of(ann, conversation, tools=False)
        assert ASKED not in upstream.requests[0].body.decode()
    assert steps == [("thinking", "Hm."), ("text", "Write <think>x</think> first.")]


async def test_thinking_that_is_switched_off_is_not_asked_for(server: ServerProcess) -> None:
    rule = Rule(name="answers", reply=[Text(text="<think> is a tag.")])
    async with ScriptedProvider(Script(rules=[rule])) as upstream, AsyncApiClient(server.url) as ann:
        agent = await agent_of(ann, upstream.url, *MODELS[2], prompted_thinking=True)
        conversation = (await ann.post("/conversations", {"agent_id": agent["id"]}))["id"]
        steps = await steps_of(ann, conversation, tools=False, thinking_enabled=False)
        assert ASKED not in upstream.requests[0].body.decode()
    assert steps == [("text", "<think> is a tag.")]


async def test_a_seat_keeps_the_prompted_thinking_of_an_agent_that_was_deleted(server: ServerProcess) -> None:
    rule = Rule(name="says", when=When(system=ASKED), reply=[Text(text="<think>Hm.</think>It is 42.")])
    async with ScriptedProvider(Script(rules=[rule])) as upstream, AsyncApiClient(server.url) as ann:
        agent = await agent_of(ann, upstream.url, *MODELS[3], prompted_thinking=True)
        exported = (await ann.ask("GET", f"/agents/{agent['id']}/export")).text
        assert "prompted_thinking: true" in exported
        body = {
            "title": "Talk",
            "task": "6 times 7?",
            "agents": [{"name": "Asker", "role": "asks", "agent_id": agent["id"]}],
            "stop": {"rounds": 1},
        }
        room = await ann.post("/chat-rooms", body)
        assert (await ann.ask("DELETE", f"/agents/{agent['id']}")).is_success
        (seat,) = (await ann.get(f"/chat-rooms/{room['id']}"))["agents"]
        path = f"/chat-rooms/{room['id']}/agents/{seat['id']}"
        assert (await ann.ask("PUT", path, {"agent_id": None})).is_success
        frames = await run_to_the_end(ann, room["id"])
    assert said(frames) == [("Asker", "It is 42.")]
