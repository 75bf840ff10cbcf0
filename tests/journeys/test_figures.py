"""Figures that a program drew are images of its step: seen by their owner, live, stored and replayed."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from files.putting import png
from files.test_png import image

from journeys.asking import asks, results
from journeys.conftest import Traveller
from journeys.person import Json, Person
from journeys.server import LuxxServer
from luxx.providers.scripted import Call, ScriptedProvider

BOB = "a-password-for-bob-1"


def drawing(padding: int = 0, **files: bytes) -> str:
    """A program that leaves these figures, each with so many bytes behind it."""
    return f"""
import os
os.makedirs('figures', exist_ok=True)
for name, data in {files!r}.items():
    with open(f'draft-{{name}}', 'wb') as file:
        file.write(data + bytes({padding}))
    os.replace(f'draft-{{name}}', f'figures/figure-{{name}}.png')
print('drawn')
"""


async def executed(person: Person, code: str) -> Json:
    return await person.post("/tools/python_execute/execute", {"arguments": {"code": code}})


def is_started(result: Json) -> bool:
    """Whether this host has a sandbox at all."""
    return result["success"] or "nothing would hold them in" not in str(result["error"])


def test_a_run_shows_the_figures_of_its_programs_live_stored_and_replayed(
    server: LuxxServer, travel: Traveller
) -> None:
    async def journey() -> None:
        call = Call(name="python_execute", arguments={"code": drawing(a=png(), b=image(30, 20))}, id="call-1")
        async with ScriptedProvider(asks(call)) as model, Person(server.url) as ann:
            conversation = await ann.conversation(model.url)
            run = await ann.begin(conversation, tools=True)
            screen = await ann.see(run["id"])
            message = await ann.answer_shown_by(conversation, screen)
            (result,) = results(message)
            if not is_started(result):
                pytest.skip("no sandbox works here")
            (step,) = [one for one in message["steps"] if one["type"] == "tool_result"]
            images: list[Json] = sorted(step["images"], key=lambda one: one["name"])
            assert result["data"]["images"] == step["images"]
            assert [(one["path"], one["width"], one["height"], one["media_type"]) for one in images] == [
                ("figures/figure-a.png", 1, 1, "image/png"),
                ("figures/figure-b.png", 30, 20, "image/png"),
            ]
            again = await ann.see(run["id"])
            assert again.ordered() == message["steps"]
            for one, data in zip(images, (png(), image(30, 20)), strict=True):
                found = await ann.ask("GET", f"/files/{one['file_id']}")
                assert found.content == data
                assert hashlib.sha256(data).hexdigest() == one["sha256"]
            await only_the_owner_sees(ann, server.url, images)

    travel(journey())


async def only_the_owner_sees(ann: Person, url: str, images: list[Json]) -> None:
    body = {"username": "bob-of-figures", "password": BOB, "permission_level": 4}
    await ann.post("/auth/users", body)
    signed_in = await ann.post("/auth/login", {"username": "bob-of-figures", "password": BOB})
    async with Person(url, signed_in["access_token"]) as bob:
        for one in images:
            assert (await bob.ask("GET", f"/files/{one['file_id']}")).status_code == 404


def test_what_is_no_image_is_named_and_the_program_does_not_fail(
    server: LuxxServer, travel: Traveller
) -> None:
    async def journey() -> None:
        async with Person(server.url) as ann:
            many = {f"n{number:02}": png() for number in range(11)}
            bad = {"bomb": image(rows=bytes(50_000_000)), "text": b"no image"}
            result = await executed(ann, drawing(**bad))
            if not is_started(result):
                pytest.skip("no sandbox works here")
            assert result["success"], result
            assert result["data"]["images"] == []
            assert result["data"]["not_shown"] == [
                "figures/figure-bomb.png is not shown: it does not unpack to what it says it holds",
                "figures/figure-text.png is not shown: it is no PNG image",
            ]
            result = await executed(ann, drawing(**many))
            assert len(result["data"]["images"]) == 10
            assert result["data"]["not_shown"] == ["1 more figures are not shown: 10 are at once"]
            large = await executed(ann, drawing(6_000_000, large=png()))
            assert large["data"]["not_shown"] == [
                "figures/figure-large.png is not shown: it has 5.7 MiB, and may have 5"
            ]
            linked = await executed(ann, "import os\nos.symlink('/etc/passwd', 'figures/figure-l.png')")
            assert linked["data"]["figures"] == []

    travel(journey())


def test_figures_past_the_quota_are_told_of_and_the_program_does_not_fail(
    tmp_path: Path, travel: Traveller
) -> None:
    async def journey(url: str) -> None:
        async with Person(url) as ann:
            filled = await executed(ann, "open('big.txt', 'w').write('x' * 1_200_000)")
            if not is_started(filled):
                pytest.skip("no sandbox works here")
            result: Any = await executed(ann, drawing(a=png()))
            assert result["success"], result
            assert result["data"]["figures"] == ["figures/figure-a.png"]
            assert result["data"]["images"] == []
            (words,) = result["data"]["not_shown"]
            assert words.startswith("the figures are not shown: your files take 1.1 MiB and may take 1;")
            assert json.dumps(result["data"]["stdout"]) == '"drawn\\n"'

    with LuxxServer(tmp_path / "data", {"LUXX_FILES__QUOTA_MB": "1"}) as server:
        travel(journey(server.url))


def test_programs_side_by_side_see_each_others_figures_under_the_same_ids(
    server: LuxxServer, travel: Traveller
) -> None:
    async def journey() -> None:
        async with Person(server.url) as ann:
            wait = "import time, os\nwhile not os.path.exists('figures/figure-side2.png'): time.sleep(0.01)"
            first, second = await asyncio.gather(
                executed(ann, drawing(side1=png()) + wait), executed(ann, drawing(side2=png()))
            )
            if not is_started(first):
                pytest.skip("no sandbox works here")
            for one in (first, second):
                for shown in one["data"]["images"]:
                    assert (await ann.ask("GET", f"/files/{shown['file_id']}")).content == png()
            assert len(first["data"]["images"]) == 2

    travel(journey())
