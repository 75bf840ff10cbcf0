"""A conversation with a model of the Gemini dialect: a tool call, its signature, and the next message."""

import json
from typing import Any

from api.server_process import ServerProcess

from luxx.providers.scripted import (
    Bytes,
    Call,
    Counts,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)
from scenarios.client import AsyncApiClient

SIGNATURE = "c2NyaXB0ZWQ="


async def conversation_with(ann: AsyncApiClient, url: str) -> str:
    body = {
        "name": url,
        "provider_type": "gemini",
        "base_url": url,
        "api_key": "AIza-a-key-of-some-length",
        "default_model": "gemini-2.5-flash",
    }
    provider_id = (await ann.post("/providers", body))["id"]
    return (await ann.post("/conversations", {"provider_id": provider_id}))["id"]


def turns(sent: Any) -> list[tuple[str, list[str]]]:
    """The contents of a request: each role with the kinds of its parts."""
    return [
        (
            content["role"],
            [next(key for key in part if key != "thoughtSignature") for part in content["parts"]],
        )
        for content in sent["contents"]
    ]


async def test_a_signature_comes_back_with_the_result_and_with_the_next_message(
    server: ServerProcess,
) -> None:
    rules = [
        Rule(
            when=When(user="6 times 7", has_tool_result=False),
            reply=[
                Thinking(text="I compute."),
                Text(text="Let me see. "),
                Call(name="python_eval", arguments={"expression": "6*7"}),
                Counts(prompt=10, completion=5),
            ],
        ),
        Rule(when=When(has_tool_result=True), reply=[Text(text="It is 42.")]),
        Rule(when=When(user="Thanks"), reply=[Text(text="You are welcome.")]),
    ]

    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url)
        async with ann.send_and_follow(conversation, "6 times 7?") as stream:
            screen = await stream.to_the_end()
        assert screen.text == "Let me see. It is 42."
        async with ann.send_and_follow(conversation, "Thanks") as stream:
            assert (await stream.to_the_end()).text == "You are welcome."
        first, second, third = (request.json for request in model.requests)
        declared = {
            declaration["name"]: declaration for declaration in first["tools"][0]["functionDeclarations"]
        }
        assert "expression" in declared["python_eval"]["parametersJsonSchema"]["properties"]
        spoken = [("user", ["text"]), ("model", ["text", "functionCall"]), ("user", ["functionResponse"])]
        assert turns(second) == spoken
        assert turns(third) == [*spoken, ("model", ["text"]), ("user", ["text"])]
        for sent in (second, third):
            call = sent["contents"][1]["parts"][1]
            answer = sent["contents"][2]["parts"][0]["functionResponse"]
            assert call["thoughtSignature"] == SIGNATURE
            assert call["functionCall"]["args"] == {"expression": "6*7"}
            assert (answer["id"], answer["name"]) == (call["functionCall"]["id"], "python_eval")
            assert "42" in answer["response"]["output"]


async def test_a_blocked_prompt_is_answered_with_the_reason(server: ServerProcess) -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}
    rule = Rule(reply=[Bytes(data=f"data: {json.dumps(blocked)}\r\n\r\n")])

    async with ScriptedProvider(Script(rules=[rule])) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        (step,) = (await ann.messages(conversation))[1]["steps"]
        assert (screen.text, step["content"]) == ("", "")
        assert "its safety filter (SAFETY)" in step["notice"]
