"""A server that dies, hangs, floods or lies makes its own calls fail with a sentence and affects
nothing else.
"""

import asyncio
import re
import time
from contextlib import suppress
from typing import Any

import pytest

from luxx.domain.mcp.server import ServerState
from luxx.tools.history import CallStatus
from mcp_servers import hostile
from mcp_servers.harness import open_harness, processes_in, script, until

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
    "breaks the protocol": (hostile.BREAKS_THE_PROTOCOL, {}, "a message that does not follow the protocol"),
    "answers densely": (hostile.ANSWERS_DENSELY, {}, "the answer has more than 50,000 parts"),
    "nests deeply": (hostile.NESTS_DEEPLY, {}, "sent a message that cannot be read"),
}


@pytest.mark.parametrize("what", WHEN_CALLED)
async def test_a_server_that_misbehaves_in_a_call_fails_that_call_with_a_sentence(
    backend: str, what: str
) -> None:
    text, more, sentence = WHEN_CALLED[what]

    async with open_harness([script("bad", text, **more), script("good", hostile.WELL)], backend) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        await harness.wait_for_state(ServerState.RUNNING, 1)
        bad, good = await asyncio.gather(harness.call("act", "bad"), harness.call("act", "good"))
        assert (bad.status, bad.result.success) == (CallStatus.FAILED, False)
        assert str(bad.result.error).startswith("the MCP server bad ")
        assert sentence in str(bad.result.error)
        assert good.result.data == "well"
        assert (await harness.call("act", "good")).result.data == "well"


AT_THE_START: dict[str, tuple[str, str]] = {
    "dies": (hostile.DIES, "has ended: the program ended with exit code 1: no licence"),
    "never answers": (hostile.NEVER_ANSWERS, "was not ready within 2 seconds"),
    "floods": (hostile.FLOODS, "printed more than 200 lines in a second"),
}


@pytest.mark.parametrize("what", AT_THE_START)
async def test_a_server_that_does_not_start_is_reported_with_its_reason(what: str) -> None:
    text, sentence = AT_THE_START[what]

    async with open_harness([script("bad", text, start_seconds=2)]) as harness:
        if harness is None:
            return
        status = await harness.wait_for_state(ServerState.FAILED)
        assert sentence in status.reason
        assert status.tools == 0
        assert (await harness.call("act", "bad")).status == CallStatus.UNKNOWN


async def test_secrets_of_a_server_are_not_shown_with_its_last_output() -> None:
    async with open_harness([script("bad", hostile.TELLS_SECRETS, env=["TOKEN=sk-a-secret"])]) as harness:
        if harness is None:
            return
        status = await harness.wait_for_state(ServerState.FAILED)
        assert status.reason == "has ended: the program ended with exit code 1: bad token …"


