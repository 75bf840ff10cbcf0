"""What an answer shows besides its text: thinking that the provider did not mark, sources, images."""

from luxx.providers.scripted import Counts, Rule, Script, ScriptedProvider, Text
from scenarios.client import AsyncApiClient
from scenarios.rooms import new_room, run_to_the_end, said
from scenarios.server import LuxxServer

UNMARKED = [
    *(Text(text=part, pieces=1) for part in ("I have to ", "greet. ", "</thi", "nk>", "\n\nHello")),
    Counts(prompt=5, completion=3),
]


async def test_text_before_a_closing_tag_becomes_thinking(server: LuxxServer) -> None:
    script = Script(rules=[Rule(reply=UNMARKED)])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as frames:
            screen = await frames.to_the_end()
        message = (await ann.messages(conversation))[-1]
        shown = [("thinking", "I have to greet. "), ("text", "\n\nHello")]
        assert [(step["type"], step["content"]) for step in message["steps"]] == shown
        assert [(step["type"], step["content"]) for step in screen.ordered()] == shown
        assert (message["text"], screen.text) == ("\n\nHello", "\n\nHello")


async def test_a_room_shows_only_the_text_after_a_closing_tag(server: LuxxServer) -> None:
    script = Script(rules=[Rule(reply=UNMARKED)])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", max_rounds=1)
        assert said(await run_to_the_end(ann, room["id"])) == [("Anna", "Hello")]


async def test_the_openai_api_answers_with_the_text_after_a_closing_tag(server: LuxxServer) -> None:
    script = Script(rules=[Rule(reply=UNMARKED)])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        body = {"name": "unmarked", "provider_type": "openai", "base_url": f"{model.url}/v1"}
        await ann.post("/providers", {**body, "default_model": "scripted"})
        asked = {"model": "unmarked/scripted", "messages": [{"role": "user", "content": "Hello"}]}
        answer = (await ann.ask("POST", "/v1/chat/completions", asked)).json()
        message = answer["choices"][0]["message"]
        assert message["content"] == "\n\nHello"
        assert message["reasoning_content"] == "I have to greet. "
