"""What an answer shows besides its text: thinking that the provider did not mark, sources, images."""

import json
from base64 import b64encode
from hashlib import sha256
from typing import Any

from api.server_process import ServerProcess
from openai_api.conftest import png

from luxx.providers.scripted import Bytes, Counts, Rule, Script, ScriptedProvider, Text
from scenarios.client import AsyncApiClient
from scenarios.rooms import new_room, run_to_the_end, said

UNMARKED = [
    *(Text(text=part, pieces=1) for part in ("I have to ", "greet. ", "</thi", "nk>", "\n\nHello")),
    Counts(prompt=5, completion=3),
]


async def test_text_before_a_closing_tag_becomes_thinking(server: ServerProcess) -> None:
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


async def test_a_room_shows_only_the_text_after_a_closing_tag(server: ServerProcess) -> None:
    script = Script(rules=[Rule(reply=UNMARKED)])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", max_rounds=1)
        assert said(await run_to_the_end(ann, room["id"])) == [("Anna", "Hello")]


async def test_the_openai_api_answers_with_the_text_after_a_closing_tag(server: ServerProcess) -> None:
    script = Script(rules=[Rule(reply=UNMARKED)])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        body = {"name": "unmarked", "provider_type": "openai", "base_url": f"{model.url}/v1"}
        await ann.post("/providers", {**body, "default_model": "scripted"})
        asked = {"model": "unmarked/scripted", "messages": [{"role": "user", "content": "Hello"}]}
        answer = (await ann.ask("POST", "/v1/chat/completions", asked)).json()
        message = answer["choices"][0]["message"]
        assert message["content"] == "\n\nHello"
        assert message["reasoning_content"] == "I have to greet. "


PNG = png()
PAGES = [("https://a.example/bread", "Bread"), ("https://www.b.example/yeast", "Yeast")]


def chunks(*deltas: dict[str, Any], **beside: Any) -> list[Any]:
    """A stream of these deltas in the dialect of OpenAI; each chunk has `beside`."""
    made = [{"choices": [{"index": 0, "delta": delta}], **beside} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [Bytes(data=f"data: {json.dumps(chunk)}\n\n") for chunk in [*made, end]]


def image_delta(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    url = f"data:{media_type};base64,{b64encode(data).decode()}"
    return {"images": [{"type": "image_url", "image_url": {"url": url}}]}


async def answered(server: ServerProcess, *reply: Any) -> dict[str, Any]:
    """The message with this reply of the model; the events show the steps that are stored."""
    script = Script(rules=[Rule(reply=[*reply])])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as frames:
            screen = await frames.to_the_end()
        message = (await ann.messages(conversation))[-1]
        assert screen.ordered() == message["steps"]
        return message


async def test_sources_that_the_provider_names_are_citations(server: ServerProcess) -> None:
    results = [{"url": url, "title": title, "snippet": f"About {title}"} for url, title in PAGES]
    beside = {"citations": [url for url, _ in PAGES], "search_results": results}

    message = await answered(server, *chunks({"content": "Bread "}, {"content": "rises."}, **beside))

    assert message["text"] == "Bread rises."
    assert message["citations"] == [
        {"index": 1, "url": PAGES[0][0], "title": "Bread", "domain": "a.example", "snippet": "About Bread"},
        {"index": 2, "url": PAGES[1][0], "title": "Yeast", "domain": "b.example", "snippet": "About Yeast"},
    ]


async def test_sources_after_the_text_are_those_of_the_text(server: ServerProcess) -> None:
    annotation = {"type": "url_citation", "url_citation": {"url": PAGES[0][0], "title": "Bread"}}
    late = [{"reasoning_content": "Done."}, {"annotations": [annotation]}]

    message = await answered(server, *chunks({"content": "Bread rises."}, *late))

    assert [step["type"] for step in message["steps"]] == ["text", "thinking"]
    assert [citation["url"] for citation in message["citations"]] == [PAGES[0][0]]


async def test_images_of_the_model_are_files_of_the_user(server: ServerProcess) -> None:
    message = await answered(server, *chunks({"content": "Here."}, image_delta(PNG), image_delta(PNG)))

    (step,) = message["steps"]
    (image,) = step["files"]
    assert (step["type"], step["content"]) == ("text", "Here.")
    assert (image["media_type"], image["width"], image["height"]) == ("image/png", 1, 1)
    assert image["sha256"] == sha256(PNG).hexdigest()
    async with AsyncApiClient(server.url) as ann:
        assert (await ann.ask("GET", f"/files/{image['file_id']}")).content == PNG


async def test_an_image_alone_is_an_answer(server: ServerProcess) -> None:
    message = await answered(server, *chunks(image_delta(PNG)))

    assert [(step["type"], step["content"], len(step["files"])) for step in message["steps"]] == [
        ("text", "", 1)
    ]


async def test_an_image_that_cannot_be_shown_is_a_notice(server: ServerProcess) -> None:
    message = await answered(server, *chunks({"content": "Here."}, image_delta(b"no image")))

    text, notice = message["steps"]
    assert (message["text"], text["content"], notice["content"]) == ("Here.", "Here.", "")
    assert notice["notice"].startswith("An image that the model generated is not shown: it is")
    assert not any("files" in one for one in message["steps"])
