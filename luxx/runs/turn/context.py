"""The values that the code of runs passes on: the services of a process, the context of one drive, and what a
turn needs of the engine.

They have no generated `repr`: tracebacks with local variables would print the whole server, with its config.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from luxx.errors import LuxxError
from luxx.infra.config.schema import Config
from luxx.infra.observe import Metrics
from luxx.infra.store.engine import Store
from luxx.runs.cancel import CancelSignal, WallTime
from luxx.runs.log.channel import Channel
from luxx.runs.streams.hub import Hub
from luxx.runs.streams.notices import Notify
from luxx.runs.turn.run_rows import StorageUse
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import RunSpec
from luxx.runs.turn.turn_log import TurnLog
from luxx.tools.executor import ToolExecutor
from luxx.tools.sources import ToolSources
from luxx.wire.run import Run, RunStatus

FailRun = Callable[[str, int, LuxxError], Awaitable[RunStatus | None]]
"""Ends or pauses a run that cannot be driven, by id and fence (`turn/ending.py`). Raises LostRun."""


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunContext:
    """One drive of a run: what it read at its start, where it writes, and what interrupts or limits it."""

    services: RunServices
    spec: RunSpec
    log: TurnLog
    channel: Channel
    signal: CancelSignal
    spending: Spending
    wall_time: WallTime


class SubagentEngine(Protocol):
    """What a turn needs of the engine (`engine/driver.py`) to start, stop and await the runs of subagents."""

    process: str

    async def begin(self, run: Run) -> None: ...
    async def cancel(self, run_id: str) -> None: ...
    async def wait(self, run_id: str, seconds: float | None) -> None: ...
    async def wait_for_start(self, run_id: str, seconds: float) -> None: ...
    def release_slot(self) -> None: ...
