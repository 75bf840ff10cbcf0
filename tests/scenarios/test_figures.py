"""Figures that a program drew are images of its step: for their owner alone, live, stored and replayed."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess
from files.sample_files import png
from files.test_png import image

from luxx.providers.scripted import Call, ScriptedProvider
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import asks, results

BOB = "a-password-for-bob-1"


def drawing(padding: int = 0, **files: bytes) -> str:
    """A program that writes these figures, each followed by this much padding."""
    return f"""
import os
os.makedirs('figures', exist_ok=True)
for name, data in {files!r}.items():
    open(f'figures/figure-{{name}}.png', 'wb').write(data + bytes({padding}))
print('drawn')
"""


async def execute(person: AsyncApiClient, code: str) -> Json:
    return await person.post("/tools/python_execute/execute", {"arguments": {"code": code}})


def is_started(result: Json) -> bool:
    """Whether this host has a sandbox at all."""
    return result["success"] or "no sandbox is available" not in str(result["error"])


async def test_a_run_shows_the_figures_of_its_programs_live_stored_and_replayed(
    server: ServerProcess,
) -> None:
    call = Call(name="python_execute", arguments={"code": drawing(a=png(), b=image(30, 20))}, id="call-1")
    async with ScriptedProvider(asks(call)) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=True)
        screen = await ann.wait_for_end(run["id"])
        message = await ann.answer_shown_by(conversation, screen)
        (result,) = results(message)
        if not is_started(result):
            pytest.skip("no sandbox works here")
        (step,) = [step for step in message["steps"] if step["type"] == "tool_result"]
        images: list[Json] = sorted(step["files"], key=lambda one: one["name"])
        assert result["data"]["images"] == step["files"]
        assert [
            (image["path"], image["width"], image["height"], image["media_type"]) for image in images
        ] == [
            ("figures/figure-a.png", 1, 1, "image/png"),
            ("figures/figure-b.png", 30, 20, "image/png"),
        ]
        again = await ann.wait_for_end(run["id"])
        assert again.ordered() == message["steps"]
        for one, data in zip(images, (png(), image(30, 20)), strict=True):
            response = await ann.ask("GET", f"/files/{one['file_id']}")
            assert response.content == data
            assert hashlib.sha256(data).hexdigest() == one["sha256"]
        await check_only_the_owner_sees(ann, server.url, images)


async def check_only_the_owner_sees(ann: AsyncApiClient, url: str, images: list[Json]) -> None:
    body = {"username": "bob-of-figures", "password": BOB, "permission_level": 4}
    await ann.post("/auth/users", body)
    signed_in = await ann.post("/auth/login", {"username": "bob-of-figures", "password": BOB})
    async with AsyncApiClient(url, signed_in["access_token"]) as bob:
        for image in images:
            assert (await bob.ask("GET", f"/files/{image['file_id']}")).status_code == 404


async def test_a_bad_image_is_reported_and_the_program_does_not_fail(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        many = {f"n{number:02}": png() for number in range(11)}
        bad = {"bomb": image(rows=bytes(50_000_000)), "text": b"no image"}
        result = await execute(ann, drawing(**bad))
        if not is_started(result):
            pytest.skip("no sandbox works here")
        assert result["success"], result
        assert result["data"]["images"] == []
        assert result["data"]["not_shown"] == [
            "figures/figure-bomb.png is not shown: it does not match the size in its header",
            "figures/figure-text.png is not shown: it is not a PNG image",
        ]
        result = await execute(ann, drawing(**many))
        assert len(result["data"]["images"]) == 10
        assert result["data"]["not_shown"] == ["1 more figures are not shown: at most 10 are shown at once"]
        large = await execute(ann, drawing(6_000_000, large=png()))
        assert large["data"]["not_shown"] == [
            "figures/figure-large.png is not shown: it has 5.7 MiB; the limit is 5 MiB"
        ]
        linked = await execute(ann, "import os\nos.symlink('/etc/passwd', 'figures/figure-l.png')")
        assert linked["data"]["figures"] == []


async def test_figures_past_the_quota_are_reported_and_the_program_does_not_fail(tmp_path: Path) -> None:

    with ServerProcess(tmp_path, LUXX_FILES__QUOTA_MB="1") as server:
        url = server.url
        async with AsyncApiClient(url) as ann:
            filled = await execute(ann, "open('big.txt', 'w').write('x' * 1_200_000)")
            if not is_started(filled):
                pytest.skip("no sandbox works here")
            result: Any = await execute(ann, drawing(a=png()))
            assert result["success"], result
            assert result["data"]["figures"] == ["figures/figure-a.png"]
            assert result["data"]["images"] == []
            (words,) = result["data"]["not_shown"]
            assert words.startswith("the figures are not shown: your files use 1.1 MiB of 1 MiB;")
            assert json.dumps(result["data"]["stdout"]) == '"drawn\\n"'


def waiting_for(path: str) -> str:
    """The beginning or the end of a program: it waits until this figure is complete."""
    complete = f"os.path.exists({path!r}) and os.path.getsize({path!r}) == {len(png())}"
    return f"import os, time\nwhile not ({complete}): time.sleep(0.01)\n"


async def test_parallel_programs_see_each_others_figures_under_the_same_ids(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        # The second figure is drawn once the first program runs, and the first program waits for it.
        first, second = await asyncio.gather(
            execute(ann, drawing(side1=png()) + waiting_for("figures/figure-side2.png")),
            execute(ann, waiting_for("figures/figure-side1.png") + drawing(side2=png())),
        )
        if not is_started(first):
            pytest.skip("no sandbox works here")
        for one in (first, second):
            for shown in one["data"]["images"]:
                assert (await ann.ask("GET", f"/files/{shown['file_id']}")).content == png()
        assert len(first["data"]["images"]) == 2
