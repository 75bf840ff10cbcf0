"""The two values that the code of runs passes on: the services of a process, and the context of one drive.

They have no generated `repr`: tracebacks with local variables would print the whole server, with its config.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from luxx.errors import LuxxError
from luxx.infra.config.schema import Config
from luxx.infra.observe import Metrics
from luxx.infra.store.engine import Store
from luxx.runs.admission import StorageUse
from luxx.runs.engine.cancel import CancelSignal, WallTime
from luxx.runs.streams.channel import Channel
from luxx.runs.streams.hub import Hub
from luxx.runs.streams.notices import Notify
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import RunSpec, TurnLog
from luxx.tools.executor import ToolExecutor
from luxx.wire.run import RunStatus

FailRun = Callable[[str, int, LuxxError], Awaitable[RunStatus | None]]
"""Ends or pauses a run that cannot be driven, by id and fence (`turn/ending.py`). Raises LostRun."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunServices:
    """The services of one process that runs use."""

    config: Config
    store: Store
    hub: Hub
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
