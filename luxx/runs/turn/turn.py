"""One agent's turn within one drive of a run: reads its state and carries out the next action until it ends
or waits for a person.

A chat's run is one turn (`engine/driver.py`); rooms and tasks have many in one log (`runs/orchestration/`).
"""

import asyncio
import dataclasses
from functools import cached_property, partial
from typing import assert_never

import structlog
from msgspec.structs import replace
from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError

from luxx.domain.usage.ledger import UsageEntry, add_cost
from luxx.domain.usage.reserve import charge_orphaned_reserve, limits_of
from luxx.errors import Conflict, ContextTooLong, InvalidInput, LimitReached, LuxxError
from luxx.infra.store.tables import table_of
from luxx.providers.failures import with_wait
from luxx.runs.cancel import CancelSignal, RunCancelled
from luxx.runs.log.events import LogEntry, LostRun
from luxx.runs.models import RunRow
from luxx.runs.turn.calls import ToolCalls
from luxx.runs.turn.context import DriveContext, RunContext
from luxx.runs.turn.delegation import Delegator
from luxx.runs.turn.iteration import (
    CompletionCut,
    CompletionRecord,
    Iteration,
    next_fallback,
    passed_over,
)
from luxx.runs.turn.loop_guard import EndedByLoop
from luxx.runs.turn.resources import TurnServices, UserAccess, has_checks, with_fallback
from luxx.runs.turn.rights import first_entries
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import NextAction, RunSpec, TurnState, decide, open_calls
from luxx.runs.turn.steering import (
    SteersLeft,
    TodosLeft,
    asks_about_pattern,
    log_completion_and_steers,
    log_given,
    log_reminder,
    log_steers,
)
from luxx.runs.turn.todo_list import is_reminded, may_remind, most_calls
from luxx.runs.turn.turn_log import (
    CANCELLED,
    DOOM_LOOP,
    FINISHED,
    LAST_ITERATION,
    OUT_OF_ITERATIONS,
    Close,
    Ending,
    TurnLog,
    closed_entries,
    ending_for,
    failure_ending,
    finished,
    is_judged,
    may_be_steered,
    may_call,
    status_entry,
)
from luxx.runs.turn.verification import Verification, kept_answer
from luxx.tools.schema import answer_problem
from luxx.wire.run import ENDED, Compression, RunKind
from luxx.wire.turn import StepStatus, Usage, last_text
from luxx.wire.turn_event import Warning, WarningCode

INTERNAL_ERROR = LuxxError(
    "An internal error stopped this run; see the server's log. What was produced is kept.",
    kind="internal_error",
)

FALLBACK_WAIT_SECONDS = 5.0
"""The longest wait that a provider states and a call waits, where a fallback can answer at once."""

logger = structlog.get_logger()


