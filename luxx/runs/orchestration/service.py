"""Starting, steering and resuming runs with several turns, which the services of rooms and tasks use; and
their drive: it reads the log and continues by the orchestration of the run's kind.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec
import structlog
from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Mapped, Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.usage.reserve import check_daily_limits, without_level1
from luxx.errors import Conflict, NotFound, Unavailable
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import CancelSignal, WallTime
from luxx.runs.engine.driver import OnQuestionAsked, RunDriver
from luxx.runs.engine.processes import ClaimedRun, claim_undriven
from luxx.runs.log.events import LostRun, RunLog, read_log
from luxx.runs.models import RunRight, RunRow, find_run, run_view
from luxx.runs.orchestration.drive import OrchestratedDrive
from luxx.runs.orchestration.inputs import InputKind, give_input
from luxx.runs.orchestration.interface import Loaders, Orchestration, RunHead
from luxx.runs.orchestration.shared_log import SharedLog
from luxx.runs.streams.watch import FrameEncoder, RunWatch
from luxx.runs.turn.context import RunServices
from luxx.runs.turn.run_rows import NOT_CALLED, RoomCaller, RunOwner, insert_run, new_run
from luxx.runs.turn.turn import INTERNAL_ERROR, TurnServices
from luxx.wire.event import LoggedEvent
from luxx.wire.run import ENDED, IN_PROGRESS, Run, RunKind, RunStatus

POLL_SECONDS = 0.1
"""Poll interval of `settled` for a run that another process drives."""

PAUSE_SECONDS = 0.35
"""How long a pause waits, once it is stored, until no turn is in progress; it must answer within 0.5 s."""


@dataclass(frozen=True, slots=True, repr=False)
class OrchestratedRunService:
    """One per process."""

    services: RunServices
    engine: RunDriver

    async def admit(self, admit: Callable[[Session], Run]) -> Run:
        """The run that `admit` inserted by `insert` in its transaction; it must begin then.

        Raises what `admit` raises, and Unavailable if the server stops.
        """
        self.engine.check_open()
        async with self.engine.admission_lock:
            return await self.services.store.write(admit)

    async def begin_watched(
        self, run: Run, *, accumulated: bool = False, encoder: FrameEncoder | None = None
    ) -> RunWatch:
        """Begins an admitted run, with a watch attached before."""
        services = self.services
        watch = RunWatch(services.hub, services.store, run, accumulated=accumulated, encoder=encoder)
        watch.attach_before_start()
        await self.engine.begin(run)
        return watch

    def insert(
        self,
        session: Session,
        owner: RunOwner,
        kind: RunKind,
        subject_id: str | None,
        request: str,
        called: RoomCaller = NOT_CALLED,
    ) -> Run:
        """Inserts the run of a room or task, which starts at once or waits for a slot. Raises TooMany.

        Without a subject it is a call, which stores nothing: then it is its own subject, and `called` says
        of which room.
        """
        connection, limits = session.connection(), self.services.config.limits
        status = self.engine.first_status(connection, owner.user_id, kind)
        check_daily_limits(connection, owner.user_id, without_level1(limits), utc_now())
        run_id = new_id()
        run = new_run(run_id, subject_id or run_id, status, kind=kind)
        insert_run(connection, run, request, owner, self.engine.process, called=called)
        return run

    async def resume(self, caller: Caller, run_id: str) -> Run:
        """Continues a paused run, at once or when it has a slot. Raises NotFound, Conflict, TooMany, or
        TooLarge if the owner's storage is full."""
        self.engine.check_open()
        owner_id = await self.services.store.read(
            lambda session: find_run(session, caller, run_id, RunRight.STEER).user_id
        )
        await self.services.storage.check(owner_id, 0, is_own=owner_id == caller.user_id)

        def work(session: Session) -> tuple[Run, list[ClaimedRun]]:
            row = find_run(session, caller, run_id, RunRight.STEER)
            if row.status != RunStatus.PAUSED.value:
                raise Conflict(f"this run is not paused: it is {row.status}", kind="run_not_paused")
            connection, limits = session.connection(), self.services.config.limits
            status = self.engine.first_status(connection, row.user_id, RunKind(row.kind))
            check_daily_limits(connection, row.user_id, without_level1(limits), utc_now())
            session.execute(update(RunRow).where(RunRow.id == run_id).values(error=None, losses=0))
            claimed: list[ClaimedRun] = []
            if status == RunStatus.RUNNING:
                claimed = claim_undriven(connection, self.engine.process, run_id)
            else:
                queued = {"status": RunStatus.QUEUED.value, "phase": None, "owner": None}
                session.execute(update(RunRow).where(RunRow.id == run_id).values(**queued))
            session.refresh(row)
            return run_view(row), claimed

        async with self.engine.admission_lock:
            run, claimed = await self.services.store.write(work)
        if claimed:
            await self.engine.start_claimed(claimed)
        else:
            self.engine.wake()
        return run

    async def give(
        self,
        run_id: str,
        kind: InputKind,
        data: str,
        check: Callable[[Session], None] = lambda _session: None,
    ) -> bool:
        """Gives an input to a run, after `check` in the same transaction; False if the run has ended."""

        def work(session: Session) -> bool:
            check(session)
            return give_input(session.connection(), run_id, kind, data)

        is_given = await self.services.store.write(work)
        if is_given:
            self.engine.deliver(run_id)
        return is_given

    async def settled(self, caller: Caller, run_id: str, seconds: float = PAUSE_SECONDS) -> Run:
        """The run once it is paused or has ended, or its state after `seconds`."""
        until = time.monotonic() + seconds
        await self.engine.wait(run_id, seconds)
        while True:
            run = await self.services.store.read(lambda session: run_view(find_run(session, caller, run_id)))
            if run.status in ENDED or run.status == RunStatus.PAUSED or time.monotonic() >= until:
                return run
            await asyncio.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))


