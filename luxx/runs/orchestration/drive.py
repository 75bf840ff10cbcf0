"""One drive of a run with several turns: its own task decides what comes next, by the orchestration of the
run's kind; each turn in progress is a task of its own.

They all write one log (`shared_log.py`). A turn that asks a person ends its task, and continues once the
answer is logged; the run waits when no turn can go on.
"""

import asyncio
import dataclasses
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import assert_never

import msgspec
import structlog
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.orm import Session

from luxx.domain.usage.ledger import UsageEntry
from luxx.domain.usage.reserve import charge_orphaned_reserve
from luxx.errors import LuxxError
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.agent_use import record_turn
from luxx.runs.cancel import CancelSignal, RunCancelled
from luxx.runs.log.events import read_log
from luxx.runs.models import RunRow
from luxx.runs.orchestration.inputs import INPUTS_AT_ONCE, InputKind, RunInput, deleting_inputs, read_inputs
from luxx.runs.orchestration.interface import (
    Append,
    Begin,
    Decision,
    End,
    InputEffect,
    NotYet,
    Opening,
    Orchestration,
    OrchestrationLoader,
    RunTotals,
    TurnStart,
    Wait,
    Work,
)
from luxx.runs.orchestration.live_turns import LiveTurn, LiveTurns
from luxx.runs.orchestration.shared_log import SharedLog, TurnPart
from luxx.runs.slots import SLOT_POLL_SECONDS, TurnSlots
from luxx.runs.turn.asking import WAITING_CHANGES, close_questions
from luxx.runs.turn.context import BeginDrive, DriveContext
from luxx.runs.turn.resources import TurnServices, UserAccess, with_fallback
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import RunSpec, TurnState, fold
from luxx.runs.turn.turn import Turn
from luxx.runs.turn.turn_log import Closing, Ending, TurnLog, initial_state
from luxx.wire.event import CallPurpose, LoggedEvent, QuestionAnswered, QuestionAsked, TurnNote
from luxx.wire.run import ENDED, RunKind, RunPhase, RunStatus
from luxx.wire.turn import CHAT_TURN, Usage, turn_of

SLOT_KEPT_SECONDS = 0.1  # How long the slot of an ended turn is kept for the next one of the run.
INPUT_POLL_SECONDS = 2.0  # How often a drive looks for inputs, if another process could not notify it.

_runs = table_of(RunRow)
_is_cancelled = select(_runs.c.is_cancelled).where(_runs.c.id == bindparam("run_id"))

_encode = msgspec.json.Encoder().encode
_answer = msgspec.json.Decoder(QuestionAnswered)

logger = structlog.get_logger()


