"""An upstream that hangs: its runs fail, even after a kill of their driver, and other runs do not
wait for it.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios.scripts import PROSE, words

from chaos.cluster import Cluster
from chaos.invariants import check_database
from chaos.round_robin_client import RoundRobinClient
from luxx.providers.scripted import Faults, Rule, Script, ScriptedProvider, Text, When

SILENCE_SECONDS = 2.0
HANGING = 12
NORMAL_SECONDS = 5.0
"""A run without faults ends within this time, even on a busy machine."""


@pytest.fixture
def impatient(sqlite_folder: Path) -> Iterator[Cluster]:
    """One process with a short upstream timeout and one retry."""
    environment = {
        "LUXX_PROVIDERS__IDLE_TIMEOUT_SECONDS": str(SILENCE_SECONDS),
        "LUXX_PROVIDERS__CONNECT_TIMEOUT_SECONDS": "1",
        "LUXX_PROVIDERS__RETRIES": "1",
    }
    with Cluster(sqlite_folder, environment=environment) as cluster:
        yield cluster


async def test_runs_on_a_hanging_upstream_fail_even_after_a_kill_and_others_do_not_wait(
    impatient: Cluster,
) -> None:
    script = Script(
        rules=[
            Rule(name="mute", when=When(user="mute"), faults=Faults(never_start=True)),
            Rule(name="stalls", when=When(user="stall"), reply=words(PROSE), faults=Faults(stall_at=900)),
            Rule(name="well", reply=[Text(text="I am well.")]),
        ]
    )

    async def well(ann: RoundRobinClient, conversation: str) -> None:
        begun = time.monotonic()
        answer = await ann.post("/messages", {"conversation_id": conversation, "content": "well?"})
        assert answer["text"] == "I am well."
        assert time.monotonic() - begun < NORMAL_SECONDS

    async with ScriptedProvider(script) as model, RoundRobinClient(impatient.url) as ann:
        conversations = [await ann.conversation(model.url) for _ in range(HANGING + 1)]
        *hanging, healthy = conversations
        asked = ["mute" if n % 2 else "stall" for n in range(HANGING)]
        runs = [
            await ann.start_run(conversation_id, text)
            for conversation_id, text in zip(hanging, asked, strict=True)
        ]
        await model.arrived(HANGING)
        await well(ann, healthy)
        await impatient.kill(impatient.webs[0])
        await impatient.start(impatient.webs[0])
        await well(ann, healthy)
        screens = await asyncio.gather(*(ann.follow_to_end(run["id"]) for run in runs))
        for conversation_id, screen in zip(hanging, screens, strict=True):
            assert screen.done is not None
            assert screen.done["status"] == "failed"
            assert screen.error is not None
            assert "sent nothing" in screen.error["message"] or "did not start" in screen.error["message"]
            assert (await ann.run(screen.run_id))["status"] == "failed"
            assert (await ann.answer_shown_by(conversation_id, screen))["status"] in ("partial", "failed")
        await well(ann, hanging[0])
    await asyncio.to_thread(check_database, impatient)
