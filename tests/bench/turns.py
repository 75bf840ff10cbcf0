"""The rows of rooms, tasks and long turns: a turn in a room of four, ten rooms at once, a step of a graph,
the fold of a long room, a call after a long history.

Baselines and peers do the same with the same model server in processes of their own, in the same rounds.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tests.bench.discussion import SEATS, graph
from tests.bench.figures import Figures
from tests.bench.load import LUXX_TEXT, ROOM_TEXT, Answer, Broken, Client, Target, luxx_target, run_target
from tests.bench.peers import peer_python
from tests.bench.processes import ROOT, Api, MeasuredServer, luxx_server, server_core
from tests.bench.upstream import Upstream

TURN_TOKENS = 50
ROUNDS_OF_ROOM = 5
TURNS = ROUNDS_OF_ROOM * len(SEATS)
ROOMS = 10
ROUNDS_AT_ONCE = 10
DELAY_MS = 10
"""Between the tokens of the rooms that run at once: 1,000 tokens a second in all."""

TASKS = 4
CONCURRENT_STEPS = 10
QUIET_SECONDS = 0.2
FOLDED_SEATS, FOLDED_ROUNDS = 10, 100
"""1,000 messages, the most that a room's run may have."""

HISTORIES = {"10,000": 5, "200,000": 100}
"""The messages of 2,000 tokens in histories of so many tokens."""

FILLER = "The old gardener waters a pear tree near the wall. " * 160
CALLS_AFTER = 20

BURST = f"[[n={TURN_TOKENS}]]"
PACED = f"[[n={TURN_TOKENS} delay=2]]"
PEERS = {"autogen": "AutoGen", "langgraph": "LangGraph"}


async def room_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """A turn in a room of four seats, 50 tokens, followed by one client; the model answers at once.

    The second figures are of a model that writes a token every 2 ms, so that each is read alone.
    """
    with contextlib.ExitStack() as stack:
        luxx, api = await asyncio.to_thread(_start, stack, upstream)
        for number in range(rounds + 1):
            for marker, pace in ((BURST, ""), (PACED, ", tokens one by one")):
                cpu, threads = await room_turns(luxx, api, marker)
                others = {name: await _measured(module, upstream, marker) for name, module in _others()}
                if number > 0:  # the first round warms up
                    _report_turn(figures, pace, cpu, threads, others)
            if number > 0:
                yield


async def room_turns(luxx: MeasuredServer, api: Api, marker: str) -> tuple[float, float]:
    """CPU ms of a turn, and of it in other threads than the event loop's."""
    room = await asyncio.to_thread(api.new_room, SEATS, ROUNDS_OF_ROOM, marker)
    await asyncio.sleep(QUIET_SECONDS)
    cpu, threads = luxx.cpu(), luxx.threads_cpu()
    await _follow_room(luxx, api, room, TURNS)
    await asyncio.sleep(QUIET_SECONDS)
    return (luxx.cpu() - cpu) / TURNS * 1e3, (luxx.threads_cpu() - threads) / TURNS * 1e3


async def _follow_room(luxx: MeasuredServer, api: Api, room: str, turns: int) -> Answer:
    target = run_target(luxx.port, api.token, f"/chat-rooms/{room}/start", ROOM_TEXT, TURN_TOKENS)
    client = await Client.connect(target)
    try:
        return await client.stream("", "", turns * TURN_TOKENS)
    finally:
        client.close()


def _report_turn(
    figures: Figures, pace: str, cpu: float, threads: float, others: dict[str, dict[str, float]]
) -> None:
    baseline = others["httpx baseline"]["turn"]
    figures.add("room", f"turn, httpx baseline{pace}", baseline, "ms")
    figures.add("room", f"turn, luxx{pace}", cpu, "ms", at_most=None if pace else 5)
    figures.add("room", f"… of it in other threads{pace}", threads, "ms")
    figures.add("room", f"turn, luxx / httpx baseline{pace}", cpu / baseline, "×", at_most=2.8)
    for name, measured in others.items():
        if name == "httpx baseline":
            continue
        for kind, label in (("turn", name), ("turn_sqlite", f"{name} with SQLite")):
            if kind in measured:
                figures.add("room", f"turn, {label}{pace}", measured[kind], "ms")
                figures.add("room", f"turn, {label} / luxx{pace}", measured[kind] / cpu, "×")


def _others() -> list[tuple[str, list[str]]]:
    """The commands of the baseline and of the installed peers."""
    baseline = ("httpx baseline", [sys.executable, "-m", "tests.bench.baseline_room"])
    peers = [
        (label, [str(python), "-m", f"tests.bench.peer_{name}"])
        for name, label in PEERS.items()
        if (python := peer_python(name)) is not None
    ]
    return [baseline, *peers]


