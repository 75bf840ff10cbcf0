"""The rows of `make bench` for rooms and tasks, in small: they run to the end and find what they count."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import turns
from tests.bench.figures import Figures
from tests.bench.rows import ROWS
from tests.bench.upstream import Upstream

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parent.parent


async def measured(row: str) -> dict[str, float]:
    """The medians of one round of this row, by name."""
    upstream, figures = Upstream(), Figures()
    await upstream.open()
    try:
        async with asyncio.timeout(120):
            async for _ in ROWS[row](upstream, figures, 1):
                pass
    finally:
        await upstream.close()
    return {figure.name: figure.median for figure in figures}


def run_module(module: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", f"tests.bench.{module}", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=True, timeout=120)
    return json.loads(done.stdout)


async def test_the_baseline_of_a_room_gets_every_token_of_every_turn() -> None:
    upstream = Upstream()
    await upstream.open()
    url = f"http://127.0.0.1:{upstream.port}/v1"
    result = await asyncio.to_thread(run_module, "baseline_room", url, "4", "[[n=3]]")
    await upstream.close()
    assert result["characters"] == 4 * 3 * len(" 00000@00000000")
    assert upstream.requests == 2 * 4  # Once to warm up, once measured.


@pytest.mark.parametrize("row", ["room", "rooms", "steps", "fold"])
async def test_a_row_of_rooms_and_tasks_measures_what_it_names(
    row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A peer that is installed on this machine would take minutes.
    monkeypatch.setattr(turns, "peer_python", lambda _name: None)
    monkeypatch.setattr(turns, "ROUNDS_OF_ROOM", 1)
    monkeypatch.setattr(turns, "TURNS", 4)
    monkeypatch.setattr(turns, "ROOMS", 2)
    monkeypatch.setattr(turns, "ROUNDS_AT_ONCE", 1)
    monkeypatch.setattr(turns, "TASKS", 1)
    monkeypatch.setattr(turns, "FOLDED_ROUNDS", 2)
    figures = await measured(row)
    assert figures
    assert all(value > 0 for name, value in figures.items() if "added" not in name)
    if row == "steps":
        assert figures["step, luxx in memory"] < figures["step, luxx durable"]
