"""The rows: what is measured, against which baseline, and with which target.

A row yields after each round, so that `__main__` can stop after the last one. Its servers run as long as the
row, and each round measures them in turn.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from tests.bench.decks import decks_row
from tests.bench.documents import documents_row
from tests.bench.figures import Figures
from tests.bench.graph import graph_row
from tests.bench.lists import lists_row
from tests.bench.load import Answer, Broken, Client, Target, luxx_target, openai_target
from tests.bench.mcp_calls import mcp_row, routed_row
from tests.bench.memories import memory_row
from tests.bench.pages import pages_row
from tests.bench.patterns import patterns_row
from tests.bench.peers import installed_peers
from tests.bench.processes import ROOT, Api, MeasuredServer, free_port, luxx_server, server_core, started
from tests.bench.recall import question, recall_row, remember_facts
from tests.bench.sandboxes import sandbox_row
from tests.bench.turns import context_row, fold_row, room_row, rooms_row, run_measured, steps_row
from tests.bench.upstream import Upstream
from tests.bench.web_ui import ui_row
from tests.bench.wide import attach_row, streams_row, writes_row

STREAMS = 32
TOKENS = 250
WARM_TOKENS = 10
"""Tokens of each stream before the measured ones, so that the start of a stream is not measured."""

CHATS = 60
CHAT_TOKENS = 5
USERS = 16
CHATS_EACH = 10
ITERATIONS = 20
LOOP_RUNS = 4
QUIET_SECONDS = 0.05
SKILLS = 200
SKILL = """---
name: skill-{number}
description: Prepares the report of department {number} and checks its figures against last year's.
---

Read the figures first.
"""
REQUEST = "Please compare the figures of department 17 with those of last year."
TOOLS = "bench_one,bench_two,bench_three,bench_four"
WARM_UP_SECONDS = 2.0

Row = Callable[[Upstream, Figures, int], AsyncIterator[None]]
_stream_ids = itertools.count()


class TokenCost(msgspec.Struct, frozen=True):
    """CPU µs per token of a round: of the tokens alone, and with the whole cost of a request."""

    token: float
    whole: float
    latencies: list[int]


class _Gate:
    """Stops all streams at a token's number until all have reached it."""

    def __init__(self, upstream: Upstream, holds: tuple[int, ...]) -> None:
        self._upstream = upstream
        self._holds = holds
        self._here: list[int] = []
        self._all_here = asyncio.Event()

    def listener(self, stream: int) -> Callable[[int], None]:
        def on_token(number: int) -> None:
            if number in self._holds:
                self._here.append(stream)
                if len(self._here) == STREAMS:
                    self._all_here.set()
            else:
                self._upstream.release(stream)

        return on_token

    async def reached(self) -> None:
        async with asyncio.timeout(60):
            await self._all_here.wait()
        await asyncio.sleep(QUIET_SECONDS)

    def open_gate(self) -> None:
        self._all_here.clear()
        here, self._here = self._here, []
        for stream in here:
            self._upstream.release(stream)


async def relay(
    upstream: Upstream, target: Target, server: MeasuredServer, conversations: list[str]
) -> TokenCost:
    """One closed-loop round over STREAMS connections."""
    clients = [await Client.connect(target) for _ in range(STREAMS)]
    first, last = WARM_TOKENS, TOKENS - WARM_TOKENS
    gate = _Gate(upstream, (first - 1, last - 1))
    begin = server.cpu()
    streams: list[asyncio.Task[Answer]] = []
    for client, conversation in zip(clients, conversations, strict=True):
        stream = next(_stream_ids)
        prompt = f"[[n={TOKENS} closed={stream}]]"
        coroutine = client.stream(conversation, prompt, TOKENS, gate.listener(stream))
        streams.append(asyncio.create_task(coroutine))
    try:
        await _or_failure(gate.reached(), streams)
        before = server.cpu()
        gate.open_gate()
        await _or_failure(gate.reached(), streams)
        after = server.cpu()
        gate.open_gate()
        answers = await asyncio.gather(*streams)
        await asyncio.sleep(QUIET_SECONDS)
        end = server.cpu()
    finally:
        for client in clients:
            client.close()
    return TokenCost(
        (after - before) / (STREAMS * (last - first)) * 1e6,
        (end - begin) / (STREAMS * TOKENS) * 1e6,
        [latency for answer in answers for latency in answer.latencies[first:last]],
    )


