"""What a kind of run with several turns supplies: which turn comes next, and what a turn writes when it ends.

Rooms and tasks implement `Orchestration` in `luxx/features/`; `drive.py` carries it out. Its
decisions depend only on the log and on the rows of its feature, so any process can continue the run.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.agents.queries import AgentSettings
from luxx.domain.context.messages import PastMessage
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LuxxError
from luxx.runs.log.events import LogEntry
from luxx.runs.orchestration.inputs import RunInput
from luxx.runs.turn.context import Heard
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import Closing, Ending
from luxx.wire.event import CallPurpose, LoggedEvent
from luxx.wire.run import RunStatus
from luxx.wire.turn import TurnRef, Usage

Write = Callable[[Connection], None]


class TurnStart(msgspec.Struct, frozen=True, kw_only=True):
    """A turn to begin or to continue: whose request it is, and the messages that its model gets before it.

    `tainted_by`: the tool that brought untrusted content into what the turn reads. `purpose`: of its model
    calls. `seconds`: how long it may take before it is cut. `level`: of its thinking steps.
    """

    turn: TurnRef
    request: ChatRequest
    past: list[PastMessage]
    tainted_by: str | None = None
    purpose: CallPurpose = CallPurpose.ANSWER
    seconds: float | None = None
    level: str = ""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Turns to begin, the events with which they begin, and rows that are written with these."""

    turns: list[TurnStart] = []
    entries: list[LogEntry] = []
    write: Write | None = None


class Begin(msgspec.Struct, frozen=True):
    """Turns begin, at most this many; `Orchestration.prepare` makes them, from the database. `keys`: which,
    as far as the decision says it."""

    turns: int = 1
    keys: tuple[str, ...] = ()

    @classmethod
    def these(cls, keys: Sequence[str]) -> "Begin":
        """The decision to begin the turns of these keys."""
        return cls(turns=len(keys), keys=tuple(keys))


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Events are logged; then the next decision follows."""

    entries: list[LogEntry]
    write: Write | None = None


class Wait(msgspec.Struct, frozen=True):
    """Nothing follows before a turn ends or an input arrives."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The run ends or, with the status `paused`, pauses; no turn is in progress. `entries` end the stream.

    `changes` are more values of the run's row, `size` the bytes that `write` adds. `on_written` is called
    once all of it is stored.
    """

    entries: list[LogEntry]
    status: RunStatus
    stop_reason: str | None = None
    error: LuxxError | None = None
    write: Write | None = None
    changes: Mapping[str, Any] = {}
    size: int = 0
    on_written: Callable[[], None] | None = None


class Work(msgspec.Struct, frozen=True):
    """Something to await that a cancel may interrupt, without a transaction; then the next decision
    follows."""

    work: Callable[[], Coroutine[Any, Any, None]]


class NotYet(Exception):
    """Something arrived or changed just before the run would have ended or begun to wait; rolls back that
    change. `End.write` may raise it: then the next decision follows."""


Decision = Begin | Append | Wait | Work | End


class RunTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The usage and cost of all turns so far; `seconds` that the run has worked, over all drives."""

    usage: Usage
    cost: float | None
    seconds: float


class InputEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What inputs do: events to log, and rows to write, with their deletion."""

    entries: list[LogEntry] = []
    write: Write | None = None


class Orchestration(Protocol):
    """The state of one run of its kind, in the drive of that run."""

    def apply(self, logged: LoggedEvent) -> None:
        """Adds an event of the log to the state; of the run or of any turn."""
        ...

    def is_open(self, key: str) -> bool:
        """Whether the turn with this key has begun and not ended. A key may begin again after its end."""
        ...

    def open_turns(self) -> list[TurnStart]:
        """The turns that an earlier drive began and that have not ended."""
        ...

    @property
    def max_turns(self) -> int | None:
        """How many turns may work at once; those that wait for a person do not count. None: no limit."""
        ...

    def decide(self, running: Collection[str], waiting: int, totals: RunTotals) -> Decision:
        """What follows, while the turns with these keys are in progress, of which `waiting` wait for a
        person. It changes nothing."""
        ...

    def heard(self, key: str) -> Sequence[Heard]:
        """What people have said since the turn with this key began: its next model call gets that."""
        ...

    def to_cut(self) -> Collection[str]:
        """The keys of the turns in progress that must end now, because a person said so."""
        ...

    def prepare(self, session: Session, begin: Begin, most: int, totals: RunTotals) -> Opening:
        """The turns that begin now, at most `most`, after the decision `begin` on these totals.

        An Opening without turns may say in its events why none begins; the next decision then follows.
        `write` needs an event."""
        ...

    def close(self, start: TurnStart, state: TurnState, ending: Ending, cut: UsageEntry | None) -> Closing:
        """What the end of a turn writes; its `changes` are ignored, because the run goes on."""
        ...

    def on_inputs(self, session: Session, inputs: Sequence[RunInput]) -> InputEffect:
        """What the inputs do; rows of the feature may have changed with them, so it reads these again."""
        ...

    def on_stop(self, error: LuxxError | None) -> End:
        """The end after a cancel by a person or, with the error of a limit, because time is up."""
        ...


class OrchestrationLoader(Protocol):
    """Makes the orchestration of a run at the start of a drive, before the log is folded."""

    def __call__(self, session: Session, head: RunHead) -> Orchestration: ...


class ResolveTurn(Protocol):
    """The request of a turn of this user. Raises LuxxError for what cannot be used."""

    def __call__(
        self,
        session: Session,
        user_id: int,
        agent: AgentSettings,
        *,
        response_schema: dict[str, Any] | None = None,
    ) -> ChatRequest: ...
