"""The rows with many clients: 1,000 streams beside waiting runs, eight writing threads, late clients."""

import asyncio
import contextlib
import http.client
import json
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
from sqlalchemy import insert
from sqlalchemy.engine import make_url

from luxx.infra.clock import new_id, timestamp, utc_now
from luxx.infra.store.engine import open_engine
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow, RunRow
from luxx.wire.event import Done, DoneStatus, ProcessStep
from luxx.wire.turn import Step, StepType, Usage, step_id
from tests.bench.figures import Figures
from tests.bench.load import Answer, Broken, Client, Target, luxx_target, openai_target
from tests.bench.processes import ROOT, Api, free_port, luxx_server, started
from tests.bench.upstream import Upstream

STREAMS = 1000
TOKENS = 600
DELAY_MS = 100
RAMP_SECONDS = 30.0
"""Streams begin at random moments within this time; all of them run for as long after it.

If they began in even steps, all would send in the same few milliseconds of each tenth of a second.
"""

STEADY_SECONDS = 15.0
"""The part of the time when all streams run, in which the cost of a token is measured."""

PUMP_RAMP_SECONDS = 10.0
PUMP_STEADY_SECONDS = 5.0
PUMP_TOKENS = 200
"""For the baseline: all its streams run together for at least 5 s."""

WARM_STREAMS = 50
WAITING_RUNS = 200
AFTER_SECONDS = 6.0
IDLE_SECONDS = 70.0
"""Until idle connections to the model server have been closed."""

LAG = re.compile(r'luxx_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)')
EVENTS = 10_000
FEW_EVENTS = 1_000
ATTACHES = 10


async def streams_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """1,000 streams of 10 tokens a second, and 200 runs that wait for an answer, in one process.

    No token is lost, tokens are on time, and the memory of a stream is small and freed at its end.
    """
    with contextlib.ExitStack() as stack:
        _allow_open_files()
        luxx = stack.enter_context(luxx_server())
        api = await asyncio.to_thread(Api, luxx.port)
        await asyncio.to_thread(api.connect_upstream, upstream.port)
        target = luxx_target(luxx.port, api.token, tools=False)
        warm = await asyncio.to_thread(api.new_conversations, WARM_STREAMS)
        await asyncio.gather(*(_stream_later(target, each, 0.0, 20) for each in warm))
        for conversation in await asyncio.to_thread(api.new_conversations, WAITING_RUNS):
            await asyncio.to_thread(api.begin_waiting, conversation)
        await asyncio.sleep(AFTER_SECONDS)
        idle = luxx.memory()
        for _ in range(rounds):
            conversations = await asyncio.to_thread(api.new_conversations, STREAMS)
            lag = await _lag(luxx.port)
            moments = random.Random(STREAMS)
            streams = [
                asyncio.create_task(_stream_later(target, each, moments.uniform(0, RAMP_SECONDS), TOKENS))
                for each in conversations
            ]
            await asyncio.sleep(RAMP_SECONDS + 4)
            peak, cpu = luxx.memory(), luxx.cpu()
            await asyncio.sleep(STEADY_SECONDS)
            each = (luxx.cpu() - cpu) / (STREAMS * STEADY_SECONDS * 1e3 / DELAY_MS)
            figures.add("streams", "CPU per token, all on", each * 1e6, "µs")
            answers = await asyncio.gather(*streams)
            late = {edge: count - lag[edge] for edge, count in (await _lag(luxx.port)).items()}
            await asyncio.sleep(IDLE_SECONDS)
            _report_streams(figures, answers, (peak - idle) / STREAMS, late)
            await _measure_pump(upstream, figures)
            figures.add("streams", "memory afterwards / idle", luxx.memory() / idle, "×", at_most=1.1)
            yield


async def _measure_pump(upstream: Upstream, figures: Figures) -> None:
    """Measures the baseline, a byte pump, with the same streams on this machine at this time."""
    port = free_port()
    argv = [sys.executable, "-m", "tests.bench.pump", str(port), str(upstream.port)]
    with started(argv, port) as pump:
        target = openai_target("pump", port)
        moments = random.Random(STREAMS)
        streams = [
            asyncio.create_task(_stream_later(target, "", moments.uniform(0, PUMP_RAMP_SECONDS), PUMP_TOKENS))
            for _ in range(STREAMS)
        ]
        await asyncio.sleep(PUMP_RAMP_SECONDS + 1)
        cpu = pump.cpu()
        await asyncio.sleep(PUMP_STEADY_SECONDS)
        each = (pump.cpu() - cpu) / (STREAMS * PUMP_STEADY_SECONDS * 1e3 / DELAY_MS)
        answers = await asyncio.gather(*streams)
    latencies = [latency / 1e3 for answer in answers for latency in answer.latencies]
    figures.add("streams", "bare pump: CPU per token", each * 1e6, "µs")
    figures.add("streams", "bare pump: latency p50", statistics.median(latencies), "ms")
    figures.add("streams", "bare pump: latency p99", _percentile(latencies, 99), "ms")


async def _stream_later(target: Target, conversation: str, after: float, tokens: int) -> Answer:
    await asyncio.sleep(after)
    # A server closes a connection that sends nothing for server.head_seconds.
    client = await Client.connect(target)
    try:
        return await client.stream(conversation, f"[[n={tokens} delay={DELAY_MS}]]", tokens)
    finally:
        client.close()