class HasRun(Protocol):
    """A room or task."""

    run_id: Mapped[str | None]


S = TypeVar("S", bound=HasRun)


@dataclass(frozen=True, slots=True)
class SubjectRunService(ABC, Generic[S]):
    """Starting and steering the newest run of a room or task; the services of both say who may, and how it
    begins. `noun` is what it is, `started` the word for one that has a run."""

    noun: ClassVar[str]
    started: ClassVar[str] = "started"
    runs: OrchestratedRunService

    @abstractmethod
    async def _admit(self, caller: Caller, subject_id: str, /) -> Run:
        """Inserts the run."""

    @abstractmethod
    def _find(self, session: Session, caller: Caller, subject_id: str, /, *, is_steered: bool) -> S:
        """What the caller may watch or steer. Raises NotFound, NotAllowed."""

    @abstractmethod
    def _not_running(self, run: RunRow | None) -> Conflict:
        """The error for a request that needs a run in progress, with the newest run."""

    async def start(self, caller: Caller, subject_id: str) -> Run:
        """Starts its run. Raises what `_admit` raises."""
        run = await self._admit(caller, subject_id)
        await self.runs.engine.begin(run)
        return run

    async def start_and_watch(self, caller: Caller, subject_id: str, *, accumulated: bool) -> RunWatch:
        """`start`, with a watch attached before the run begins."""
        run = await self._admit(caller, subject_id)
        return await self.runs.begin_watched(run, accumulated=accumulated)

    async def newest_run_id(self, caller: Caller, subject_id: str) -> str:
        """Its newest run. Raises NotFound if there is none, or if the caller may not watch it."""

        def work(session: Session) -> str:
            run_id = self._find(session, caller, subject_id, is_steered=False).run_id
            if run_id is None:
                raise NotFound(f"this {self.noun} has not been {self.started}", kind="run_not_found")
            return run_id

        return await self.runs.services.store.read(work)

    def _check_ended(self, session: Session, subject: S) -> None:
        """Raises Conflict if its newest run is in progress or paused."""
        run = newest_run(session, subject)
        if run is not None and run.status not in ENDED:
            what = "is paused; resume it" if run.status == RunStatus.PAUSED.value else "runs already"
            raise Conflict(f"this {self.noun} {what}", kind="run_active", detail={"run_id": run.id})

    async def _give(
        self,
        caller: Caller,
        subject_id: str,
        kind: InputKind,
        data: msgspec.Struct,
        check: Callable[[Session, S], None] = lambda _session, _subject: None,
    ) -> str:
        """Gives an input to its run, after `check` in the same transaction, and returns the id of the run.
        Raises Conflict if it does not run."""

        def work(session: Session) -> str:
            subject = self._find(session, caller, subject_id, is_steered=True)
            check(session, subject)
            run = newest_run(session, subject)
            if run is None or run.status not in IN_PROGRESS:
                raise self._not_running(run)
            session.flush()
            if not give_input(session.connection(), run.id, kind, msgspec.json.encode(data).decode()):
                raise Conflict(f"this {self.noun}'s run has just ended", kind=f"{self.noun}_not_running")
            return run.id

        run_id = await self.runs.services.store.write(work)
        self.runs.engine.deliver(run_id)
        return run_id