async def _or_failure(waiting: "asyncio._CoroutineLike[None]", streams: list[asyncio.Task[Answer]]) -> None:
    """Waits for the gate, unless a stream fails before."""
    task = asyncio.ensure_future(waiting)
    await asyncio.wait([task, *streams], return_when=asyncio.FIRST_COMPLETED)
    for stream in streams:
        if stream.done():
            task.cancel()
            stream.result()
            raise Broken("a stream ended before its last token")
    await task


async def token_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """CPU per relayed token: Luxx against a byte pump and against common relays."""
    with contextlib.ExitStack() as stack:
        luxx, api = start_luxx(stack, upstream)
        others = start_relays(stack, upstream)
        target = luxx_target(luxx.port, api.token, tools=False)
        named = "openai_compatible/bench-model"
        compatible = openai_target("luxx /v1", luxx.port, target.headers, named)
        responses = api.connect_upstream(upstream.port, "openai_responses")
        for number in range(rounds + 1):
            conversations = await asyncio.to_thread(api.new_conversations, STREAMS)
            mine = await relay(upstream, target, luxx, conversations)
            through_v1 = await relay(upstream, compatible, luxx, [""] * STREAMS)
            conversations = await asyncio.to_thread(api.new_conversations, STREAMS, responses)
            of_responses = await relay(upstream, target, luxx, conversations)
            theirs = {
                name: await relay(upstream, other.target, other.server, [""] * STREAMS)
                for name, other in others.items()
            }
            if number > 0:  # the first round warms up
                _report_tokens(figures, mine, theirs)
                figures.add("token", "luxx /v1", through_v1.token, "µs")
                figures.add("token", "luxx /v1 / luxx", through_v1.token / mine.token, "×", at_most=1.1)
                figures.add("token", "luxx, Responses API", of_responses.token, "µs")
                ratio = of_responses.token / mine.token
                figures.add("token", "luxx, Responses API / chat completions", ratio, "×", at_most=1.15)
                yield


def _report_tokens(figures: Figures, mine: TokenCost, theirs: dict[str, TokenCost]) -> None:
    figures.add("token", "luxx", mine.token, "µs")
    for name, token_cost in theirs.items():
        figures.add("token", name, token_cost.token, "µs")
    pump = theirs["pump"]
    figures.add("token", "luxx / pump", mine.token / pump.token, "×", at_most=3.5)
    if "nginx" in theirs:
        figures.add("token", "luxx / nginx", mine.token / theirs["nginx"].token, "×", at_most=3.5)
    if "fastapi" in theirs:
        figures.add("token", "fastapi / luxx", theirs["fastapi"].token / mine.token, "×", at_least=6)
    if "litellm" in theirs:
        figures.add("token", "litellm / luxx", theirs["litellm"].token / mine.token, "×", at_least=20)
    figures.add("token", f"luxx, requests of {TOKENS} tokens included", mine.whole, "µs")
    for name, token_cost in theirs.items():
        figures.add("token", f"{name}, requests of {TOKENS} tokens included", token_cost.whole, "µs")
    figures.add("token", "luxx, one-way latency p50", statistics.median(mine.latencies), "µs")
    figures.add("token", "luxx, one-way latency p99", _percentile(mine.latencies, 99), "µs")


