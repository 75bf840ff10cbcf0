"""Prewarmed sandbox processes: fast, used once, never shared between users, few, and ended when unused."""

import os
import signal
import time
from pathlib import Path

from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.process import SandboxProcess
from luxx.tools.sandbox.resident import PrewarmedKey, PrewarmedPool
from luxx.tools.sandbox.service import PYTHON_MAIN
from sandbox.client import OpenSandboxClient, SandboxClient, processes_with, wait_until

PYTHON_COMMAND = PYTHON_MAIN.splitlines()[0]
"""Every Python process of the sandbox has this in its command line."""


def waiting(workspace: Path) -> list[int]:
    """The prewarmed Pythons of the workspace, recognised by their working directory."""
    pids: list[int] = []
    for pid in processes_with(PYTHON_COMMAND):
        process = Path(f"/proc/{pid}")
        try:
            is_python = not (process / "cmdline").read_bytes().startswith(b"bwrap\0")
            if is_python and (process / "cwd").samefile(workspace):
                pids.append(pid)
        except OSError:
            continue
    return pids


def ancestors(pid: int) -> list[int]:
    """The process and its ancestors below this process, up to its supervisor."""
    pids: list[int] = []
    while pid not in (os.getpid(), 0):
        pids.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pids


async def ready(client: SandboxClient, user_id: int = 1, *, after: int | None = None) -> int:
    """Waits until the process that is prewarmed for the user can be used, and returns its pid.

    `after`: the process that was used before it, which may still be ending.
    """
    workspace = client.workspace(user_id)
    found: list[int] = []

    def is_ready() -> bool:
        found[:] = waiting(workspace)
        is_offered = any(key.workspace == workspace for key in client.sandbox._prewarmed._waiting)
        return is_offered and len(found) == 1 and found[0] != after

    await wait_until(is_ready)
    return found[0]


async def test_no_sandbox_process_is_started_before_the_first_use_and_one_after_it(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        client.workspace()
        assert waiting(client.workspace()) == []
        await client.python("print(1)")
        await ready(client)
        assert (await client.shell("echo hi")).result.success
        await ready(client)


async def test_the_next_program_runs_in_the_prewarmed_process_and_leaves_nothing(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        await client.python("print(1)")
        first = await ready(client)
        mark = (
            "import builtins, os, tempfile\nbuiltins.mark = 1\nopen(tempfile.gettempdir() + '/mark', 'w')\n"
        )
        assert (await client.python(f"{mark}print('marked')")).result.data["stdout"] == "marked\n"
        await ready(client, after=first)
        assert first not in processes_with(PYTHON_COMMAND)
        look = "import builtins, os, tempfile\n"
        look += "print(hasattr(builtins, 'mark'), os.listdir(tempfile.gettempdir()))"
        assert (await client.python(look)).result.data["stdout"] == "False []\n"


async def test_users_and_limits_never_share_a_sandbox_process(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(
        backend, limits=[{"memory_mb": 300}, {"level": 4, "memory_mb": 700}]
    ) as client:
        if client is None:
            return
        for user_id in (1, 2):
            (client.workspace(user_id) / "mine.txt").write_text(f"of user {user_id}")
            await client.python("print(1)", user_id=user_id)
        for user_id in (2, 1, 2):
            await ready(client, user_id)
            executed = await client.python(
                "import os; print(os.listdir(), open('mine.txt').read())", user_id=user_id
            )
            assert executed.result.data["stdout"] == f"['mine.txt'] of user {user_id}\n"
        low = await ready(client)
        show = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[1] >> 20)"
        assert (await client.python(show, level=4)).result.data["stdout"] == "700\n"
        assert low in processes_with(PYTHON_COMMAND)
        assert (await client.python(show, level=3)).result.data["stdout"] == "300\n"


async def test_prewarmed_processes_are_bounded_and_the_oldest_ends_first(
    open_sandbox_client: OpenSandboxClient,
) -> None:
    async with open_sandbox_client(prewarmed=2) as client:
        if client is None:
            return
        for user_id in (1, 2, 3):
            await client.python("print(1)", user_id=user_id)
            await ready(client, user_id)
        await wait_until(lambda: waiting(client.workspace(1)) == [])
        assert len(waiting(client.workspace(2))) == len(waiting(client.workspace(3))) == 1


async def test_no_process_is_prewarmed_if_the_limit_is_zero(open_sandbox_client: OpenSandboxClient) -> None:
    async with open_sandbox_client(prewarmed=0) as client:
        if client is None:
            return
        for _ in range(2):
            assert (await client.python("print(1)")).result.success
        assert waiting(client.workspace()) == []


async def test_a_prewarmed_process_that_waits_too_long_ends(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        workspace = client.workspace()
        made: list[SandboxProcess] = []

        async def start(slot_key: PrewarmedKey) -> SandboxProcess:
            made.append(await client.sandbox.start_prewarmed(slot_key))
            return made[-1]

        prewarmed = PrewarmedPool(start, 2, idle_seconds=0.3)
        slot_key = PrewarmedKey(workspace=workspace, limits=ProgramLimits())
        prewarmed.refill(slot_key)
        await wait_until(lambda: len(prewarmed) == 1)
        await wait_until(lambda: len(prewarmed) == 0)
        await wait_until(lambda: waiting(workspace) == [])
        assert prewarmed.take(slot_key) is None
        await prewarmed.close()
        assert [sandbox_process.is_alive for sandbox_process in made] == [False]


async def test_a_prewarmed_process_that_died_is_replaced(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        await client.python("print(1)")
        pid = await ready(client)
        above = ancestors(pid)
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in above))
        executed = await client.python("print('still')")
        assert executed.result.data["stdout"] == "still\n"


async def test_closing_ends_prewarmed_processes(
    open_sandbox_client: OpenSandboxClient, tmp_path: Path
) -> None:
    async with open_sandbox_client() as client:
        if client is None:
            return
        await client.python("print(1)")
        await ready(client)
    assert waiting(tmp_path / "workspaces/1") == []


async def test_a_prewarmed_process_answers_faster_than_a_new_one(
    open_sandbox_client: OpenSandboxClient,
) -> None:
    async with open_sandbox_client(prewarmed=16) as client:
        if client is None:
            return
        fresh, prewarmed = [], []
        for user_id in range(1, 6):
            began = time.monotonic()
            await client.python("print(1)", user_id=user_id)
            fresh.append(time.monotonic() - began)
            await ready(client, user_id)
            began = time.monotonic()
            await client.python("print(1)", user_id=user_id)
            prewarmed.append(time.monotonic() - began)
        assert min(prewarmed) < min(fresh)