async def _measured(command: list[str], upstream: Upstream, marker: str) -> dict[str, float]:
    """The figures of a baseline or peer, which runs in a process of its own on the servers' core."""
    url = f"http://127.0.0.1:{upstream.port}/v1"
    measured = await run_measured(*command, url, str(TURNS), marker)
    token = len(" 00000@00000000")
    if measured["characters"] != TURNS * TURN_TOKENS * token:
        raise Broken(f"{command[-1]}: the texts have {measured['characters']} characters")
    return measured


async def run_measured(*command: str) -> dict[str, float]:
    """Runs a process that measures itself on the servers' core; what it prints."""
    core = server_core()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "BENCH_CORE": "" if core is None else str(core)}
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environ, stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    if process.returncode != 0:
        raise Broken(f"{' '.join(command[1:3])} failed")
    return json.loads(printed)


async def rooms_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """Ten rooms of four seats and ten rounds at once, a token every 10 ms in each; a client follows each."""
    with contextlib.ExitStack() as stack:
        luxx, api = await asyncio.to_thread(_start, stack, upstream)
        marker = f"[[n={TURN_TOKENS} delay={DELAY_MS}]]"
        await room_turns(luxx, api, BURST)
        for _ in range(rounds):
            rooms = [
                await asyncio.to_thread(api.new_room, SEATS, ROUNDS_AT_ONCE, marker) for _ in range(ROOMS)
            ]
            await asyncio.sleep(QUIET_SECONDS)
            cpu, idle = luxx.cpu(), luxx.memory()
            turns = ROUNDS_AT_ONCE * len(SEATS)
            answers = await asyncio.gather(*(_follow_room(luxx, api, room, turns) for room in rooms))
            cpu, memory = luxx.cpu() - cpu, luxx.memory()
            latencies = [latency / 1e3 for answer in answers for latency in answer.latencies]
            figures.add("rooms", "CPU of a turn, ten rooms at once", cpu / (ROOMS * turns) * 1e3, "ms")
            figures.add("rooms", "latency of an event p50", statistics.median(latencies), "ms")
            p99 = statistics.quantiles(latencies, n=100, method="inclusive")[98]
            figures.add("rooms", "latency of an event p99", p99, "ms", at_most=30)
            figures.add("rooms", "memory of the server", memory / 1e6, "MB", at_most=512)
            figures.add("rooms", "memory added by ten rooms", (memory - idle) / 1e6, "MB")
            yield


async def steps_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """A step of a graph of 50 steps: in memory, durable, and at a server with a model that answers a word.

    The first two are measured in a process of their own without a model (`steps.py` says what they contain).
    """
    with contextlib.ExitStack() as stack:
        luxx, api = await asyncio.to_thread(_start, stack, upstream)
        for number in range(rounds + 1):
            mine = await run_measured(sys.executable, "-m", "tests.bench.steps")
            served = await _served_steps(luxx, api)
            python = peer_python("langgraph")
            peer: dict[str, float] = {}
            if python is not None:
                peer = await _measured([str(python), "-m", "tests.bench.peer_langgraph"], upstream, BURST)
            if number > 0:
                _report_steps(figures, mine, served, peer)
                yield


async def _served_steps(luxx: MeasuredServer, api: Api) -> float:
    """CPU ms of a step with a model call of one token; the turn of the final result counts as a step."""
    steps: list[dict[str, object]] = [
        {"id": one, "name": one, "goal": "Do it.", "depends_on": list(needs), "required_tools": []}
        for one, needs in graph().items()
    ]
    tasks = [
        await asyncio.to_thread(api.new_task, steps, CONCURRENT_STEPS, "Do it. [[n=1]]") for _ in range(TASKS)
    ]
    await asyncio.sleep(QUIET_SECONDS)
    cpu, expected = luxx.cpu(), len(steps) + 1
    for task in tasks:
        target = run_target(luxx.port, api.token, f"/tasks/{task}/execute", LUXX_TEXT, 1)
        client = await Client.connect(target)
        await client.stream("", "", expected)
        client.close()
    await asyncio.sleep(QUIET_SECONDS)
    return (luxx.cpu() - cpu) / (TASKS * expected) * 1e3