def _report_streams(
    figures: Figures, answers: list[Answer], bytes_each: float, late: dict[float, float]
) -> None:
    latencies = [latency / 1e3 for answer in answers for latency in answer.latencies]
    first = [answer.first_token * 1e3 for answer in answers]
    figures.add("streams", "added latency p50", statistics.median(latencies), "ms", at_most=1)
    figures.add("streams", "added latency p99", _percentile(latencies, 99), "ms", at_most=30)
    figures.add("streams", "first token p50", statistics.median(first), "ms")
    figures.add("streams", "first token p99", _percentile(first, 99), "ms")
    figures.add("streams", "memory per stream", bytes_each / 1e3, "kB", at_most=56)
    total = max(late.values())
    edge = min(edge for edge, count in late.items() if count >= 0.99 * total)
    figures.add("streams", "lag of the event loop p99, not above", edge * 1e3, "ms", at_most=50)


async def _lag(port: int) -> dict[float, float]:
    """How often the event loop was late by at most this many seconds."""
    async with httpx.AsyncClient() as http_client:
        text = (await http_client.get(f"http://127.0.0.1:{port}/metrics")).text
    return {float(edge): float(count) for edge, count in LAG.findall(text)}


def _allow_open_files() -> None:
    """Each stream needs four sockets; child processes inherit the limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def writes_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """Stores messages and moves their conversations to the top of the list, from eight threads on SQLite."""
    for _ in range(rounds):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.writes", cwd=ROOT, stdout=subprocess.PIPE
        )
        printed, _ = await process.communicate()
        if process.returncode != 0:
            raise Broken("a write failed")
        measured = json.loads(printed)
        figures.add(
            "writes", "insert and update, eight threads", measured["bare_per_second"], "/s", at_least=5000
        )
        figures.add("writes", "… p99", measured["bare_p99_ms"], "ms")
        figures.add("writes", "… and put into the search index", measured["per_second"], "/s")
        figures.add("writes", "… its p99", measured["p99_ms"], "ms")
        yield


async def attach_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """A client that attaches after the end: the time to its first byte, and its growth with the log."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-attach-")))
        url = f"sqlite:///{folder}/attach.db"
        luxx = stack.enter_context(luxx_server({"LUXX_DATABASE__URL": url}))
        api = await asyncio.to_thread(Api, luxx.port)
        long = await asyncio.to_thread(_fill, url, EVENTS)
        short = await asyncio.to_thread(_fill, url, FEW_EVENTS)
        for number in range(rounds + 1):
            first, whole = await asyncio.to_thread(_attach, luxx.port, api.token, long, EVENTS)
            _, part = await asyncio.to_thread(_attach, luxx.port, api.token, short, FEW_EVENTS)
            if number > 0:
                figures.add("attach", "first byte of 10,000 events", first * 1e3, "ms", at_most=20)
                figures.add("attach", "all of 10,000 events", whole * 1e3, "ms")
                growth = whole / part / (EVENTS / FEW_EVENTS)
                figures.add("attach", "an event of 10,000 / an event of 1,000", growth, "×", at_most=1.25)
                yield


def _attach(port: int, token: str, run_id: str, events: int) -> tuple[float, float]:
    """Seconds to the first byte of the stream and to its end; medians of several attempts."""
    firsts: list[float] = []
    wholes: list[float] = []
    for _ in range(ATTACHES):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.connect()
        begin = time.perf_counter()
        connection.request("GET", f"/runs/{run_id}/events", headers={"authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        content = answer.read(1)
        firsts.append(time.perf_counter() - begin)
        content += answer.read()
        wholes.append(time.perf_counter() - begin)
        connection.close()
        if content.count(b"\nid: ") + content.startswith(b"id: ") != events:
            raise Broken(f"{content.count(b'id: ')} events of {events} came: {content[:300]!r}")
    return statistics.median(firsts), statistics.median(wholes)


def _fill(url: str, events: int) -> str:
    """Stores an ended run of the first user with a log of this many events. Returns its id."""
    engine = open_engine(make_url(url))
    run_id, now = new_id(), utc_now()
    message_id = new_id()
    run = {
        "id": run_id, "user_id": 1, "tenant_id": 1, "kind": "chat", "subject_id": new_id(),
        "message_id": message_id, "status": "completed", "stop_reason": "finished", "usage": "{}",
        "last_seq": events, "request": "{}", "fence": 1, "created_at": now, "started_at": now,
        "finished_at": now,
    }  # fmt: skip
    encode = msgspec.json.Encoder().encode
    rows: list[dict[str, object]] = []
    for seq in range(1, events):
        step = Step(id=step_id(seq), index=seq, type=StepType.TEXT, content=f"step {seq} of a long run " * 8)
        event = ProcessStep(run_id=run_id, timestamp=timestamp(), step=step)
        rows.append({"run_id": run_id, "seq": seq, "type": "process_step", "data": encode(event)})
    done_event = Done(
        run_id=run_id, timestamp=timestamp(), message_id=message_id, token_count=1, usage=Usage(),
        status=DoneStatus.COMPLETED,
    )  # fmt: skip
    rows.append({"run_id": run_id, "seq": events, "type": "done", "data": encode(done_event)})
    with engine.begin() as connection:
        connection.execute(insert(table_of(RunRow)), run)
        for at in range(0, len(rows), 500):
            connection.execute(insert(table_of(RunEventRow)), rows[at : at + 500])
    engine.dispose()
    return run_id


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
