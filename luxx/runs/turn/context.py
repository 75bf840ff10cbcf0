"""The values that the code of runs passes on: the services of a process, the context of a drive and of a turn
in it, and what a turn needs of the engine.

They have no generated `repr`: tracebacks with local variables would print the whole server, with its config.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from sqlalchemy import Connection, Select
from sqlalchemy.orm import Session

from luxx.errors import LuxxError
from luxx.infra.config.schema import Config
from luxx.infra.observe import Metrics
from luxx.infra.store.engine import Store
from luxx.runs.cancel import CancelSignal, WallTime
from luxx.runs.log.channel import Channel
from luxx.runs.log.events import RunLog
from luxx.runs.streams.hub import Hub
from luxx.runs.streams.notices import Notify
from luxx.runs.turn.run_rows import RunHead, StorageUse
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import RunSpec
from luxx.runs.turn.turn_log import TurnLog
from luxx.tools.executor import ToolExecutor
from luxx.tools.sources import ToolSources
from luxx.wire.memory import RecalledFact
from luxx.wire.run import InConversation, Invocation, OrchestratedTurn, Run, RunStatus
from luxx.wire.turn import Usage

FailRun = Callable[[str, int, LuxxError], Awaitable[RunStatus | None]]
"""Ends or pauses a run that cannot be driven, by id and fence (`log/failure.py`). Raises LostRun."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunServices:
    """The services of one process that runs use."""

    config: Config
    store: Store
    hub: Hub
    tools: ToolSources
    executor: ToolExecutor
    storage: StorageUse
    metrics: Metrics
    notify: Notify
    fail_run: FailRun


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What a person has said in a room since a turn began: the id of the message, its text as a seat reads
    it, and whose words taint the turn, if they do."""

    msg_id: str
    text: str
    tainted_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunContext:
    """A turn in one drive of a run: what it was asked, where it writes, and what interrupts or limits it.
    `heard`: what people have said in the run since the turn began."""

    services: RunServices
    spec: RunSpec
    log: TurnLog
    channel: Channel
    signal: CancelSignal
    spending: Spending
    wall_time: WallTime
    heard: Callable[[], Sequence[Heard]]


@dataclass(frozen=True, slots=True, repr=False)
class DriveContext:
    """What a drive of a run of any kind is given: the head that it read, where it writes, and what interrupts
    or limits it."""

    services: RunServices
    head: RunHead
    log: RunLog
    channel: Channel
    signal: CancelSignal
    wall_time: WallTime
    heard: Callable[[], Sequence[Heard]] = tuple


RECALLING = InConversation | Invocation | OrchestratedTurn
"""The origins of turns that are given remembered facts."""


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered for a turn; `write` stores it with the event that logs it."""

    facts: tuple[RecalledFact, ...]
    write: Callable[[Connection], None]


class Recall(Protocol):
    """Memory, as turns read it."""

    may_find: Select[int]
    """Has a row if anything may be remembered for a run. Its parameters: `user`, `tenant`, `subject`."""

    async def find(self, spec: RunSpec, query: str) -> Recalled:
        """What fits the query, of what may be read where the run is."""
        ...


class Drive(Protocol):
    """One drive of a run. `status` is that of the run when `run` returns, or RUNNING if it has not changed;
    `usage` that of the whole run."""

    status: RunStatus

    @property
    def usage(self) -> Usage: ...

    async def run(self) -> None:
        """Goes on until the run ends, pauses or waits for a person. Raises LostRun, and database errors."""
        ...

    async def stop(self) -> None:
        """Ends the tasks of the drive that are left, without writing anything."""
        ...


BeginDrive = Callable[[DriveContext], Drive]

LoadDrive = Callable[[Session, RunHead], BeginDrive | None]
"""Reads what a drive of a run of one kind needs, once, at its start. None: there is nothing to drive."""


class SubagentEngine(Protocol):
    """What a turn needs of the engine (`engine/driver.py`) to start, stop and await the runs of subagents."""

    process: str

    async def begin(self, run: Run) -> None: ...
    async def cancel(self, run_id: str) -> None: ...
    async def wait(self, run_id: str, seconds: float | None) -> None: ...
    async def wait_for_start(self, run_id: str, seconds: float) -> None: ...
    def release_slot(self) -> None: ...
    def request_maintenance(self) -> None: ...