def newest_run(session: Session, subject: HasRun) -> RunRow | None:
    """The newest run of a room or task; None before the first, and after a reset."""
    return None if subject.run_id is None else session.get(RunRow, subject.run_id)


_runs = table_of(RunRow)
_head = select(*(_runs.c[name] for name in RunHead.__struct_fields__)).where(
    _runs.c.id == bindparam("run_id"), _runs.c.fence == bindparam("fence")
)

logger = structlog.get_logger()


class OrchestratedRuns:
    """Drives the runs of the kinds that have a loader."""

    def __init__(
        self,
        services: RunServices,
        turn_services: TurnServices,
        loaders: Loaders,
        on_question: OnQuestionAsked,
    ) -> None:
        self._services = services
        self._turn_services = turn_services
        self._loaders = loaders
        self._on_question = on_question

    async def drive(self, kind: RunKind, run_id: str, fence: int, signal: CancelSignal) -> None:
        """Continues the run from the end of its log until it ends, pauses or waits for a person.

        Returns at once if this process no longer owns the run. Raises LostRun if another process claims it.
        """
        services = self._services
        loaded = await services.store.read(lambda session: self._load(session, kind, run_id, fence))
        if loaded is None:
            return
        head, orchestration, events = loaded
        if head.is_cancelled:
            signal.fire()
        notify = partial(services.notify, run_id, None)  # In every process: members may listen there.
        notify()
        with (
            services.hub.driven(run_id, head.last_seq, fence) as channel,
            services.metrics.run(kind) as record_end,
        ):
            # The signal of the run interrupts its turns, which shield their own appends.
            run_log = RunLog(
                services.store, channel, CancelSignal(), run_id=run_id, fence=fence, seq=head.last_seq,
                on_status=notify,
            )  # fmt: skip
            log = SharedLog(run_log, orchestration.apply)
            wall_time = WallTime(
                services.store, signal, run_id=run_id, fence=fence,
                limit=services.config.limits.seconds_per_run, earlier_seconds=head.driven_seconds,
                is_recorded=True,
            )  # fmt: skip
            async with wall_time:
                drive = OrchestratedDrive(head, orchestration, log, channel, signal, wall_time, services)
                drive.recover(events)
                await self._run_or_fail(drive)
                if drive.status not in ENDED:
                    await wall_time.save()
                services.storage.add(head.user_id, run_log.stored_total)
            if drive.status in ENDED:
                record_end(drive.status.value, log.usage)
        if drive.status == RunStatus.WAITING:
            await self._on_question(head.user_id)

    def _load(
        self, session: Session, kind: RunKind, run_id: str, fence: int
    ) -> tuple[RunHead, Orchestration, list[LoggedEvent]] | None:
        connection = session.connection()
        row = connection.execute(_head, {"run_id": run_id, "fence": fence}).one_or_none()
        if row is None:
            return None
        if kind not in self._loaders:
            raise Unavailable(f"this server cannot drive a run of the kind {kind}", kind="kind_unknown")
        head = msgspec.convert(row, RunHead, from_attributes=True)
        return head, self._loaders[kind](session, head), read_log(connection, run_id)

    async def _run_or_fail(self, drive: OrchestratedDrive) -> None:
        try:
            await drive.run(self._turn_services)
        except (LostRun, OperationalError, InterfaceError):
            # Another process owns the run, or the database is unavailable: the run continues later.
            raise
        except Exception:
            head, services = drive.head, self._services
            logger.exception("run_failed", run_id=head.id)
            await drive.stop_tasks()
            status = await services.fail_run(head.id, head.fence, INTERNAL_ERROR)
            drive.status = status or drive.status
            services.notify(head.id, None)
        finally:
            await drive.stop_tasks()