async def chat_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """A short answer to one user: the time that Luxx adds to the first token, and the CPU of the request."""
    with contextlib.ExitStack() as stack:
        luxx, api = start_luxx(stack, upstream)
        peer = start_relays(stack, upstream).get("fastapi")
        through = luxx_target(luxx.port, api.token, tools=False)
        direct = openai_target("upstream", upstream.port)
        for number in range(rounds + 1):
            conversations = await asyncio.to_thread(api.new_conversations, CHATS)
            mine = await chats(upstream, through, conversations, luxx)
            baseline = await chats(upstream, direct, conversations, None)
            busy = await _chats_at_once(upstream, luxx, api)
            token_cost = None
            if peer is not None:
                token_cost = await chats(upstream, peer.target, conversations, peer.server)
            if number > 0:
                _report_chats(figures, mine, baseline, busy, token_cost)
                yield


async def remembering_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """What 10,000 facts of a user add to a short answer: one server has them, another has none."""
    with contextlib.ExitStack() as stack:
        plain, api = start_luxx(stack, upstream)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-facts-")))
        url = f"sqlite:///{folder}/facts.db"
        knowing = stack.enter_context(luxx_server({"LUXX_DATABASE__URL": url}))
        knowing_api = Api(knowing.port)
        knowing_api.connect_upstream(upstream.port)
        await asyncio.to_thread(remember_facts, url)
        for number in range(rounds + 1):
            text = question(random.Random(number))
            measured: list[Chats] = []
            for server, its_api in ((plain, api), (knowing, knowing_api)):
                target = luxx_target(server.port, its_api.token, tools=False)
                conversations = await asyncio.to_thread(its_api.new_conversations, CHATS)
                measured.append(await chats(upstream, target, conversations, server, text))
            if number > 0:
                without, with_facts = measured
                first = [statistics.median(each.first_tokens) * 1e3 for each in measured]
                cpu = with_facts.cpu - without.cpu
                figures.add("remembering", "CPU of a request, no facts", without.cpu, "ms")
                figures.add("remembering", "10,000 facts add to its CPU", cpu, "ms", at_most=0.3)
                added = first[1] - first[0]
                figures.add("remembering", "10,000 facts add to the first token", added, "ms", at_most=15)
                yield


async def skills_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """What 200 skills add to a short answer with tools: one server has them, another has none. And how long
    it takes to match a request with 1,000 skills and agents."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-skills-")))
        for number in range(SKILLS):
            (folder / f"skill-{number}").mkdir()
            (folder / f"skill-{number}" / "SKILL.md").write_text(SKILL.format(number=number))
        servers: list[tuple[MeasuredServer, Api]] = []
        for directories in ([], [str(folder)]):
            settings = {"LUXX_SKILLS__DIRECTORIES": json.dumps(directories)}
            server = stack.enter_context(luxx_server(settings))
            api = Api(server.port)
            api.connect_upstream(upstream.port)
            servers.append((server, api))
        for number in range(rounds + 1):
            measured: list[Chats] = []
            for server, api in servers:
                target = luxx_target(server.port, api.token, tools=True)
                conversations = await asyncio.to_thread(api.new_conversations, CHATS)
                measured.append(await chats(upstream, target, conversations, server, REQUEST))
            match = await run_measured(sys.executable, "-m", "tests.bench.matching")
            if number > 0:
                without, with_skills = measured
                figures.add("skills", "CPU of a request with tools, no skills", without.cpu, "ms")
                ratio = with_skills.cpu / without.cpu
                figures.add("skills", f"… with {SKILLS} skills / none", ratio, "×", at_most=1.03)
                figures.add("skills", "match over 1,000 items p50", match["median"], "ms", at_most=1)
                yield


class Chats(msgspec.Struct, frozen=True):
    """One user's chats in turn: seconds to each first token, CPU ms per chat, of it in other threads."""

    first_tokens: list[float]
    cpu: float = 0.0
    threads: float = 0.0


async def chats(
    upstream: Upstream,
    target: Target,
    conversations: list[str],
    server: MeasuredServer | None,
    text: str = "",
) -> Chats:
    """A chat in each conversation with this text, one after the other."""
    client = await Client.connect(target)
    await asyncio.sleep(QUIET_SECONDS)
    cpu, threads = (server.cpu(), server.threads_cpu()) if server is not None else (0.0, 0.0)
    first_tokens = [await chat(upstream, client, each, text) for each in conversations]
    await asyncio.sleep(QUIET_SECONDS)
    client.close()
    if server is None:
        return Chats(first_tokens)
    share = 1e3 / len(conversations)
    return Chats(first_tokens, (server.cpu() - cpu) * share, (server.threads_cpu() - threads) * share)


