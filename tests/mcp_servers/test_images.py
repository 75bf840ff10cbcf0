"""Images of MCP results: files of the user, images of the step, and parts of the next requests to models."""

import base64
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess
from files.sample_files import png
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import results

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When
from mcp_servers.harness import sample_server, sdk_packages
from mcp_servers.test_over_http import ready

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DATA = base64.b64encode(PIXEL).decode()
DRAW = "mcp__default_notes__draw"
CALLS = [Call(name=DRAW, id="call-one"), Call(name=DRAW, id="call-two")]
SCRIPT = Script(
    models=["gpt-4.1-mini", "claude-sonnet-4-5", "gemini-2.5-flash", "gemini-3-pro", "deepseek-chat"],
    rules=[
        Rule(when=When(user="draw", has_tool_result=False), reply=CALLS),
        Rule(when=When(user="draw"), reply=[Text(text="There.")]),
        Rule(when=When(user="again"), reply=[Text(text="I still see it.")]),
    ],
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir: Path = tmp_path_factory.mktemp("mcp") / "data"
    data_dir.mkdir()
    (data_dir / "packages").symlink_to(sdk_packages())
    servers = [sample_server("notes", "notes.py", trusted=True)]
    with ServerProcess(data_dir.parent, LUXX_MCP__SERVERS=json.dumps(servers)) as started_server:
        yield started_server


def openai_images(request: Json) -> list[list[Any]]:
    """The images after each group of results: each part of the user's message that follows them."""
    messages = request["messages"]
    after = [two for one, two in pairwise(messages) if one["role"] == "tool"]
    assert all(isinstance(each["content"], str) for each in messages if each["role"] == "tool")
    return [
        [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
        for message in after
        if message["role"] == "user"
    ]


def anthropic_images(request: Json) -> list[list[Any]]:
    blocks = [
        block
        for message in request["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert [block["content"][0]["type"] for block in blocks] == ["text"] * len(blocks)
    return [[part["source"]["data"] for block in blocks for part in block["content"][1:]]]


def gemini_images(request: Json) -> list[list[Any]]:
    """The parts with data that follow the results of a turn."""
    turns = [content["parts"] for content in request["contents"] if "functionResponse" in content["parts"][0]]
    assert all("parts" not in parts[0]["functionResponse"] for parts in turns)
    return [[part["inlineData"]["data"] for part in parts[2:] if "inlineData" in part] for parts in turns]


def gemini3_images(request: Json) -> list[list[Any]]:
    parts = [part for content in request["contents"] for part in content["parts"]]
    responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
    assert not any("inlineData" in part for part in parts)
    return [[part["inlineData"]["data"] for response in responses for part in response["parts"]]]


@pytest.mark.parametrize(
    ("provider_type", "path", "model", "images_in"),
    [
        ("openai", "/v1", "gpt-4.1-mini", openai_images),
        ("anthropic", "", "claude-sonnet-4-5", anthropic_images),
        ("gemini", "/v1beta", "gemini-2.5-flash", gemini_images),
        ("gemini", "/v1beta", "gemini-3-pro", gemini3_images),
    ],
)
async def test_a_model_gets_the_images_of_results_in_this_turn_and_in_later_ones(
    server: ServerProcess, provider_type: str, path: str, model: str, images_in: Any
) -> None:
    async with AsyncApiClient(server.url) as ann, ScriptedProvider(SCRIPT) as provider:
        await ready(ann, servers=1)
        conversation = await new_conversation(ann, provider_type, f"{provider.url}{path}", model)
        for text in ("draw it twice", "again?"):
            await ann.post("/messages", {"conversation_id": conversation, "content": text, "tools": True})
        _, second, third = [request.json for request in provider.requests]
        for request in (second, third):
            (images,) = images_in(request)
            assert [image.rpartition(",")[2] for image in images] == [DATA, DATA]
        answer = (await ann.messages(conversation))[1]
        steps = [step for step in answer["steps"] if step["type"] == "tool_result"]
        assert all(step["is_untrusted"] for step in steps)
        (image, same) = [step["files"][0] for step in steps]
        assert image == same
        assert (image["media_type"], image["size"], image["width"]) == ("image/png", len(PIXEL), 1)
        assert (await ann.ask("GET", f"/files/{image['file_id']}")).content == PIXEL
        told = f"[image: image/png, {len(PIXEL)} bytes, saved as {image['path']}]"
        assert [result["data"] for result in results(answer)] == [told, told]


async def new_conversation(ann: AsyncApiClient, provider_type: str, url: str, model: str) -> str:
    provider = {
        "name": url + model,
        "provider_type": provider_type,
        "base_url": url,
        "api_key": "sk-a-key-of-a-test",
        "default_model": model,
    }
    provider_id = (await ann.post("/providers", provider))["id"]
    return (await ann.post("/conversations", {"provider_id": provider_id}))["id"]


async def test_a_model_that_reads_no_images_gets_their_names(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann, ScriptedProvider(SCRIPT) as provider:
        await ready(ann, servers=1)
        conversation = await new_conversation(ann, "openai", f"{provider.url}/v1", "deepseek-chat")
        for text in ("draw it", "again?"):
            await ann.post("/messages", {"conversation_id": conversation, "content": text, "tools": True})
        image = (await ann.messages(conversation))[1]["steps"][2]["files"][0]
        for request in provider.requests[1:]:
            assert DATA not in request.body.decode()
            told = [each["content"] for each in request.json["messages"] if each["role"] == "tool"]
            assert all(
                each.endswith(f"\n\n[Images not shown to this model: {image['name']}.]") for each in told
            )


async def test_a_file_that_has_changed_is_not_given_to_a_model_as_the_image(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann, ScriptedProvider(SCRIPT) as provider:
        await ready(ann, servers=1)
        conversation = await new_conversation(ann, "openai", f"{provider.url}/v1", "gpt-4.1-mini")
        message = {"conversation_id": conversation, "content": "draw it", "tools": True}
        await ann.post("/messages", message)
        image = (await ann.messages(conversation))[1]["steps"][2]["files"][0]
        (file,) = server.folder.glob(f"workspaces/*/{image['path']}")
        file.write_bytes(png(3))
        await ann.post("/messages", message | {"content": "again?"})
        sent = provider.requests[-1].body.decode()
        assert DATA not in sent
        assert f"Images not shown to this model: {image['name']}" in sent


OLD, NEW = '"images":[{"file_id":', '"files":[{"file_id":'


async def test_the_images_of_steps_that_an_older_version_stored_are_their_files(
    server: ServerProcess,
) -> None:
    async with AsyncApiClient(server.url) as ann, ScriptedProvider(SCRIPT) as provider:
        await ready(ann, servers=1)
        conversation = await new_conversation(ann, "openai", f"{provider.url}/v1", "gpt-4.1-mini")
        body = {"conversation_id": conversation, "content": "draw it", "tools": True}
        await ann.post("/messages", body)
        (run_id,) = [run["id"] for run in (await ann.get("/runs", subject_id=conversation))["items"]]
        events = f"/runs/{run_id}/events"

        async def shown() -> list[Any]:
            return [
                await ann.messages(conversation),
                (await ann.ask("GET", events, headers={"accept": "application/json"})).json()["data"],
                (await ann.ask("GET", events, headers={"accept": "text/event-stream"})).text.partition(
                    "\n\n"
                )[2],
                (await ann.ask("GET", f"/conversations/{conversation}/events")).json()["data"],
            ]

        before = await shown()
        assert all('"files"' in json.dumps(one) or NEW in one for one in before)
        with closing(sqlite3.connect(server.data_dir / "luxx.db", timeout=20)) as database, database:
            changed = database.execute("UPDATE messages SET content = replace(content, ?, ?)", (NEW, OLD))
            assert changed.rowcount
            database.execute(
                "UPDATE run_events SET data = CAST(replace(CAST(data AS TEXT), ?, ?) AS BLOB)", (NEW, OLD)
            )
        assert await shown() == before
        await ann.post("/messages", {**body, "content": "again?"})
        (images,) = openai_images(provider.requests[-1].json)
        assert [image.rpartition(",")[2] for image in images] == [DATA, DATA]
