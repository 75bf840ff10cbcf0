"""Several Luxx processes on one database behind a round robin, and the faults that tests inject into them.

On SQLite it is one process and everything else is the same, so one test can run on both.
"""

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from api.server_process import ServerProcess, WorkerProcess
from scenarios.client import AsyncApiClient
from scenarios.tool_controller import CONTROLLED_TOOLS

from chaos.round_robin import RoundRobin

LEASE_SECONDS = 3.0
"""Short, so that a death is noticed soon; long enough for a process that waits on a busy machine."""

TAKEOVER_SECONDS = LEASE_SECONDS + 2.0
"""The promise: a run is driven again within this time after the death of its driver."""

FROZEN_SECONDS = LEASE_SECONDS + 1.5
"""Longer than the lease, so that a frozen process has lost its runs when it resumes."""

GRACE_SECONDS = 1.5
"""Shorter than some runs, so that a stop both waits for runs and hands some over."""

SHOWN = 300
"""Characters of a log line that are printed when a scenario fails."""

SECRET = "a secret that all processes of one database share, long enough"


class Fault(StrEnum):
    """A fault of a process."""

    KILL = "kill"
    STOP = "stop"
    FREEZE = "freeze"


class ClusterProcess(ServerProcess):
    """One process with the name `name`; `port` is 0 for a worker, which serves no HTTP."""

    start_seconds = 90.0
    """Several processes start at the same time."""

    def __init__(self, name: str, data_dir: Path, environment: Mapping[str, str]) -> None:
        super().__init__(data_dir, data_dir=data_dir, **(CONTROLLED_TOOLS | dict(environment)))
        self.name = name
        self.has_fault = False

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def freeze(self) -> None:
        """SIGSTOP: the process exists and keeps its connections and locks, and does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wait_for_log(self, word: str, timeout: float) -> None:
        """Returns when the process has logged this; raises TimeoutError."""
        until = time.monotonic() + timeout
        while not self.lines_with(word):
            if time.monotonic() > until:
                raise TimeoutError(f"{self.name} never said {word}")
            time.sleep(0.02)

    def limit_files(self, size: int) -> None:
        """Its files cannot grow beyond this many bytes from now on; RLIM_INFINITY removes the limit."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class Worker(ClusterProcess):
    """A process that drives runs and serves no HTTP."""

    command = ("worker",)
    ready_line = WorkerProcess.ready_line


class Cluster:
    """`with` starts all processes at the same time.

    An empty `database_url` means one process on SQLite. `extra` has further environment variables by process
    name.
    """

    def __init__(
        self,
        folder: Path,
        database_url: str = "",
        *,
        webs: int = 1,
        workers: int = 0,
        environment: Mapping[str, str] | None = None,
        extra: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        assert database_url or webs + workers == 1, "SQLite serves one process"
        self.folder = folder
        self.troubles = self.kills = self.freezes = 0
        self.proxy = RoundRobin()
        self._hold = ExitStack()
        common = {
            "LUXX_RUNS__LEASE_SECONDS": str(LEASE_SECONDS),
            "LUXX_RUNS__GRACE_SECONDS": str(GRACE_SECONDS),
            "LUXX_APP__SECRET_KEY": SECRET,
            "LUXX_AUTH__ACCESS_MINUTES": "600",
            "LUXX_WORKSPACE__ROOT": str(folder / "workspaces"),
            **({"LUXX_DATABASE__URL": database_url} if database_url else {}),
            **(environment or {}),
        }
        self.database_url = database_url or f"sqlite:///{folder / 'web1' / 'luxx.db'}"
        kinds: list[tuple[type[ClusterProcess], str]] = [(ClusterProcess, f"web{n + 1}") for n in range(webs)]
        kinds += [(Worker, f"worker{n + 1}") for n in range(workers)]
        self.members = [
            kind(name, folder / name, {**common, **(extra or {}).get(name, {})}) for kind, name in kinds
        ]
        self.webs = self.members[:webs]

    @property
    def url(self) -> str:
        return self.proxy.url

    def __enter__(self) -> Self:
        with ExitStack() as hold:
            hold.enter_context(self.proxy)
            for member in self.members:
                hold.callback(_end, member)
            asyncio.run(self.start_all())
            self._hold = hold.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hold.close()

    async def restart_all(self) -> None:
        """Every process runs and no death is counted, whatever an earlier scenario did to them."""
        for member in self.members:
            member.has_fault = False
            if member.is_up:
                member.thaw()
        await self.start_all()
        self.troubles = self.kills = self.freezes = 0
        for member in self.members:
            member.lines.clear()

    async def start_all(self) -> None:
        """Starts the processes that are down, at the same time."""
        await asyncio.gather(*(self.start(member) for member in self.members if not member.is_up))

    async def start(self, member: ClusterProcess) -> None:
        await asyncio.to_thread(member.start)
        self.proxy.send_to([web.port for web in self.webs if web.port])

    @property
    def deaths(self) -> int:
        """The number of faults so far, plus heartbeats that came late without a fault, on a busy machine."""
        declared = sum(len(member.lines_with("process_lease_was_expired")) for member in self.members)
        return self.troubles + max(0, declared - self.freezes)

    async def kill(self, member: ClusterProcess) -> None:
        """SIGKILL; counted."""
        self.troubles += 1
        self.kills += 1
        await asyncio.to_thread(member.kill)

    async def stop(self, member: ClusterProcess) -> None:
        """SIGTERM, and waits for the end; counted."""
        self.troubles += 1
        await asyncio.to_thread(member.stop)

    async def inject_fault(self, member: ClusterProcess, fault: Fault) -> None:
        """Injects the fault and repairs it: the process runs again afterwards."""
        member.has_fault = True
        match fault:
            case Fault.KILL:
                await self.kill(member)
                await self.start(member)
            case Fault.STOP:
                await self.stop(member)
                await self.start(member)
            case Fault.FREEZE:
                self.troubles += 1
                self.freezes += 1
                member.freeze()
                # This is no wait for an event, but how long the process stays frozen.
                await asyncio.sleep(FROZEN_SECONDS)
                member.thaw()
        member.has_fault = False

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[list[AsyncApiClient]]:
        """A client of the administrator for each serving process, in order, without the round robin."""
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(AsyncApiClient(self.webs[0].url))
            rest = [AsyncApiClient(web.url, first.token) for web in self.webs[1:]]
            yield [first, *[await stack.enter_async_context(one) for one in rest]]

    def healthy(self) -> list[ClusterProcess]:
        """Processes that run and have no fault at the moment."""
        return [member for member in self.members if member.is_up and not member.has_fault]

    def others(self, *members: ClusterProcess) -> list[ClusterProcess]:
        return [member for member in self.members if member not in members]

    def print_logs(self) -> None:
        """Prints the last lines and the last errors of each process."""
        for member in self.members:
            bad = [line for line in member.lines if '"error"' in line or "Traceback" in line]
            print(f"--- {member.name}, {len(member.lines)} lines:")
            print("\n".join(line[:SHOWN] for line in [*bad[-4:], "…", *member.lines[-8:]]))


def _end(member: ClusterProcess) -> None:
    if member.is_up:
        os.kill(member.process.pid, signal.SIGCONT)
    member.kill()