@pytest.mark.parametrize("server", [hostile.TELLS_SECRETS_IN_ANSWERS, hostile.TELLS_SECRETS_IN_ERRORS])
async def test_secrets_of_a_server_are_not_shown_with_its_errors(server: str) -> None:
    async with open_harness([script("bad", server, env=["TOKEN=sk-a-secret"])]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        executed = await harness.call("act", "bad")
        assert not executed.result.success
        assert str(executed.result.error).rstrip("…")[-8:] in ("401 for ", "x" * 8)
        assert "sk-" not in str(executed)


async def test_a_server_that_never_becomes_ready_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luxx.domain.mcp.service.MOST_TRIES", 1)

    async with open_harness([script("bad", hostile.DIES)]) as harness:
        if harness is None:
            return
        status = await until(
            lambda: harness.servers.statuses[0], lambda status: "tries again only after" in status.reason
        )
        assert status.state == ServerState.FAILED
        assert "no licence" in status.reason


async def test_a_server_that_has_filled_its_directory_is_not_started_again() -> None:

    limits = {"limits": [{"tool": "mcp", "disk_mb": 1}]}
    async with open_harness([script("bad", hostile.FILLS_ITS_DIRECTORY)], **limits) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        # It ends by itself, or is ended when its directory is measured in between.
        ended = str((await harness.call("act", "bad")).result.error)
        assert "exit code 3" in ended or "wrote more than 1 MiB" in ended
        refused = str((await harness.call("act", "bad")).result.error)
        assert re.search(r"holds [12] MiB by now; delete some of it", refused)


async def test_a_server_ended_for_its_resources_restarts_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("luxx.domain.mcp.server.RESET_AFTER_SECONDS", 0)

    limits = {"limits": [{"tool": "mcp", "disk_mb": 1}]}
    async with open_harness([script("bad", hostile.WRITES_AND_WRITES)], **limits) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        for _ in range(2):
            assert "wrote more than 1 MiB" in str((await harness.call("act", "bad")).result.error)
        assert "it can be started again in" in str((await harness.call("act", "bad")).result.error)


async def test_a_list_that_changes_with_each_read_is_read_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("luxx.domain.mcp.server.FIRST_PAUSE", 0.2)

    async with open_harness([script("restless", hostile.COUNTS_ITS_LISTS)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        began = time.monotonic()
        file = harness.workspace("restless") / "lists"
        await until(file.read_text, lambda lists: len(lists) >= 5)
        assert time.monotonic() - began > 0.2 + 0.4 + 0.8 - 0.1


async def test_a_server_that_died_is_started_again_at_the_next_call_and_then_with_pauses() -> None:
    async with open_harness([script("bad", hostile.DIES_WHEN_CALLED)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        errors = [str((await harness.call("act", "bad")).result.error) for _ in range(3)]
        assert "exit code 3" in errors[0]
        assert harness.servers.statuses[0].state == ServerState.FAILED
        paused = [error for error in errors if "it can be started again in" in error]
        assert paused, errors
        assert harness.tool("act", "bad")

        async def again() -> str:
            return str((await harness.call("act", "bad")).result.error)

        deadline = time.monotonic() + 20
        while "can be started again" in (said := await again()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert said.endswith("exit code 3; the call may have been carried out")


async def test_a_server_that_stops_answering_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luxx.domain.mcp.connection._PING_SECONDS", 0.5)

    async with open_harness([script("bad", hostile.STOPS_READING, call_seconds=0.5)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        await harness.call("act", "bad")
        status = await harness.wait_for_state(ServerState.FAILED)
        assert status.reason == "was ended: it did not answer any more"


async def test_a_slow_server_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luxx.domain.mcp.connection._PING_SECONDS", 0.5)

    async with open_harness([script("slow", hostile.ANSWERS_NO_CALL, call_seconds=0.5)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        for _ in range(3):
            assert "did not answer" in str((await harness.call("act", "slow")).result.error)
        assert harness.servers.statuses[0].state == ServerState.RUNNING


async def test_lines_that_are_no_messages_are_ignored() -> None:
    async with open_harness([script("chatty", hostile.PRINTS_GARBAGE)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        assert (await harness.call("act", "chatty")).result.data == "well"


async def test_of_a_thousand_tools_the_first_are_offered_under_unique_names() -> None:
    async with open_harness([script("many", hostile.A_THOUSAND_TOOLS)]) as harness:
        if harness is None:
            return
        status = await harness.wait_for_state(ServerState.RUNNING)
        assert status.tools == 64
        assert status.left_out == ["others: only the first 64 tools are offered"]
        names = [tool.name for tool in harness.tools.list_all()]
        assert len(set(names)) == 64
        assert all(len(name) <= 64 for name in names)


async def test_a_list_without_an_end_is_read_up_to_a_page() -> None:
    async with open_harness([script("endless", hostile.ENDLESS_PAGES)]) as harness:
        if harness is None:
            return
        status = await harness.wait_for_state(ServerState.RUNNING)
        assert status.tools == 1


async def test_an_oversized_list_is_not_read() -> None:
    async with open_harness([script("many", hostile.A_HUNDRED_THOUSAND_TOOLS)]) as harness:
        if harness is None:
            return
        status = await harness.wait_for_state(ServerState.FAILED)
        assert "the answer has more than 50,000 parts" in status.reason


async def test_no_page_is_asked_for_after_a_long_one() -> None:
    async with open_harness([script("long", hostile.LONG_PAGES)]) as harness:
        if harness is None:
            return
        assert (await harness.wait_for_state(ServerState.RUNNING)).left_out == []


async def test_long_change_notifications_cost_nothing() -> None:
    async with open_harness([script("restless", hostile.CHANGES_ARE_DENSE)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        lag = asyncio.create_task(worst_lag())
        assert (await harness.call("act", "restless")).result.data == "well"
        lag.cancel()
        assert await lag < 0.2


async def test_late_answers_are_dropped() -> None:
    async with open_harness([script("late", hostile.ANSWERS_TOO_LATE, call_seconds=0.5)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        late = [asyncio.create_task(harness.call("act", "late")) for _ in range(2)]
        executions = [await call for call in late]
        assert all("did not answer within" in str(executed.result.error) for executed in executions)
        assert (await harness.call("act", "late")).result.data == "well"


async def worst_lag() -> float:
    """The longest time that the event loop was blocked, until it is cancelled."""
    worst = 0.0
    with suppress(asyncio.CancelledError):
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            worst = max(worst, time.monotonic() - began)
    return worst


async def test_a_constantly_changing_list_is_read_at_intervals() -> None:
    async with open_harness([script("restless", hostile.TELLS_OF_CHANGES)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        for _ in range(2):
            assert (await harness.call("act", "restless")).result.data == "well"


async def test_patterns_of_a_server_do_not_block_the_event_loop() -> None:
    async with open_harness([script("evil", hostile.EVIL_PATTERN)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        began = time.monotonic()
        refused = await harness.call("act", "evil", a="a" * 5000 + "!")
        passed = await harness.call("act", "evil", **{"b" * 5000 + "!": 1})
        assert refused.status == CallStatus.INVALID
        assert passed.result.data == "well"
        assert time.monotonic() - began < 5


async def test_a_server_that_sends_requests_is_refused() -> None:
    async with open_harness([script("curious", hostile.ASKS_BACK)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        assert (await harness.call("act", "curious")).result.data == '"Sampling not supported"'


async def test_all_processes_of_a_server_end_with_luxx(backend: str) -> None:
    async with open_harness([script("parent", hostile.LEAVES_A_CHILD)], backend) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        assert (await harness.call("act", "parent")).result.data == "well"
        await until(lambda: processes_in(harness.workspace("parent")), lambda pids: len(pids) >= 2)
        await harness.servers.close()
        assert processes_in(harness.workspace("parent")) == []