class OrchestratedDrive:
    """One drive. `status` is the status of the run when it ends."""

    def __init__(self, context: DriveContext, services: TurnServices, orchestration: Orchestration) -> None:
        self.status = RunStatus.RUNNING
        self.log = SharedLog(context.log, orchestration.apply)
        self._context = context
        self._head = context.head
        self._store = context.services.store
        self._turn_services = services
        self._orchestration = orchestration
        self._turns = LiveTurns()
        self._changed, self._may_have_inputs = asyncio.Event(), True
        self._charged: set[str] = set()
        head, limits, engine = self._head, context.services.config.limits, services.engine()
        self._slots = TurnSlots(self._store, limits, head.id, head.fence, head.user_id, engine.release_slot)

    @property
    def usage(self) -> Usage:
        """That of all turns."""
        return self.log.usage

    def recover(self, events: list[LoggedEvent]) -> None:
        """Folds the log of earlier drives: the state of the run, and that of each turn in progress."""
        by_turn: dict[str, list[LoggedEvent]] = {}
        turn_of_question: dict[str, str] = {}
        for logged in events:
            self._orchestration.apply(logged)
            self.log.count(logged)
            key = turn_of(logged.event).key
            if isinstance(logged.event, QuestionAsked):
                turn_of_question[logged.event.question_id] = key
            if isinstance(logged.event, QuestionAnswered):
                key = turn_of_question.get(logged.event.question_id, key)
            if isinstance(logged.note, TurnNote) and self._orchestration.is_open(key):
                by_turn[key] = [logged]  # The turn begins, perhaps after an attempt that a pause cut.
            elif self._orchestration.is_open(key):
                by_turn.setdefault(key, []).append(logged)
            else:
                by_turn.pop(key, None)
        for start in self._orchestration.open_turns():
            self._add(start, by_turn.get(start.turn.key, []), is_recovered=True)

    async def run(self) -> None:
        """Carries out decisions until the run ends, pauses or waits for a person."""
        signal = self._context.signal
        signal.on_fire, signal.on_input = self._changed.set, self._on_input
        await self._charge_lost_calls()
        while self.status == RunStatus.RUNNING:
            self._changed.clear()
            self._turns.collect_ended(self._context.channel)
            if signal.is_fired:
                await self._stop()
                return
            await self._take_inputs()
            await self._cut(self._orchestration.to_cut())
            await self._continue_turns()
            waiting = len(self._turns) - len(self._turns.tasks())
            totals = RunTotals(
                usage=self.log.usage, cost=self.log.cost, seconds=self._context.wall_time.seconds()
            )
            decision = self._orchestration.decide(self._turns.keys(), waiting, totals)
            await self._carry_out(decision, totals)

    async def stop(self) -> None:
        """Ends the tasks of turns that are still in progress, without writing anything."""
        self._context.signal.on_fire = self._context.signal.on_input = None
        tasks = self._turns.tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.log.stop()

    async def _carry_out(self, decision: Decision, totals: RunTotals) -> None:
        match decision:
            case Begin(turns=wanted):
                working = len(self._turns.tasks())
                free = await self._slots.take(working + wanted) - working
                begin = partial(self._begin, decision, free, totals)
                await (begin() if free > 0 else self._wait_for_change())
            case Append():
                await self.log.append(decision.entries, extra_write=decision.write)
            case Wait() if self._turns.tasks():
                await self._wait_for_change()
            case Wait():
                await self._wait_for_people()
            case Work():
                with suppress(RunCancelled):
                    await self._context.signal.wait(decision.work())
            case End():
                await self._end(decision)
            case _:
                assert_never(decision)

    async def _charge_lost_calls(self) -> None:
        """Charges the reserves of model calls that an earlier drive left."""
        if self._head.fence <= 1:
            return
        head = self._head

        def extra_write(connection: Connection) -> None:
            self._charged |= charge_orphaned_reserve(connection, head.id, _runs)

        await self.log.append([], extra_write=extra_write)

    async def _begin(self, begin: Begin, most: int, totals: RunTotals) -> None:
        """Begins at most `most` turns, as the decision `begin` on these totals says."""
        read_access = self._turn_services.read_access

        def prepare(session: Session) -> tuple[Opening, list[UserAccess | LuxxError]]:
            opening = self._orchestration.prepare(session, begin, most, totals)
            return opening, [read_access(session, self._spec(start)) for start in opening.turns]

        opening, accesses = await self._store.read(prepare)
        if opening.entries:
            await self.log.append(opening.entries, extra_write=opening.write)
        for start, access in zip(opening.turns, accesses, strict=True):
            self._proceed(self._add(start, [], is_recovered=False), access)

    def _add(self, start: TurnStart, events: list[LoggedEvent], *, is_recovered: bool) -> LiveTurn:
        signal = CancelSignal()
        signal.has_input = is_recovered  # While it was in no process, nobody could say so.
        state = fold(events, initial_state(self._spec(start)))
        log = TurnLog(TurnPart(self.log, start.turn, signal), state)
        turn = LiveTurn(start=start, log=log, signal=signal, is_recovered=is_recovered)
        self._turns.add(turn)
        return turn

    def _spec(self, turn: TurnStart) -> RunSpec:
        head = self._head
        return RunSpec(
            run_id=head.id, kind=head.kind, turn=turn.turn, user_id=head.user_id,
            tenant_id=head.tenant_id, subject_id=head.subject_id, message_id=turn.turn.msg_id or None,
            fence=head.fence, request=turn.request, past=turn.past,
            events=[], tainted_by=turn.tainted_by, purpose=turn.purpose, level=turn.level,
        )  # fmt: skip

    async def _start(self, turn: LiveTurn) -> None:
        """Continues a turn that an earlier drive began, or that waited for a person."""
        spec = with_fallback(self._spec(turn.start), turn.log.state)
        access = await self._store.read(lambda session: self._turn_services.read_access(session, spec))
        self._proceed(turn, access)

    def _proceed(self, turn: LiveTurn, access: UserAccess | LuxxError) -> None:
        turn.task = asyncio.create_task(self._run_turn(turn, access), name=f"turn {turn.start.turn.key}")
        turn.task.add_done_callback(lambda _task: self._changed.set())
        if turn.start.seconds is not None:
            timer = asyncio.get_running_loop().call_later(turn.start.seconds, turn.signal.fire)
            turn.task.add_done_callback(lambda _task: timer.cancel())

    async def _run_turn(self, live: LiveTurn, access: UserAccess | LuxxError) -> None:
        spec = with_fallback(self._spec(live.start), live.log.state)
        close = partial(self._close, live)
        heard = partial(self._orchestration.heard, spec.turn.key)
        turn = Turn(
            dataclasses.replace(self._context, heard=heard), self._turn_services, spec, live.log, close,
            signal=live.signal, is_recovered=live.is_recovered,
        )  # fmt: skip
        turn.run.spending.has_recorded_lost_call = spec.turn.key in self._charged
        live.is_recovered = False
        live.since = time.monotonic()
        await turn.proceed(access)
        live.worked += time.monotonic() - live.since
        live.is_over = bool(turn.status)

    def _close(self, live: LiveTurn, state: TurnState, ending: Ending, cut: UsageEntry | None) -> Closing:
        """What the end of a turn writes, with the row that counts it for its agent."""
        closing = self._orchestration.close(live.start, state, ending, cut)
        agent_id = live.start.request.agent_id
        if agent_id is None or self._head.kind == RunKind.CHAT or live.start.purpose != CallPurpose.ANSWER:
            return closing
        seconds = live.worked + time.monotonic() - live.since

        def write(connection: Connection) -> None:
            closing.write(connection)
            record_turn(connection, self._head.id, agent_id, ending.status, seconds)

        return msgspec.structs.replace(closing, write=write)

    def _on_input(self) -> None:
        self._may_have_inputs = True
        if (answer := self._turns.get(CHAT_TURN.key)) is not None:
            answer.signal.has_input = True  # A person may have written for a planned chat's answer.
        self._changed.set()

    async def _wait_for_change(self) -> None:
        # Most often the next turn begins soon, with the slot of one that has ended.
        if self._slots.held > len(self._turns.tasks()) and not await self._has_changed(SLOT_KEPT_SECONDS):
            await self._slots.keep(len(self._turns.tasks()))
        if self._store.is_sqlite and not self._slots.is_short:
            await self._changed.wait()
        elif not await self._has_changed(SLOT_POLL_SECONDS if self._slots.is_short else INPUT_POLL_SECONDS):
            self._may_have_inputs = True

    async def _has_changed(self, seconds: float) -> bool:
        """Waits for a change, for at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        return self._changed.is_set()

    async def _take_inputs(self) -> None:
        """Logs the inputs and does what they ask for."""
        while self._may_have_inputs:
            self._may_have_inputs = False

            def read(session: Session) -> tuple[list[RunInput], InputEffect]:
                inputs = read_inputs(session.connection(), self._head.id)
                others = [given for given in inputs if given.kind != InputKind.ANSWER]
                effect = self._orchestration.on_inputs(session, others) if others else InputEffect()
                return inputs, effect

            inputs, effect = await self._store.read(read)
            if not inputs:
                return
            for given in inputs:
                if given.kind == InputKind.ANSWER:
                    await self._log_answer(given.id, _answer.decode(given.data))
            rest = [given.id for given in inputs if given.kind != InputKind.ANSWER]
            if rest:
                await self.log.append(effect.entries, extra_write=deleting_inputs(rest, effect.write))
            self._may_have_inputs = self._may_have_inputs or len(inputs) == INPUTS_AT_ONCE

    async def _log_answer(self, input_id: int, answer: QuestionAnswered) -> None:
        """Logs the answer to a question of a turn."""
        # The turn of a late answer may have been cut.
        turn = self._turns.with_question(answer.question_id)
        logged = await self.log.append(
            [answer],
            turn=CHAT_TURN if turn is None else turn.start.turn,
            extra_write=deleting_inputs([input_id]),
        )
        if turn is not None:
            turn.log.add(logged)

    async def _continue_turns(self) -> None:
        """Continues turns that an earlier drive began or whose questions are answered, up to the limits."""
        ready = self._turns.ready()
        if not ready:
            return
        working, most = len(self._turns.tasks()), self._orchestration.max_turns
        wanted = working + len(ready)
        free = await self._slots.take(wanted if most is None else max(working, min(wanted, most))) - working
        for turn in ready[: max(0, free)]:
            await self._start(turn)

    async def _cut(self, keys: Collection[str]) -> None:
        """Ends turns early; what they produced is kept."""
        for key in keys:
            if (turn := self._turns.get(key)) is not None:
                turn.signal.fire()
                if turn.task is None and not turn.is_over:
                    await self._start(turn)

    async def _stop(self) -> None:
        """Ends the run after a cancel by a person, or because its time is up."""
        await self._cut(self._turns.keys())
        if tasks := self._turns.tasks():
            await asyncio.wait(tasks)
        self._turns.collect_ended(self._context.channel)
        error = self._context.wall_time.limit_error() if self._context.wall_time.is_expired else None
        await self._end(self._orchestration.on_stop(error), takes_inputs=False)

    async def _wait_for_people(self) -> None:
        """Sets the run to waiting, unless an input or a cancel arrived meanwhile; then the drive ends."""
        try:
            await self.log.append(
                [],
                changes={**WAITING_CHANGES, "phase": RunPhase.WAITING.value},
                extra_write=self._check_quiet,
            )
        except NotYet:
            self._may_have_inputs = True
        else:
            self.status = RunStatus.WAITING

    def _check_quiet(self, connection: Connection) -> None:
        """Raises NotYet if the run has an input or was cancelled."""
        if connection.scalar(_is_cancelled, {"run_id": self._head.id}):
            self._context.signal.fire()
            raise NotYet
        if read_inputs(connection, self._head.id, 1):
            raise NotYet

    async def _end(self, end: End, *, takes_inputs: bool = True) -> None:
        """Writes the end of the run or its pause; inputs that arrived meanwhile come first."""
        run_id = self._head.id

        def extra_write(connection: Connection) -> None:
            if takes_inputs:
                self._check_quiet(connection)
            if end.write is not None:
                end.write(connection)
            if self.log.has_asked:
                close_questions(connection, run_id)

        changes = {
            "status": end.status.value,
            "phase": None,
            "stop_reason": end.stop_reason,
            "error": None if end.error is None else end.error.message.replace("\0", "\ufffd"),
            "usage": _encode(self.log.usage).decode(),
            "cost": self.log.cost,
            "owner": None,
            "finished_at": utc_now() if end.status in ENDED else None,
            **end.changes,
        }
        try:
            await self.log.append(end.entries, changes=changes, extra_write=extra_write, extra_bytes=end.size)
        except NotYet:
            self._may_have_inputs = True
        else:
            self.status = end.status
            if end.on_written is not None:
                end.on_written()


def load_orchestrated(
    services: TurnServices, load: OrchestrationLoader, session: Session, head: RunHead
) -> BeginDrive:
    """Reads the log and the rows of a run of the kind that `load` knows."""
    orchestration, events = load(session, head), read_log(session.connection(), head.id)

    def begin(context: DriveContext) -> OrchestratedDrive:
        drive = OrchestratedDrive(context, services, orchestration)
        drive.recover(events)
        return drive

    return begin
