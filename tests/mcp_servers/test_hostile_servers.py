"""A server that dies, hangs, floods or lies costs its own calls a sentence and nothing else."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from luxx.domain.mcp.server import ServerState
from luxx.tools.history import CallStatus
from mcp_servers import hostile
from mcp_servers.bench import Bench, processes_in, script, until
from mcp_servers.conftest import TryServers

WHEN_CALLED: dict[str, tuple[str, dict[str, Any], str]] = {
    "dies": (hostile.DIES_WHEN_CALLED, {}, "has ended: the program ended with exit code 3"),
    "says nothing": (hostile.ANSWERS_NO_CALL, {"call_seconds": 1}, "did not answer within 1 seconds"),
    "stops reading": (hostile.STOPS_READING, {"call_seconds": 1}, "did not answer within 1 seconds"),
    "floods": (hostile.FLOODS_WHEN_CALLED, {}, "printed more than 200 lines in a second"),
    "never ends a line": (hostile.ONE_ENDLESS_LINE, {}, "sent a message of more than 4 MiB"),
    "sends 100 MB": (hostile.HUNDRED_MEGABYTES, {}, "sent a message of more than 4 MiB"),
    "forks": (hostile.FORKS, {}, "has ended: "),
    "eats memory": (hostile.EATS_MEMORY, {}, ""),
    "closes its output": (hostile.CLOSES_ITS_OUTPUT, {"call_seconds": 2}, ""),
    "breaks the protocol": (hostile.BREAKS_THE_PROTOCOL, {}, "something that is not of the protocol"),
    "answers densely": (hostile.ANSWERS_DENSELY, {}, "the answer has more than 50,000 parts"),
    "nests deeply": (hostile.NESTS_DEEPLY, {}, "sent a message that cannot be read"),
}


@pytest.mark.parametrize("what", WHEN_CALLED)
def test_a_server_that_goes_wrong_in_a_call_costs_that_call_a_sentence(
    try_servers: TryServers, backend: str, what: str
) -> None:
    text, more, sentence = WHEN_CALLED[what]

    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        await place.until(ServerState.RUNNING, 1)
        bad, good = await asyncio.gather(place.call("act", "bad"), place.call("act", "good"))
        assert (bad.status, bad.result.success) == (CallStatus.FAILED, False)
        assert str(bad.result.error).startswith("the MCP server bad ")
        assert sentence in str(bad.result.error)
        assert good.result.data == "well"
        assert (await place.call("act", "good")).result.data == "well"

    try_servers([script("bad", text, **more), script("good", hostile.WELL)], work, backend)


AT_THE_START: dict[str, tuple[str, str]] = {
    "dies": (hostile.DIES, "has ended: the program ended with exit code 1: no licence"),
    "never answers": (hostile.NEVER_ANSWERS, "was not ready within 2 seconds"),
    "floods": (hostile.FLOODS, "printed more than 200 lines in a second"),
}


@pytest.mark.parametrize("what", AT_THE_START)
def test_a_server_that_does_not_start_is_told_of_with_its_reason(try_servers: TryServers, what: str) -> None:
    text, sentence = AT_THE_START[what]

    async def work(place: Bench) -> None:
        status = await place.until(ServerState.FAILED)
        assert sentence in status.reason
        assert status.tools == 0
        assert (await place.call("act", "bad")).status == CallStatus.UNKNOWN

    try_servers([script("bad", text, start_seconds=2)], work)


def test_what_a_server_is_given_is_not_told_with_its_last_words(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        status = await place.until(ServerState.FAILED)
        assert status.reason == "has ended: the program ended with exit code 1: bad token …"

    try_servers([script("bad", hostile.TELLS_SECRETS, env=["TOKEN=sk-a-secret"])], work)


@pytest.mark.parametrize("server", [hostile.TELLS_SECRETS_IN_ANSWERS, hostile.TELLS_SECRETS_IN_ERRORS])
def test_what_a_server_is_given_is_not_told_with_what_went_wrong(
    try_servers: TryServers, server: str
) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        done = await place.call("act", "bad")
        assert not done.result.success
        assert str(done.result.error).rstrip("…")[-8:] in ("401 for ", "x" * 8)
        assert "sk-" not in str(done)

    try_servers([script("bad", server, env=["TOKEN=sk-a-secret"])], work)


def test_a_server_that_never_gets_ready_is_given_up(
    try_servers: TryServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luxx.domain.mcp.service.MOST_TRIES", 1)

    async def work(place: Bench) -> None:
        status = await until(
            lambda: place.servers.statuses[0], lambda status: "is not tried again" in status.reason
        )
        assert status.state == ServerState.FAILED
        assert "no licence" in status.reason

    try_servers([script("bad", hostile.DIES)], work)


def test_a_server_that_has_filled_its_directory_is_not_started_again(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        assert "exit code 3" in str((await place.call("act", "bad")).result.error)
        assert "holds 2 MiB by now; delete some of it" in str((await place.call("act", "bad")).result.error)

    limits = {"limits": [{"tool": "mcp", "disk_mb": 1}]}
    try_servers([script("bad", hostile.FILLS_ITS_DIRECTORY)], work, **limits)


def test_a_server_that_is_ended_for_what_it_takes_starts_after_pauses_however_long_it_lived(
    try_servers: TryServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luxx.domain.mcp.server.SETTLED_SECONDS", 0)

    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        for _ in range(2):
            assert "wrote more than 1 MiB" in str((await place.call("act", "bad")).result.error)
        assert "it can be started again in" in str((await place.call("act", "bad")).result.error)

    limits = {"limits": [{"tool": "mcp", "disk_mb": 1}]}
    try_servers([script("bad", hostile.WRITES_AND_WRITES)], work, **limits)


def test_a_list_that_changes_with_each_look_is_read_more_and_more_seldom(
    try_servers: TryServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luxx.domain.mcp.server.FIRST_PAUSE", 0.2)

    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        began = time.monotonic()
        file = place.workspace("restless") / "lists"
        await until(file.read_text, lambda lists: len(lists) >= 5)
        assert time.monotonic() - began > 0.2 + 0.4 + 0.8 - 0.1

    try_servers([script("restless", hostile.COUNTS_ITS_LISTS)], work)


def test_a_server_that_died_is_started_again_at_the_next_call_and_then_with_pauses(
    try_servers: TryServers,
) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        errors = [str((await place.call("act", "bad")).result.error) for _ in range(3)]
        assert "exit code 3" in errors[0]
        assert place.servers.statuses[0].state == ServerState.FAILED
        paused = [error for error in errors if "it can be started again in" in error]
        assert paused, errors
        assert place.tool("act", "bad")

        async def again() -> str:
            return str((await place.call("act", "bad")).result.error)

        deadline = time.monotonic() + 20
        while "can be started again" in (said := await again()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert said.endswith("exit code 3")

    try_servers([script("bad", hostile.DIES_WHEN_CALLED)], work)


def test_a_server_that_answers_nothing_any_more_is_ended(
    try_servers: TryServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luxx.domain.mcp.connection._PULSE_SECONDS", 0.5)

    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        await place.call("act", "bad")
        status = await place.until(ServerState.FAILED)
        assert status.reason == "was ended: it did not answer any more"

    try_servers([script("bad", hostile.STOPS_READING, call_seconds=0.5)], work)


def test_a_server_that_is_only_slow_lives_on(
    try_servers: TryServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luxx.domain.mcp.connection._PULSE_SECONDS", 0.5)

    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        for _ in range(3):
            assert "did not answer" in str((await place.call("act", "slow")).result.error)
        assert place.servers.statuses[0].state == ServerState.RUNNING

    try_servers([script("slow", hostile.ANSWERS_NO_CALL, call_seconds=0.5)], work)


def test_lines_that_are_no_messages_are_let_pass(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        assert (await place.call("act", "chatty")).result.data == "well"

    try_servers([script("chatty", hostile.PRINTS_GARBAGE)], work)


def test_of_a_thousand_tools_the_first_are_taken_under_names_of_their_own(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        status = await place.until(ServerState.RUNNING)
        assert status.tools == 64
        assert status.left_out == ["others: the first 64 are taken"]
        names = [tool.name for tool in place.registry.list_all()]
        assert len(set(names)) == 64
        assert all(len(name) <= 64 for name in names)

    try_servers([script("many", hostile.A_THOUSAND_TOOLS)], work)


def test_a_list_without_an_end_is_read_up_to_a_page(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        status = await place.until(ServerState.RUNNING)
        assert status.tools == 1

    try_servers([script("endless", hostile.ENDLESS_PAGES)], work)


def test_a_list_without_a_measure_is_not_read(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        status = await place.until(ServerState.FAILED)
        assert "the answer has more than 50,000 parts" in status.reason

    try_servers([script("many", hostile.A_HUNDRED_THOUSAND_TOOLS)], work)


def test_no_page_is_asked_for_after_a_long_one(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        assert (await place.until(ServerState.RUNNING)).left_out == []

    try_servers([script("long", hostile.LONG_PAGES)], work)


def test_news_of_changes_cost_nothing_however_long_they_are(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        lag = asyncio.create_task(worst_lag())
        assert (await place.call("act", "restless")).result.data == "well"
        lag.cancel()
        assert await lag < 0.2

    try_servers([script("restless", hostile.CHANGES_ARE_DENSE)], work)


def test_answers_that_come_too_late_are_let_go(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        late = [asyncio.create_task(place.call("act", "late")) for _ in range(2)]
        done = [await one for one in late]
        assert all("did not answer within" in str(one.result.error) for one in done)
        assert (await place.call("act", "late")).result.data == "well"

    try_servers([script("late", hostile.ANSWERS_TOO_LATE, call_seconds=0.5)], work)


async def worst_lag() -> float:
    """How long the loop was busy with one thing at most, until it is cancelled."""
    worst = 0.0
    with suppress(asyncio.CancelledError):
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            worst = max(worst, time.monotonic() - began)
    return worst


def test_a_list_that_changes_and_changes_is_looked_at_now_and_then(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        for _ in range(2):
            assert (await place.call("act", "restless")).result.data == "well"

    try_servers([script("restless", hostile.TELLS_OF_CHANGES)], work)


def test_patterns_of_a_server_freeze_nothing(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        began = time.monotonic()
        refused = await place.call("act", "evil", a="a" * 5000 + "!")
        passed = await place.call("act", "evil", **{"b" * 5000 + "!": 1})
        assert refused.status == CallStatus.INVALID
        assert passed.result.data == "well"
        assert time.monotonic() - began < 5

    try_servers([script("evil", hostile.EVIL_PATTERN)], work)


def test_a_server_that_asks_back_is_told_no(try_servers: TryServers) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        assert (await place.call("act", "curious")).result.data == '"Sampling not supported"'

    try_servers([script("curious", hostile.ASKS_BACK)], work)


def test_all_that_a_server_started_ends_with_luxx(try_servers: TryServers, backend: str) -> None:
    async def work(place: Bench) -> None:
        await place.until(ServerState.RUNNING)
        assert (await place.call("act", "parent")).result.data == "well"
        await until(lambda: processes_in(place.workspace("parent")), lambda found: len(found) >= 2)
        await place.servers.close()
        assert processes_in(place.workspace("parent")) == []

    try_servers([script("parent", hostile.LEAVES_A_CHILD)], work, backend)
