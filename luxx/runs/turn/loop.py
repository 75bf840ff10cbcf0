"""The loop of a turn: read the state of the log and carry out the next action, until it ends or waits.

`drive` can start at any point of a run and any number of times, in the process that holds the run's fence: it
uses the log, not memory. `engine/driver.py` starts it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import assert_never

import structlog
from msgspec.structs import replace
from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from luxx.domain.usage.ledger import UsageEntry, record
from luxx.domain.usage.reserve import charge_orphaned_reserve
from luxx.errors import LuxxError
from luxx.infra.store.tables import table_of
from luxx.providers.client import ModelClient
from luxx.runs.context import RunContext, RunServices
from luxx.runs.engine.cancel import CancelSignal, RunCancelled, WallTime
from luxx.runs.engine.driver import RunDriver
from luxx.runs.log.events import LogEntry, LostRun, RunLog
from luxx.runs.models import RunRow
from luxx.runs.question_rows import close_questions
from luxx.runs.turn.asking import QuestionAsker
from luxx.runs.turn.completion import add_cost, closed_entries, status_entry
from luxx.runs.turn.delegation import Delegator
from luxx.runs.turn.ending import (
    CANCELLED,
    FINISHED,
    OUT_OF_ITERATIONS,
    Ending,
    ending_changes,
    ending_events,
    ending_for,
    fail_run,
    failure_ending,
    prepare_message,
)
from luxx.runs.turn.iteration import Iteration
from luxx.runs.turn.resources import CompletionCut, CompletionRecord, ResourceFinder, RunInputs, read_spec
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import (
    NextAction,
    RunSpec,
    TurnLog,
    TurnState,
    decide,
    fold,
    initial_state,
    open_calls,
)
from luxx.wire.delta import Usage
from luxx.wire.event import Warning
from luxx.wire.run import ENDED, RunKind, RunPhase
from luxx.wire.step import StepStatus

RECOVERED = (
    "The server stopped while the model was being called; the call is made again. "
    "What the interrupted call cost is not known."
)
LAST_ITERATION = (
    "This run has reached tools.max_iterations; the next model call asks for the final answer. "
    "Send another message to continue, or ask an administrator to raise the limit."
)
INTERNAL_ERROR = "An internal error stopped this run; see the server's log. What was produced is kept."

OnQuestionAsked = Callable[[int], Awaitable[None]]
"""Called with the user's id when a run begins to wait: a new rule may already allow what the run asks for."""

logger = structlog.get_logger()


