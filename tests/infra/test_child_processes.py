"""Child processes: which descriptors they inherit, and a start that is cancelled at any moment."""

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from luxx.infra.children import start_child

LEAVES_ANOTHER = ("/bin/sh", "-c", "sleep 2 & exec sleep 30")
"""The background process keeps the pipes open."""

TURNS = 12
"""Turns of the event loop, more than a start takes."""

Start = Callable[..., Coroutine[Any, Any, Process]]


async def seconds_to_cancel(start: Start, turns: int, busy: float = 0.05) -> float | None:
    """None if the process started before it could be cancelled; then it is killed."""
    starting = asyncio.create_task(start(*LEAVES_ANOTHER, stdin=PIPE, stdout=PIPE, stderr=PIPE))
    for _ in range(turns):
        await asyncio.sleep(0)
    # The loop is blocked while the child starts.
    be_busy(busy)
    if starting.done():
        starting.result().kill()
        await starting.result().wait()
        return None
    began = time.monotonic()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    return time.monotonic() - began


def be_busy(seconds: float) -> None:
    time.sleep(seconds)


async def longest_cancel(start: Start) -> float:
    taken = [await seconds_to_cancel(start, turns) for turns in range(TURNS)]
    return max(each for each in taken if each is not None)


def child_pids() -> list[int]:
    children = psutil.Process().children()
    return [child.pid for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


async def test_a_cancelled_start_ends_at_once_and_leaves_no_child() -> None:
    before = child_pids()
    assert (await longest_cancel(start_child)) < 1
    until = time.monotonic() + 5
    while set(child_pids()) - set(before) and time.monotonic() < until:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    assert set(child_pids()) <= set(before)


async def test_asyncios_own_start_delays_a_cancelled_caller() -> None:
    """The reason for `start_child`; when this test fails, `start_child` is no longer needed."""
    taken = await seconds_to_cancel(asyncio.create_subprocess_exec, 3, busy=0.3)
    assert taken is not None
    assert taken > 1


async def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await start_child("/nowhere/at-all")


LISTS_ITS_DESCRIPTORS = """
import json, os, sys
found = {}
for fd in range(256):
    try:
        found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        continue
print(json.dumps(found))
"""
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_child_gets_exactly_the_descriptors_that_are_passed(loop: str, tmp_path: Path) -> None:
    async def descriptors(*passed: int) -> dict[int, str]:
        command = (sys.executable, "-I", "-S", "-c", LISTS_ITS_DESCRIPTORS)
        child = await start_child(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, pass_fds=passed)
        output, _ = await child.communicate()
        return {int(fd): path for fd, path in json.loads(output).items()}

    async def work() -> None:
        inherited_fd = os.open(tmp_path, os.O_RDONLY)
        os.set_inheritable(inherited_fd, True)
        try:
            fds = await descriptors()
            assert set(fds.values()) == {fds[0], fds[1], fds[2]}
            # A library may open a file without O_CLOEXEC while the server runs.
            os.set_inheritable(inherited_fd, True)
            passed = os.open(tmp_path, os.O_RDONLY)
            fds = await descriptors(passed)
            os.close(passed)
            assert set(fds.values()) == {fds[0], fds[1], fds[2], str(tmp_path)}
            assert [fd for fd, path in fds.items() if path == str(tmp_path)] == [passed]
        finally:
            os.close(inherited_fd)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(work())