class Turn:
    """Carries out the actions and writes the ending. `close` says what else the ending writes; `signal`
    interrupts this turn. `is_recovered`: an earlier drive may have made a call whose end is not in the log.
    """

    def __init__(
        self,
        drive: DriveContext,
        services: TurnServices,
        spec: RunSpec,
        log: TurnLog,
        close: Close,
        *,
        signal: CancelSignal,
        is_recovered: bool,
    ) -> None:
        self.run = run = RunContext(
            services=drive.services,
            spec=spec,
            log=log,
            channel=drive.channel,
            signal=signal,
            spending=Spending(drive.services.config.limits, spec, log),
            wall_time=drive.wall_time,
            heard=drive.heard,
        )
        self.status = ""
        self.usage: Usage | None = None
        self._services = services
        self._calls: ToolCalls | None = None
        self._checks: Verification | None = None
        self._close = close
        self._log = run.log
        self._spending = run.spending
        most = run.services.config.tools.max_iterations
        self._max_iterations = min(run.spec.request.max_iterations or most, most)
        self._is_recovered = is_recovered

    @cached_property
    def _delegator(self) -> Delegator:
        return Delegator(self.run, self._services.engine(), self._services.resources)

    def _calls_of(self, iteration: Iteration) -> ToolCalls:
        """The calls that `iteration` asks for."""
        if self._calls is None:
            self._calls = ToolCalls(self.run, iteration.resources, self._delegator)
        return self._calls

    async def proceed(self, access: UserAccess | LuxxError) -> None:
        """Carries out actions until the turn has ended or waits; an unexpected error ends it as failed.

        Raises LostRun if another process claims the run, and database errors: then the run continues later.
        """
        try:
            await self._proceed(access)
        except (LostRun, OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("run_crashed", run_id=self.run.spec.run_id)
            await self._end(self._close_open_steps(StepStatus.ERROR), failure_ending(INTERNAL_ERROR))
        finally:
            if self._checks is not None:
                self._checks.judges.close()

    async def _proceed(self, access: UserAccess | LuxxError) -> None:
        """Runs the iterations; ends the turn on cancel or on a LuxxError."""
        try:
            iteration = await self._prepare_iteration(access)
            request = self.run.spec.request
            if not self._log.state.seq and (request.warnings or request.routed):
                await self._log.append(first_entries(self.run.spec))
            if self._is_recovered and has_checks(self.run.spec):
                self._checks_of(iteration).recall_judges()
            fallback = self._log.state.fallback
            while await self._advance(iteration):
                if self._log.state.fallback != fallback:
                    iteration = await self._prepare_iteration(await self._use_fallback(iteration))
                    fallback = self._log.state.fallback
            if self._checks is not None and not self.status:
                await self._checks.settle()
        except RunCancelled:
            await self._end(self._close_open_steps(StepStatus.CANCELLED), self._stop_ending())
        except EndedByLoop as loop:
            await self._end([*loop.entries, *self._close_open_steps(StepStatus.CANCELLED)], DOOM_LOOP)
        except LuxxError as error:
            # Where the limits leave nothing for a reminder, the answer before it is whole.
            is_whole = isinstance(error, LimitReached) and is_reminded(self._log.state)
            ending = self._final_ending(self._log.state) if is_whole else ending_for(error)
            await self._end(self._close_open_steps(StepStatus.ERROR), ending)

    def _checks_of(self, iteration: Iteration) -> Verification:
        if self._checks is None:
            self._checks = Verification(self._services.client, self._services.resources.providers)
        self._checks.judges.run, self._checks.judges.resources = self.run, iteration.resources
        return self._checks

    async def _prepare_iteration(self, access: UserAccess | LuxxError) -> Iteration:
        run = self.run
        if isinstance(access, LuxxError):
            # For example, disabling the user also cancels the run: then the run ends as cancelled.
            if run.signal.is_fired:
                raise RunCancelled
            raise access
        limits = run.services.config.limits
        is_own = access.provider_choice.row.user_id == access.caller.user_id
        own_limits = limits_of(limits, access.caller.permission_level, is_own_provider=is_own)
        self._spending.use(run.spec, own_limits)
        depth, prepare = limits.delegation_depth, self._services.resources.prepare
        resources = await run.signal.wait(prepare(run.spec, access, run.signal, delegation_depth=depth))
        self._calls = None
        return Iteration(run, self._services.client, resources)

    async def _use_fallback(self, iteration: Iteration) -> UserAccess:
        """Gives the turn the provider and model of its next fallback that can be used. Raises LuxxError."""
        while True:
            spec = with_fallback(self.run.spec, self._log.state)
            self.run = self._delegator.run = dataclasses.replace(self.run, spec=spec)
            try:
                return await self.run.services.store.read(partial(self._services.resources.read, spec=spec))
            except (Conflict, InvalidInput) as lost:
                if not (number := next_fallback(spec.request, self._log.state)):
                    raise
                await iteration.log_fallback(lost, number, None)

    async def _advance(self, iteration: Iteration) -> bool:
        """Carries out the next action; False once the run has ended or waits. Raises RunCancelled."""
        state = self._log.state
        next_action = decide(state)
        match next_action:
            case NextAction.NOTHING:
                return False
            case NextAction.REPAIR:
                await iteration.repair()
            case NextAction.RUN_TOOLS:
                await self._calls_of(iteration).run()
                self._is_recovered = False
                return decide(self._log.state) != NextAction.WAIT
            case NextAction.WAIT:
                await self._calls_of(iteration).keep_waiting()
                return False
            case NextAction.CALL_MODEL if isinstance(self.run.spec.request.origin, Compression):
                await self._compress(iteration)
            case NextAction.CALL_MODEL if not may_call(state, self._most_calls(state)):
                # The completion without tools was not the last one: it paused, or called a tool anyway.
                if self._checks is not None:
                    await self._checks.settle(may_object=False)
                await self._end([], OUT_OF_ITERATIONS)
            case NextAction.CALL_MODEL:
                if await self._before_call(iteration):
                    await self._call_model(iteration)
            case NextAction.FINISH:
                self._is_recovered = False
                await self._finish(iteration, [], self._log.state)
            case _:
                assert_never(next_action)
        return not self.status

    async def _end(
        self,
        entries: list[LogEntry],
        ending: Ending,
        usage: UsageEntry | None = None,
        *,
        is_cut: bool = False,
    ) -> None:
        """Writes `entries`, the ending and the message in one transaction.

        `is_cut`: the completion did not end, so the entries do not include the totals with `usage`.
        """
        if any(one.status not in ENDED for one in self._log.state.subagents):
            await self._delegator.stop()
        if self._checks is not None:
            await self._checks.judges.stop()
        if self._log.state.verdicts:
            entries = [*entries, *kept_answer(self._log.state_after(entries))]
        while not self.status:
            try:
                await self._write_end(entries, replace(ending, takes_todos=True), usage, is_cut=is_cut)
            except TodosLeft:
                await log_steers(self.run, only_todos=True)

    async def _write_end(
        self, entries: list[LogEntry], ending: Ending, usage: UsageEntry | None, *, is_cut: bool
    ) -> None:
        """Writes what `_end` does. Raises TodosLeft and SteersLeft."""
        final_state = self._log.state_after(entries)
        if is_cut and usage is not None:
            final_state = replace(
                final_state,
                usage=final_state.usage + usage.usage,
                cost=add_cost(final_state.cost, usage.cost),
            )
        closing = self._close(final_state, ending, usage if is_cut else None)
        run_id, turn = self.run.spec.run_id, self.run.spec.turn

        def extra_write(connection: Connection) -> None:
            closing.write(connection)
            if usage is None and not is_cut and self._spending.has_limits:
                # After an unexpected error a model call may be unfinished: charge its reservation.
                charge_orphaned_reserve(connection, run_id, table_of(RunRow), turn.key)
            self._spending.close(connection, usage)

        await self._log.append(
            [*entries, *closing.events],
            changes=closing.changes,
            extra_write=extra_write,
            extra_bytes=closing.size,
        )
        self.status = ending.status.value
        self.usage = final_state.usage

    def _stop_ending(self) -> Ending:
        """The ending after the signal fired: the time limit's or, after a cancel by a person, CANCELLED."""
        return ending_for(self.run.wall_time.limit_error()) if self.run.wall_time.is_expired else CANCELLED

    def _close_open_steps(self, status: StepStatus) -> list[LogEntry]:
        """The entries that give open calls `status` and close the growing steps with their text so far."""
        open_steps = self.run.channel.steps_of(self.run.spec.turn)
        calls = [status_entry(call, status) for call in open_calls(self._log.state)]
        return [*calls, *closed_entries([open_steps[index].closed(status) for index in sorted(open_steps)])]

    async def _before_call(self, iteration: Iteration) -> bool:
        """Logs what the log must have before the model is called; False: a person is asked first."""
        if self._is_recovered:
            self._is_recovered = False
            await iteration.log_lost_call()
        if iteration.has_words():
            await log_given(self.run)
        if has_checks(self.run.spec):
            await self._checks_of(iteration).judge_results()
        return not (self.run.spec.request.routed and await asks_about_pattern(self.run))

    def _most_calls(self, state: TurnState) -> int:
        return most_calls(state, self._max_iterations) if state.reminded else self._max_iterations

    def _has_tools(self, state: TurnState) -> bool:
        return state.iterations < self._most_calls(state) and not self._spending.is_out_of_calls(state)

    async def _call_model(self, iteration: Iteration) -> None:
        has_tools, request = self._has_tools(self._log.state), self.run.spec.request
        fallback = next_fallback(request, self._log.state)
        try:
            max_wait = FALLBACK_WAIT_SECONDS if fallback else self.run.wall_time.left()
            completion_record = await iteration.call_model(with_tools=has_tools, max_wait=max_wait)
        except CompletionCut as cut:
            if isinstance(cut.cause, ContextTooLong) and await iteration.send_less(cut):
                return
            entries, usage = cut.completion_record.entries, cut.completion_record.usage
            if cut.cause is not None and not entries:
                await iteration.note_failure(cut.cause)
                # Another provider can make the call: this one produced nothing.
                if fallback:
                    await iteration.log_fallback(cut.cause, fallback, usage)
                    return
                entries = [*passed_over(request, self._log.state)]
            ending = self._stop_ending() if cut.cause is None else failure_ending(with_wait(cut.cause))
            await self._end(entries, ending, usage, is_cut=True)
        else:
            await self._log_completion(iteration, completion_record)

    async def _compress(self, iteration: Iteration) -> None:
        """Leaves out what can be of the next prompt, unless an earlier drive has, and ends the run."""
        try:
            if not self._log.state.is_compressed:
                await self._before_call(iteration)
                await iteration.compress(self.run.wall_time.left())
        except CompletionCut as cut:
            await self._end([], self._stop_ending(), cut.completion_record.usage, is_cut=True)
        else:
            await self._end([], FINISHED)

    async def _log_completion(self, iteration: Iteration, completion_record: CompletionRecord) -> None:
        """Logs an ended completion together with the start of its calls, or with the end of the run."""
        entries = completion_record.entries
        state_after = self._log.state_after(entries)
        if decide(state_after) == NextAction.FINISH:
            await self._finish(iteration, entries, state_after, completion_record.usage)
            return
        if state_after.iterations == self._max_iterations:
            entries.append(Warning(message=LAST_ITERATION))
        await self._calls_of(iteration).start(state_after, entries, completion_record.usage)

    async def _finish(
        self, iteration: Iteration, entries: list[LogEntry], state: TurnState, usage: UsageEntry | None = None
    ) -> None:
        """Ends the turn with its answer, unless a check sends it back; partial if it breaks its schema."""
        ending, spec, todos = self._final_ending(state), self.run.spec, state.context.todos
        if (todos or spec.request.routed) and may_remind(spec, state) and self._has_tools(state):
            await log_reminder(self.run, entries, usage)
            return
        if has_checks(spec) and is_judged(state, ending):
            is_early = state.iterations < self._most_calls(state) and ending == FINISHED
            verdicts = await self._checks_of(iteration).judge_answer(entries, usage, may_object=is_early)
            if verdicts is None:
                return
            entries, state, usage = verdicts, self._log.state, None
        last = entries
        schema = spec.request.response_schema if spec.kind == RunKind.CHAT and not spec.turn.key else None
        if schema is not None and is_judged(state, ending):
            problem = await asyncio.to_thread(answer_problem, schema, last_text(state.steps))
            if problem is not None:
                last = [*entries, Warning(message=problem, code=WarningCode.SCHEMA_NOT_MET)]
                ending = replace(ending, is_partial=True)
        # A person may steer the answer once beyond its last call.
        takes_steers = may_be_steered(spec, state) and state.iterations <= self._max_iterations + 1
        while not self.status:
            try:
                await self._end(last, replace(ending, takes_steers=takes_steers), usage)
            except SteersLeft:
                if await log_completion_and_steers(self.run, entries, usage):
                    return

    def _final_ending(self, state: TurnState) -> Ending:
        ending = finished(state)
        is_out = state.iterations > self._max_iterations or self._spending.is_out_of_calls(state)
        return OUT_OF_ITERATIONS if is_out and ending is not DOOM_LOOP else ending
