"""Admission: which run may begin, or go on after a pause, now or once it has a slot; the same for every kind.

What a kind adds, such as the message of a chat or the check that a room has seats, runs in the transaction of
the admission; `SubjectRunService` has what rooms and tasks share. `slots.py` says when there is a slot.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection, update
from sqlalchemy.orm import Mapped, Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.usage.reserve import check_daily_limits, limits_of, without_level1
from luxx.errors import Conflict, NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.providers.models import ProviderRow
from luxx.runs.engine.driver import RunDriver
from luxx.runs.engine.processes import ClaimedRun, claim_undriven
from luxx.runs.models import RunRight, RunRow, find_run, run_view
from luxx.runs.orchestration.inputs import InputKind, give_input
from luxx.runs.service import RunService
from luxx.runs.streams.watch import FrameEncoder, RunWatch
from luxx.runs.turn.context import RunServices
from luxx.runs.turn.run_rows import NOT_CALLED, RoomCaller, RunOwner, insert_run, new_run
from luxx.runs.turn.state import ChatRequest
from luxx.wire.run import ENDED, IN_PROGRESS, Run, RunKind, RunStatus

R = TypeVar("R", Run, Run | None)


@dataclass(frozen=True, slots=True, repr=False)
class Admission:
    """Admits runs; one per process."""

    services: RunServices
    engine: RunDriver

    async def admit(
        self, caller: Caller, insert: Callable[[Session], R], *, size: int = 0, owner_id: int | None = None
    ) -> R:
        """The run that `insert` stored with `self.insert`, beside `size` bytes; it must begin then. None if
        it inserted none.

        `owner_id` is the user to whom both belong; None: the caller. Raises what `insert` raises, Unavailable
        if the server stops, or TooLarge if the owner's storage is full; then nothing has changed.
        """
        services = self.services
        owner = caller.user_id if owner_id is None else owner_id
        self.engine.check_open()
        await services.storage.check(owner, size, is_own=owner == caller.user_id)
        async with self.engine.admission_lock:
            run = await services.store.write(insert)
        services.storage.add(owner, size)
        if run is not None:
            # Members of a room may listen in any process.
            services.notify(run.id, owner if run.kind == RunKind.CHAT else None)
        return run

    async def begin(self, run: Run) -> Run:
        """Begins an admitted run."""
        await self.engine.begin(run)
        return run

    async def begin_watched(
        self, run: Run, *, accumulated: bool = False, encoder: FrameEncoder | None = None
    ) -> RunWatch:
        """Begins an admitted run, with a watch attached before. The caller must attach to the watch."""
        services = self.services
        watch = RunWatch(services.hub, services.store, run, accumulated=accumulated, encoder=encoder)
        watch.attach_before_start()
        await self.engine.begin(run)
        return watch

    def insert(
        self,
        session: Session,
        owner: Caller | RunOwner,
        kind: RunKind,
        subject_id: str | None,
        request: ChatRequest | str,
        *,
        limits: LimitsConfig | None = None,
        message_id: str | None = None,
        size: int = 0,
        called: RoomCaller = NOT_CALLED,
    ) -> Run:
        """Inserts a run, which starts at once or waits for a slot. Raises TooMany.

        Without a subject it is a call, which stores nothing: then it is its own subject, and `called` says of
        which room, if of one. `limits`: those of `limits_for`; None: those of everybody. `message_id` and
        `size` are a chat's: the message that it writes, and the bytes of the one that it answers.
        """
        connection = session.connection()
        status = self._first_status(connection, owner.user_id, kind, limits)
        run_id = new_id()
        run = new_run(
            run_id, subject_id or run_id, status, kind=kind, message_id=message_id,
            request=request if isinstance(request, ChatRequest) else None,
        )  # fmt: skip
        insert_run(connection, run, request, owner, self.engine.process, size=size, called=called)
        return run

    async def resume(self, caller: Caller, run_id: str) -> Run:
        """Continues a paused run, at once or when it has a slot. Raises NotFound, Conflict, TooMany, or
        TooLarge if the owner's storage is full."""
        self.engine.check_open()
        store = self.services.store
        owner_id = await store.read(lambda session: find_run(session, caller, run_id, RunRight.STEER).user_id)
        await self.services.storage.check(owner_id, 0, is_own=owner_id == caller.user_id)
        async with self.engine.admission_lock:
            run, claimed = await store.write(lambda session: self._resume(session, caller, run_id))
        if claimed:
            await self.engine.start_claimed(claimed)
        else:
            self.engine.wake()
        return run

    def _resume(self, session: Session, caller: Caller, run_id: str) -> tuple[Run, list[ClaimedRun]]:
        row = find_run(session, caller, run_id, RunRight.STEER)
        if row.status != RunStatus.PAUSED.value:
            raise Conflict(f"this run is not paused: it is {row.status}", kind="run_not_paused")
        connection = session.connection()
        status = self._first_status(connection, row.user_id, RunKind(row.kind), None)
        session.execute(update(RunRow).where(RunRow.id == run_id).values(error=None, losses=0))
        claimed: list[ClaimedRun] = []
        if status == RunStatus.RUNNING:
            claimed = claim_undriven(connection, self.engine.process, run_id)
        else:
            queued = {"status": RunStatus.QUEUED.value, "phase": None, "owner": None}
            session.execute(update(RunRow).where(RunRow.id == run_id).values(**queued))
        session.refresh(row)
        return run_view(row), claimed

    def _first_status(
        self, connection: Connection, user_id: int, kind: RunKind, limits: LimitsConfig | None
    ) -> RunStatus:
        """Whether a run begins or goes on now or waits for a slot. Raises TooMany, also if the user has used
        up a daily limit."""
        status = self.engine.first_status(connection, user_id, kind)
        limits = limits or without_level1(self.services.config.limits)
        check_daily_limits(connection, user_id, limits, utc_now())
        return status

    def limits_for(self, session: Session, caller: Caller, provider_id: int) -> LimitsConfig:
        """The limits in force for the caller's calls of this provider."""
        limits = self.services.config.limits
        if not limits.level1_tokens_per_day:
            return limits
        provider = session.get(ProviderRow, provider_id)
        is_own = provider is None or provider.user_id == caller.user_id
        return limits_of(limits, caller.permission_level, is_own_provider=is_own)


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
    admission: Admission
    runs: RunService

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
        return await self.admission.begin(await self._admit(caller, subject_id))

    async def start_and_watch(self, caller: Caller, subject_id: str, *, accumulated: bool) -> RunWatch:
        """`start`, with a watch attached before the run begins."""
        run = await self._admit(caller, subject_id)
        return await self.admission.begin_watched(run, accumulated=accumulated)

    async def newest_run_id(self, caller: Caller, subject_id: str) -> str:
        """Its newest run. Raises NotFound if there is none, or if the caller may not watch it."""

        def work(session: Session) -> str:
            run_id = self._find(session, caller, subject_id, is_steered=False).run_id
            if run_id is None:
                raise NotFound(f"this {self.noun} has not been {self.started}", kind="run_not_found")
            return run_id

        return await self.admission.services.store.read(work)

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

        return await self.runs.give(work)


def newest_run(session: Session, subject: HasRun) -> RunRow | None:
    """The newest run of a room or task; None before the first, and after a reset."""
    return None if subject.run_id is None else session.get(RunRow, subject.run_id)