def _report_chats(
    figures: Figures, mine: Chats, baseline: Chats, busy: float, token_cost: Chats | None
) -> None:
    base = statistics.median(baseline.first_tokens)
    added = [(each - base) * 1e3 for each in mine.first_tokens]
    figures.add("chat", "first token, straight from the model, p50", base * 1e3, "ms")
    figures.add("chat", "first token, added by luxx, p50", statistics.median(added), "ms", at_most=15)
    figures.add("chat", "first token, added by luxx, p95", _percentile(added, 95), "ms")
    if token_cost is not None:
        slower = statistics.median(token_cost.first_tokens) - base
        figures.add("chat", "first token, added by fastapi relay, p50", slower * 1e3, "ms")
    figures.add("chat", "CPU of a request, one user", mine.cpu, "ms", at_most=8)
    figures.add("chat", "… of it in database threads (engine's share)", mine.threads, "ms")
    figures.add("chat", f"CPU of a request, {USERS} users at once", busy, "ms", at_most=8)
    if token_cost is not None:
        figures.add("chat", "CPU of a request, fastapi relay, nothing kept", token_cost.cpu, "ms")


async def chat(upstream: Upstream, client: Client, conversation: str, text: str = "") -> float:
    stream = next(_stream_ids)
    prompt = f"[[n={CHAT_TOKENS} closed={stream}]]{text}"
    answer = await client.stream(conversation, prompt, CHAT_TOKENS, lambda _: upstream.release(stream))
    return answer.first_token


async def _chats_at_once(upstream: Upstream, luxx: MeasuredServer, api: Api) -> float:
    """CPU ms of a request when several are always in the making: caches are warm, commits shared."""
    target = luxx_target(luxx.port, api.token, tools=False)
    conversations = iter(await asyncio.to_thread(api.new_conversations, USERS * CHATS_EACH))
    clients = [await Client.connect(target) for _ in range(USERS)]

    async def one(client: Client) -> None:
        for _ in range(CHATS_EACH):
            await chat(upstream, client, next(conversations))
        client.close()

    await asyncio.sleep(QUIET_SECONDS)
    cpu = luxx.cpu()
    await asyncio.gather(*(one(client) for client in clients))
    await asyncio.sleep(QUIET_SECONDS)
    return (luxx.cpu() - cpu) / (USERS * CHATS_EACH) * 1e3


async def loop_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """An iteration with four parallel tools, durable, against the same with httpx and nothing kept."""
    prompt = f"[[loop={ITERATIONS} tools={TOOLS} n=1]]"
    with contextlib.ExitStack() as stack:
        luxx, api = start_luxx(stack, upstream)
        target = luxx_target(luxx.port, api.token, tools=True)
        for number in range(rounds + 1):
            conversations = await asyncio.to_thread(api.new_conversations, LOOP_RUNS)
            client = await Client.connect(target)
            await asyncio.sleep(QUIET_SECONDS)
            cpu, threads = luxx.cpu(), luxx.threads_cpu()
            for conversation in conversations:
                answer = await client.stream(conversation, prompt, 1)
                if answer.tool_results != 4 * ITERATIONS:
                    raise Broken(f"{answer.tool_results} tool results of {4 * ITERATIONS} came")
            await asyncio.sleep(QUIET_SECONDS)
            cpu, threads = luxx.cpu() - cpu, luxx.threads_cpu() - threads
            client.close()
            baseline = await _baseline_of_loop(upstream, prompt)
            if number == 0:
                continue
            mine = cpu / (LOOP_RUNS * ITERATIONS) * 1e3
            figures.add("loop", "iteration, httpx baseline", baseline, "ms")
            figures.add("loop", "iteration, luxx", mine, "ms", at_most=4.5)
            figures.add("loop", "… of it in other threads", threads / (LOOP_RUNS * ITERATIONS) * 1e3, "ms")
            figures.add("loop", "luxx / httpx baseline", mine / baseline, "×", at_most=3.8)
            yield


