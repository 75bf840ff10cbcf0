"""Jails that wait: fast, single-use, nobody else's, few, and gone when they are not used."""

import os
import signal
import time
from pathlib import Path

from luxx.tools.sandbox.plan import Limits
from luxx.tools.sandbox.prewarmed import Place, Prewarmed
from luxx.tools.sandbox.process import Jail
from luxx.tools.sandbox.service import INSIDE
from sandbox.desk import Desk, WithDesk, processes_with, until

WAITING = INSIDE.splitlines()[0]
"""Every Python jail has this in its command line."""


def waiting(workspace: Path) -> list[int]:
    """The Pythons in jails that belong to the workspace, by the directory they work in."""
    found: list[int] = []
    for pid in processes_with(WAITING):
        process = Path(f"/proc/{pid}")
        try:
            is_python = not (process / "cmdline").read_bytes().startswith(b"bwrap\0")
            if is_python and (process / "cwd").samefile(workspace):
                found.append(pid)
        except OSError:
            continue
    return found


def ancestors(pid: int) -> list[int]:
    """The process and those above it, below this one: up to its supervisor."""
    found: list[int] = []
    while pid not in (os.getpid(), 0):
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


async def ready(desk: Desk, user_id: int = 1) -> int:
    """The process that waits for the user's next program."""
    await until(lambda: len(waiting(desk.workspace(user_id))) == 1)
    (pid,) = waiting(desk.workspace(user_id))
    return pid


def test_no_jail_is_made_before_the_first_use_and_one_after_it(with_desk: WithDesk, backend: str) -> None:
    async def work(desk: Desk) -> None:
        desk.workspace()
        assert waiting(desk.workspace()) == []
        await desk.python("print(1)")
        await ready(desk)
        assert (await desk.shell("echo hi")).result.success
        await ready(desk)

    with_desk(work, backend)


def test_the_next_program_runs_in_the_jail_that_waits_and_nothing_of_it_is_left(
    with_desk: WithDesk, backend: str
) -> None:
    async def work(desk: Desk) -> None:
        await desk.python("print(1)")
        first = await ready(desk)
        mark = (
            "import builtins, os, tempfile\nbuiltins.mark = 1\nopen(tempfile.gettempdir() + '/mark', 'w')\n"
        )
        assert (await desk.python(f"{mark}print('marked')")).result.data["stdout"] == "marked\n"
        second = await ready(desk)
        assert first != second
        assert first not in processes_with(WAITING)
        look = "import builtins, os, tempfile\n"
        look += "print(hasattr(builtins, 'mark'), os.listdir(tempfile.gettempdir()))"
        assert (await desk.python(look)).result.data["stdout"] == "False []\n"

    with_desk(work, backend)


def test_users_and_limits_never_share_a_jail(with_desk: WithDesk, backend: str) -> None:
    async def work(desk: Desk) -> None:
        for user_id in (1, 2):
            (desk.workspace(user_id) / "mine.txt").write_text(f"of user {user_id}")
            await desk.python("print(1)", user_id=user_id)
        for user_id in (2, 1, 2):
            await ready(desk, user_id)
            done = await desk.python(
                "import os; print(os.listdir(), open('mine.txt').read())", user_id=user_id
            )
            assert done.result.data["stdout"] == f"['mine.txt'] of user {user_id}\n"
        low = await ready(desk)
        show = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[1] >> 20)"
        assert (await desk.python(show, level=4)).result.data["stdout"] == "700\n"
        assert low in processes_with(WAITING)
        assert (await desk.python(show, level=3)).result.data["stdout"] == "300\n"

    with_desk(work, backend, limits=[{"memory_mb": 300}, {"level": 4, "memory_mb": 700}])


def test_only_so_many_wait_and_the_oldest_goes_first(with_desk: WithDesk) -> None:
    async def work(desk: Desk) -> None:
        for user_id in (1, 2, 3):
            await desk.python("print(1)", user_id=user_id)
            await ready(desk, user_id)
        await until(lambda: waiting(desk.workspace(1)) == [])
        assert len(waiting(desk.workspace(2))) == len(waiting(desk.workspace(3))) == 1

    with_desk(work, prewarmed=2)


def test_none_wait_where_none_are_wanted(with_desk: WithDesk) -> None:
    async def work(desk: Desk) -> None:
        for _ in range(2):
            assert (await desk.python("print(1)")).result.success
        assert waiting(desk.workspace()) == []

    with_desk(work, prewarmed=0)


def test_a_jail_that_waits_too_long_ends(with_desk: WithDesk, backend: str) -> None:
    async def work(desk: Desk) -> None:
        workspace = desk.workspace()
        made: list[Jail] = []

        async def start(place: Place) -> Jail:
            made.append(await desk.sandbox.start_waiting(place))
            return made[-1]

        prewarmed = Prewarmed(start, 2, idle_seconds=0.3)
        place = Place(workspace=workspace, limits=Limits())
        prewarmed.refill(place)
        await until(lambda: len(prewarmed) == 1)
        await until(lambda: len(prewarmed) == 0)
        await until(lambda: waiting(workspace) == [])
        assert prewarmed.take(place) is None
        await prewarmed.close()
        assert [jail.is_alive for jail in made] == [False]

    with_desk(work, backend)


def test_a_jail_that_died_while_it_waited_is_replaced(with_desk: WithDesk, backend: str) -> None:
    async def work(desk: Desk) -> None:
        await desk.python("print(1)")
        pid = await ready(desk)
        above = ancestors(pid)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(Path(f"/proc/{one}").exists() for one in above))
        done = await desk.python("print('still')")
        assert done.result.data["stdout"] == "still\n"

    with_desk(work, backend)


def test_closing_ends_those_that_wait(with_desk: WithDesk, tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.python("print(1)")
        await ready(desk)

    with_desk(work)
    assert waiting(tmp_path / "workspaces/1") == []


def test_a_jail_that_waits_answers_faster_than_a_new_one(with_desk: WithDesk) -> None:
    async def work(desk: Desk) -> None:
        fresh, kept = [], []
        for user_id in range(1, 6):
            began = time.monotonic()
            await desk.python("print(1)", user_id=user_id)
            fresh.append(time.monotonic() - began)
            await ready(desk, user_id)
            began = time.monotonic()
            await desk.python("print(1)", user_id=user_id)
            kept.append(time.monotonic() - began)
        assert min(kept) < min(fresh)

    with_desk(work, prewarmed=16)