def _report_steps(figures: Figures, mine: dict[str, float], served: float, peer: dict[str, float]) -> None:
    micro = {name: value * 1e3 for name, value in mine.items()}
    figures.add("steps", "step, asyncio baseline", micro["asyncio"], "µs")
    figures.add("steps", "step, luxx in memory", micro["memory"], "µs", at_most=50)
    figures.add("steps", "in memory, luxx / asyncio", mine["memory"] / mine["asyncio"], "×", at_most=5)
    figures.add("steps", "step, one row in SQLite", micro["row"], "µs")
    figures.add("steps", "step, luxx durable", micro["durable"], "µs", at_most=400)
    figures.add("steps", "durable, luxx / one row", mine["durable"] / mine["row"], "×", at_most=13)
    if peer:
        figures.add("steps", "step, LangGraph in memory", peer["step"] * 1e3, "µs")
        figures.add("steps", "step, LangGraph with SQLite", peer["step_sqlite"] * 1e3, "µs")
        figures.add("steps", "in memory, LangGraph / luxx", peer["step"] / mine["memory"], "×")
        figures.add("steps", "durable, LangGraph / luxx", peer["step_sqlite"] / mine["durable"], "×")
    figures.add("steps", "step at a server, with a model call", served * 1e3, "µs")


async def fold_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """The fold of the log of a room of 1,000 messages, which a server has written."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-fold-")))
        url = f"sqlite:///{folder}/fold.db"
        with luxx_server({"LUXX_DATABASE__URL": url}) as luxx:
            api = await asyncio.to_thread(Api, luxx.port)
            await asyncio.to_thread(api.connect_upstream, upstream.port)
            names = tuple(f"Seat{at}" for at in range(FOLDED_SEATS))
            room = await asyncio.to_thread(api.new_room, names, FOLDED_ROUNDS, BURST)
            await _follow_room(luxx, api, room, FOLDED_SEATS * FOLDED_ROUNDS)
            api.close()
        for _ in range(rounds):
            measured = await run_measured(sys.executable, "-m", "tests.bench.fold", url)
            if measured["messages"] != FOLDED_SEATS * FOLDED_ROUNDS:
                raise Broken(f"the fold found {measured['messages']} messages")
            figures.add("fold", "fold of 1,000 messages", measured["fold"], "ms", at_most=50)
            figures.add("fold", "… with its messages and log read from SQLite", measured["load"], "ms")
            yield


async def context_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """A call after a long history, and what long turns cost without a model (`context.py`)."""
    settings = {"LUXX_CONTEXT__MAX_TOKENS": "1000000"}
    with contextlib.ExitStack() as stack:
        luxx, api = await asyncio.to_thread(_start, stack, upstream, settings)
        target = luxx_target(luxx.port, api.token, tools=True)
        for number in range(rounds + 1):
            after = {size: await _call_after(luxx, api, target, HISTORIES[size]) for size in HISTORIES}
            alone = await run_measured(sys.executable, "-m", "tests.bench.context")
            if number == 0:
                continue
            short, long = after.values()
            for size, cost in after.items():
                figures.add("context", f"call after {size} tokens", cost, "ms")
            figures.add("context", "… 200,000 / 10,000", long / short, "×", at_most=1.5)
            ratio = alone["fold_compressed"] / alone["fold"]
            figures.add("context", "fold of a turn, 20 compressions / none", ratio, "×", at_most=1.2)
            figures.add("context", "check for repetition / call", alone["check"] / short, "×", at_most=0.01)
            figures.add(
                "context", "input / cleared before every call", alone["to_cleared"], "×", at_most=0.75
            )
            figures.add("context", "input / nothing left out", alone["to_whole"], "×", at_most=0.75)
            yield


async def _call_after(luxx: MeasuredServer, api: Api, target: Target, messages: int) -> float:
    """CPU ms of a model call and its tool, in a turn after so many messages."""
    [conversation] = await asyncio.to_thread(api.new_conversations, 1)
    client = await Client.connect(target)
    try:
        for _ in range(messages):
            await client.stream(conversation, f"{FILLER}[[n=1]]", 1)
        await asyncio.sleep(QUIET_SECONDS)
        cpu = luxx.cpu()
        await client.stream(conversation, f"[[loop={CALLS_AFTER} tools=bench_one n=1]]", 1)
        await asyncio.sleep(QUIET_SECONDS)
        return (luxx.cpu() - cpu) / CALLS_AFTER * 1e3
    finally:
        client.close()


def _start(
    stack: contextlib.ExitStack, upstream: Upstream, settings: Mapping[str, str] | None = None
) -> tuple[MeasuredServer, Api]:
    """A Luxx with the fake model server connected."""
    server = stack.enter_context(luxx_server(settings))
    api = Api(server.port)
    stack.callback(api.close)
    api.connect_upstream(upstream.port)
    return server, api