async def _baseline_of_loop(upstream: Upstream, prompt: str) -> float:
    """CPU ms per iteration of the baseline, in a process of its own on the servers' core."""
    url = f"http://127.0.0.1:{upstream.port}/v1/chat/completions"
    core = server_core()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.baseline_loop", url, str(LOOP_RUNS), prompt,
        cwd=ROOT, stdout=subprocess.PIPE,
    )  # fmt: skip
    if core is not None:
        os.sched_setaffinity(process.pid, {core})
    printed, _ = await process.communicate()
    measured = json.loads(printed)
    if measured["iterations"] != LOOP_RUNS * ITERATIONS:
        raise Broken(f"the baseline made {measured['iterations']} iterations")
    return measured["cpu"] / measured["iterations"] * 1e3


async def idle_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """The cost of an idle server: its import and its memory."""
    measure = (
        "import resource as r, luxx.app.application; u = r.getrusage(r.RUSAGE_SELF); "
        "print(u.ru_utime + u.ru_stime)"
    )
    for number in range(rounds + 1):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", measure, cwd=ROOT, stdout=subprocess.PIPE
        )
        printed, _ = await process.communicate()
        if number == 0:  # This round writes the compiled modules.
            continue
        figures.add("idle", "import of luxx.app.application, CPU", float(printed), "s", at_most=1.2)
        with luxx_server() as server:
            api = await asyncio.to_thread(Api, server.port)
            await asyncio.to_thread(api.connect_upstream, upstream.port)
            await asyncio.sleep(WARM_UP_SECONDS)
            before, start = server.cpu(), time.monotonic()
            await asyncio.sleep(WARM_UP_SECONDS)
            spent = (server.cpu() - before) / (time.monotonic() - start)
            figures.add("idle", "memory of an idle server", server.memory() / 1e6, "MB", at_most=130)
            figures.add("idle", "CPU of an idle server", spent * 1e3, "ms/s")
        yield


def start_luxx(stack: contextlib.ExitStack, upstream: Upstream) -> tuple[MeasuredServer, Api]:
    """A Luxx with the fake model server connected."""
    server = stack.enter_context(luxx_server())
    api = Api(server.port)
    api.connect_upstream(upstream.port)
    return server, api


class Relay(msgspec.Struct, frozen=True):
    """A server that passes completions on, and how to call it."""

    server: MeasuredServer
    target: Target


def start_relays(stack: contextlib.ExitStack, upstream: Upstream) -> dict[str, Relay]:
    """The pump and the installed peers; a peer that does not start is left out."""
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.pump", str(port), str(upstream.port)]
    pump = stack.enter_context(started(command, port))
    relays = {"pump": Relay(pump, openai_target("pump", port))}
    for peer in installed_peers(stack, upstream.port):
        try:
            server = stack.enter_context(started(peer.command, peer.port, peer.environ))
        except RuntimeError as error:
            print(f"{peer.name} is left out: {error}", file=sys.stderr)
        else:
            relays[peer.name] = Relay(server, openai_target(peer.name, peer.port, peer.headers))
    return relays


def _percentile(values: list[int] | list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


ROWS: dict[str, Row] = {
    "token": token_row,
    "chat": chat_row,
    "loop": loop_row,
    "room": room_row,
    "rooms": rooms_row,
    "steps": steps_row,
    "fold": fold_row,
    "context": context_row,
    "lists": lists_row,
    "graph": graph_row,
    "memory": memory_row,
    "recall": recall_row,
    "patterns": patterns_row,
    "remembering": remembering_row,
    "skills": skills_row,
    "documents": documents_row,
    "decks": decks_row,
    "streams": streams_row,
    "writes": writes_row,
    "attach": attach_row,
    "sandbox": sandbox_row,
    "mcp": mcp_row,
    "routed": routed_row,
    "pages": pages_row,
    "idle": idle_row,
    "ui": ui_row,
}
