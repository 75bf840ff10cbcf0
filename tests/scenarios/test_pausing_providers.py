"""Providers that pause a turn: the turn continues as one message, within bounds."""

import json
from typing import Any

from api.server_process import ServerProcess

from luxx.providers.scripted import (
    Bytes,
    Counts,
    Finish,
    Gate,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    When,
)
from scenarios.client import AsyncApiClient
from scenarios.screen import Screen

SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"url": "https://a.b"}]}


def stream(stop_reason: str, *blocks: dict[str, Any]) -> Bytes:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": "scripted", "content": []}}
    ]
    for index, block in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    usage = {"input_tokens": 5, "output_tokens": 3}
    events.append({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage})
    events.append({"type": "message_stop"})
    return Bytes(data="".join(f"data: {json.dumps(event)}\n\n" for event in events))


async def conversation_with(ann: AsyncApiClient, url: str) -> str:
    body = {
        "name": url,
        "provider_type": "anthropic",
        "base_url": url,
        "api_key": "sk-a-key",
        "default_model": "scripted",
    }
    provider_id = (await ann.post("/providers", body))["id"]
    return (await ann.post("/conversations", {"provider_id": provider_id}))["id"]


async def chat(ann: AsyncApiClient, conversation: str, content: str = "Hello") -> Screen:
    async with ann.send_and_follow(conversation, content) as frames:
        return await frames.to_the_end()


def sent_messages(model: ScriptedProvider, number: int) -> list[dict[str, Any]]:
    return json.loads(model.requests[number].body)["messages"]


async def test_a_paused_turn_is_continued_as_one_message(server: ServerProcess) -> None:
    text = {"type": "text", "text": "I look. "}

    script = Script(
        rules=[
            Rule(when=When(call=1), reply=[stream("pause_turn", text, SEARCH)]),
            Rule(when=When(call=2), reply=[stream("end_turn", FOUND, {"type": "text", "text": "Found."})]),
            Rule(reply=[Text(text="You are welcome.")]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url)
        screen = await chat(ann, conversation)
        message = await ann.answer_shown_by(conversation, screen)
        assert (message["text"], message["status"]) == ("I look. Found.", "complete")
        assert screen.done is not None
        assert screen.done["status"] == "completed"
        assert (await ann.run(screen.run_id))["usage"]["completion_tokens"] == 6
        assert sent_messages(model, 1)[1:] == [{"role": "assistant", "content": [text, SEARCH]}]
        await chat(ann, conversation, "Thanks")
        turns = sent_messages(model, 2)
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
        assert turns[1]["content"] == [text, SEARCH, FOUND, {"type": "text", "text": "Found."}]


async def test_the_run_is_in_phase_thinking_during_the_call_after_a_pause(server: ServerProcess) -> None:
    paused = [Text(text="Wait. "), Counts(prompt=1, completion=1), Finish(reason="pause_turn")]
    script = Script(
        rules=[Rule(when=When(call=1), reply=paused), Rule(reply=[Gate(name="on"), Text(text="Done.")])]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url)
        async with ann.send_and_follow(conversation) as frames:
            await frames.until("cost_update")
            await model.arrived(2)
            assert (await ann.run(frames.screen.run_id))["phase"] == "thinking"
            model.release("on")
            assert (await frames.to_the_end()).text == "Wait. Done."


async def test_a_provider_that_always_pauses_is_called_a_bounded_number_of_times(
    server: ServerProcess,
) -> None:
    """The server allows three iterations with tools, and one more."""

    reply = [Text(text="Wait. "), Counts(prompt=1, completion=1), Finish(reason="pause_turn")]
    async with (
        ScriptedProvider(Script(rules=[Rule(reply=reply)])) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await conversation_with(ann, model.url)
        screen = await chat(ann, conversation)
        assert screen.done is not None
        assert screen.done["status"] == "max_iterations_reached"
        assert screen.text == "Wait. " * 4
        assert len(model.requests) == 4
        assert (await ann.run(screen.run_id))["stop_reason"] == "max_iterations"