class RunLoop:
    """Drives runs. A chat's run is one turn."""

    def __init__(
        self,
        services: RunServices,
        client: ModelClient,
        resources: ResourceFinder,
        engine: Callable[[], RunDriver],
        on_question: OnQuestionAsked,
    ) -> None:
        self._services = services
        self._client = client
        self._resources = resources
        self._engine = engine
        self._on_question = on_question

    async def drive(self, run_id: str, fence: int, signal: CancelSignal) -> None:
        """Continues the run from the end of its log until it ends or waits for a person.

        Returns at once if this process no longer owns the run. Raises LostRun if another process claims it.
        """
        services = self._services
        loaded = await services.store.read(lambda session: self._load(session, run_id, fence))
        if loaded is None:
            return
        spec, inputs = loaded
        if spec.is_cancelled:
            signal.fire()
        state = fold(spec.events, initial_state(spec))
        notify = partial(services.notify, run_id, spec.user_id)
        # The run may have been queued or lost before, so its phase has changed.
        notify()
        with (
            services.hub.driven(run_id, state.seq, fence) as channel,
            services.metrics.run(RunKind.CHAT) as record_end,
        ):
            run_log = RunLog(
                services.store, channel, signal, run_id=run_id, fence=fence, seq=state.seq, on_status=notify
            )
            log = TurnLog(run_log, state)
            async with self._wall_time(spec, signal) as wall_time:
                run = RunContext(
                    services=services,
                    spec=spec,
                    log=log,
                    channel=channel,
                    signal=signal,
                    spending=Spending(services.config.limits, spec, log),
                    wall_time=wall_time,
                )
                turn = Turn(run, Delegator(run, self._engine()))
                await self._run_or_fail(turn, inputs)
                if not turn.status:
                    await wall_time.save()
                services.storage.add(spec.user_id, run_log.stored_total)
            if turn.status:
                record_end(turn.status, turn.usage or log.state.usage)
        if not turn.status and decide(log.state) == NextAction.WAIT:
            await self._on_question(spec.user_id)

    def _load(
        self, session: Session, run_id: str, fence: int
    ) -> tuple[RunSpec, RunInputs | LuxxError] | None:
        spec = read_spec(session.connection(), run_id, fence)
        if spec is None:
            return None
        try:
            return spec, self._resources.read(session, spec)
        except LuxxError as error:
            return spec, error

    def _wall_time(self, spec: RunSpec, signal: CancelSignal) -> WallTime:
        return WallTime(
            self._services.store,
            signal,
            run_id=spec.run_id,
            fence=spec.fence,
            limit=self._services.config.limits.seconds_per_run,
            earlier_seconds=spec.driven_seconds,
        )

    async def _run_or_fail(self, turn: "Turn", inputs: RunInputs | LuxxError) -> None:
        """Runs the turn; an unexpected error ends the run as failed."""
        try:
            await turn.run.spending.recover_reservation()
            await self._run_turn(turn, inputs)
        except (LostRun, OperationalError, InterfaceError):
            # Another process owns the run, or the database is unavailable: the run continues later.
            raise
        except Exception:
            logger.exception("run_crashed", run_id=turn.run.spec.run_id)
            await self._end_after_error(turn)

    async def _run_turn(self, turn: "Turn", inputs: RunInputs | LuxxError) -> None:
        """Runs the iterations; ends the run on cancel or on a LuxxError."""
        try:
            iteration = await self._prepare_iteration(turn, inputs)
            while await turn.advance(iteration):
                pass
        except RunCancelled:
            await turn.end(turn.close_open_steps(StepStatus.CANCELLED), turn.stop_ending())
        except LuxxError as error:
            await turn.end(turn.close_open_steps(StepStatus.ERROR), ending_for(error))

    async def _prepare_iteration(self, turn: "Turn", inputs: RunInputs | LuxxError) -> Iteration:
        run = turn.run
        if isinstance(inputs, LuxxError):
            # For example, disabling the user also cancels the run: then the run ends as cancelled.
            if run.signal.is_fired:
                raise RunCancelled
            raise inputs
        depth = self._services.config.limits.delegation_depth
        resources = await run.signal.wait(
            self._resources.prepare(run.spec, inputs, run.signal, delegation_depth=depth)
        )
        return Iteration(run, self._client, resources, QuestionAsker(run), turn.delegator)

    async def _end_after_error(self, turn: "Turn") -> None:
        """Ends a run after an unexpected error; writes only the row if the message cannot be stored."""
        internal_error = LuxxError(INTERNAL_ERROR, kind="internal_error")
        spec = turn.run.spec
        try:
            await turn.end(turn.close_open_steps(StepStatus.ERROR), failure_ending(internal_error))
        except (LostRun, OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("run_failed_permanently", run_id=spec.run_id)
            await self._services.store.write_rows(
                lambda connection: fail_run(
                    connection, spec.run_id, spec.fence, error=INTERNAL_ERROR, kind=internal_error.kind
                )
            )
            self._services.notify(spec.run_id, spec.user_id)


class Turn:
    """One agent's turn within one drive: carries out the actions and writes the ending."""

    def __init__(self, run: RunContext, delegator: Delegator) -> None:
        self.run = run
        self.delegator = delegator
        self.status = ""
        self.usage: Usage | None = None
        self._log = run.log
        self._spending = run.spending
        self._max_iterations = run.services.config.tools.max_iterations
        self._is_recovered = run.spec.fence > 1

    async def advance(self, iteration: Iteration) -> bool:
        """Carries out the next action; False once the run has ended or waits. Raises RunCancelled."""
        next_action = decide(self._log.state)
        match next_action:
            case NextAction.NOTHING:
                return False
            case NextAction.REPAIR:
                await iteration.repair()
            case NextAction.RUN_TOOLS:
                await iteration.run_calls()
                self._is_recovered = False
                return decide(self._log.state) != NextAction.WAIT
            case NextAction.WAIT:
                await iteration.keep_waiting()
                return False
            case NextAction.CALL_MODEL if self._log.state.iterations > self._max_iterations:
                # The completion without tools was not the last one: it paused, or called a tool anyway.
                await self.end([], OUT_OF_ITERATIONS)
            case NextAction.CALL_MODEL:
                await self._call_model(iteration)
            case NextAction.FINISH:
                await self.end([], self._final_ending(self._log.state))
            case _:
                assert_never(next_action)
        return not self._log.state.is_done

    async def end(
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
            await self.delegator.stop()
        final_state = self._log.state_after(entries)
        if is_cut and usage is not None:
            final_state = replace(
                final_state,
                usage=final_state.usage + usage.usage,
                cost=add_cost(final_state.cost, usage.cost),
            )
        save, size = prepare_message(self.run.spec, final_state, ending)

        def extra_write(connection: Connection) -> None:
            save(connection)
            if final_state.questions:
                close_questions(connection, self.run.spec.run_id)
            if usage is None and not is_cut and self._spending.has_limits:
                # After an unexpected error a model call may be unfinished: charge its reservation.
                charge_orphaned_reserve(connection, self.run.spec.run_id, table_of(RunRow))
            self._spending.close(connection, usage)

        events = [*entries, *ending_events(self.run.spec.message_id, final_state.usage, ending)]
        await self._log.append(
            events, changes=ending_changes(final_state, ending), extra_write=extra_write, extra_bytes=size
        )
        self.status = ending.status.value
        self.usage = final_state.usage

    def stop_ending(self) -> Ending:
        """The ending after the signal fired: the time limit's or, after a cancel by a person, CANCELLED."""
        return ending_for(self.run.wall_time.limit_error()) if self.run.wall_time.is_expired else CANCELLED

    def close_open_steps(self, status: StepStatus) -> list[LogEntry]:
        """The entries that give open calls `status` and close the growing steps with their text so far."""
        open_steps = [self.run.channel.open_steps[index] for index in sorted(self.run.channel.open_steps)]
        calls = [status_entry(call, status) for call in open_calls(self._log.state)]
        return [*calls, *closed_entries([step.closed(status) for step in open_steps])]

    async def _call_model(self, iteration: Iteration) -> None:
        if self._is_recovered:
            self._is_recovered = False
            await self._log_lost_call(iteration.lost_call_entry())
        state = self._log.state
        has_tools = state.iterations < self._max_iterations and not self._spending.is_out_of_calls(state)
        try:
            completion_record = await iteration.call_model(with_tools=has_tools)
        except CompletionCut as cut:
            ending = self.stop_ending() if cut.cause is None else failure_ending(cut.cause)
            await self.end(cut.completion_record.entries, ending, cut.completion_record.usage, is_cut=True)
        else:
            await self._log_completion(iteration, completion_record)

    async def _log_lost_call(self, lost: UsageEntry) -> None:
        def extra_write(connection: Connection) -> None:
            # With a limit, the reservation of the call has been charged already.
            if not self._spending.has_recorded_lost_call:
                record(connection, lost)

        await self._log.append([Warning(message=RECOVERED)], phase=RunPhase.THINKING, extra_write=extra_write)

    async def _log_completion(self, iteration: Iteration, completion_record: CompletionRecord) -> None:
        """Logs an ended completion together with the start of its calls, or with the end of the run."""
        entries = completion_record.entries
        state_after = self._log.state_after(entries)
        if decide(state_after) == NextAction.FINISH:
            await self.end(entries, self._final_ending(state_after), completion_record.usage)
            return
        if state_after.iterations == self._max_iterations:
            entries.append(Warning(message=LAST_ITERATION))
        await iteration.start_calls(state_after, entries, completion_record.usage)

    def _final_ending(self, state: TurnState) -> Ending:
        is_out = state.iterations > self._max_iterations or self._spending.is_out_of_calls(state)
        return OUT_OF_ITERATIONS if is_out else FINISHED
