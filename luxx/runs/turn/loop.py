"""The chat loop: look at the state of the log, do what it asks for, until the run has ended.

`drive` can be started at any point of a run's life, any number of times, by whichever process holds
its fence: it asks the log and not its memory. How it comes to be started is `durable.py`'s affair.
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
from luxx.domain.usage.reserve import settle_left
from luxx.errors import LuxxError
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.observe import Metrics
from luxx.infra.store.engine import Store
from luxx.providers.client import ModelClient
from luxx.runs.engine.cancel import CancelSignal, RunCancelled
from luxx.runs.engine.failing import give_up
from luxx.runs.engine.processes import Engine
from luxx.runs.log.events import Entry, LostRun, RunLog
from luxx.runs.question_rows import close_questions
from luxx.runs.storage import StorageUse
from luxx.runs.streams.hub import Channel, Hub
from luxx.runs.streams.notices import Told
from luxx.runs.turn.asking import Asker
from luxx.runs.turn.completion import added, closing, marked
from luxx.runs.turn.delegation import Delegator
from luxx.runs.turn.ending import (
    CANCELLED,
    FINISHED,
    OUT_OF_ITERATIONS,
    Ending,
    ended_by,
    ending_changes,
    ending_events,
    failed,
    store_message,
)
from luxx.runs.turn.iteration import Iteration
from luxx.runs.turn.resources import Completed, CrewFinder, Cut, Seen
from luxx.runs.turn.spec import ChatBrief, beginning, read_brief
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import ChatLog, ChatState, Next, decide, fold, open_calls
from luxx.runs.turn.wall_time import WallTime
from luxx.tools.executor import ToolExecutor
from luxx.wire.delta import Usage
from luxx.wire.event import Warning
from luxx.wire.run import RunKind, RunPhase
from luxx.wire.step import StepStatus

RESUMED = (
    "The server stopped while the model was being called; the call is made again. "
    "What the interrupted call cost is not known."
)
LAST_ITERATION = (
    "This run has called the model with tools as often as it may; the next call asks for its final answer. "
    "Go on with another message, or an administrator raises tools.max_iterations."
)
BROKE = "The server made a mistake and could not go on; its log says more. What was produced is kept."

Asked = Callable[[int], Awaitable[None]]
"""Is told whose run has begun to wait for a person: a rule may have come that allows what it asks."""

logger = structlog.get_logger()


async def nobody_asks(user_id: int) -> None:
    """The `asked` of a loop whose questions nothing but a person answers."""


class ChatLoop:
    """Drives chat runs."""

    def __init__(
        self,
        *,
        store: Store,
        hub: Hub,
        client: ModelClient,
        executor: ToolExecutor,
        crew: CrewFinder,
        max_iterations: int,
        limits: LimitsConfig,
        metrics: Metrics,
        told: Told,
        engine: Callable[[], Engine],
        storage: StorageUse,
        decision_seconds: int = 0,
        asked: Asked = nobody_asks,
    ) -> None:
        self._asked = asked
        self._told = told
        self._engine = engine
        self._storage = storage
        self._limits = limits
        self._store = store
        self._hub = hub
        self._client = client
        self._executor = executor
        self._crew = crew
        self._max_iterations = max_iterations
        self._metrics = metrics
        self._decision_seconds = decision_seconds

    async def drive(self, run_id: str, fence: int, signal: CancelSignal) -> None:
        """Takes the run from where its log ends to its end, or to where it waits for a person.

        Returns at once if it is not ours any more.

        Raises LostRun if another process takes it on the way.
        """
        found = await self._store.read(lambda session: self._find(session, run_id, fence))
        if found is None:
            return
        brief, seen = found
        if brief.is_cancelled:
            signal.fire()
        state = fold(brief.events, beginning(brief))
        # It may have been queued, or lost.
        self._told(run_id, brief.user_id)
        with self._hub.driven(run_id, state.seq, fence) as channel, self._metrics.run(RunKind.CHAT) as ended:
            on_status = partial(self._told, run_id, brief.user_id)
            run_log = RunLog(
                self._store, channel, signal, run_id=run_id, fence=fence, seq=state.seq, on_status=on_status
            )
            async with self._wall_time(brief, signal) as wall_time:
                spending = Spending(self._limits, brief)
                log = ChatLog(run_log, state)
                delegator = self._delegator(brief, log, spending)
                turn = Turn(brief, log, channel, self._max_iterations, spending, wall_time, delegator)
                try:
                    await spending.take_over(log)
                    await self._work_to_the_end(turn, seen, signal)
                except (LostRun, OperationalError, InterfaceError):
                    # Not ours any more, or the database is away: the log says where it stands.
                    raise
                except Exception:
                    logger.exception("run_broke", run_id=run_id)
                    await self._end_broken(turn, fence)
                if not turn.status:
                    await wall_time.keep()
                self._storage.add(brief.user_id, run_log.stored)
            if turn.status:
                ended(turn.status, turn.usage or turn.log.state.usage)
        if not turn.status and decide(turn.log.state) == Next.WAIT:
            await self._asked(brief.user_id)

    def _delegator(self, brief: ChatBrief, log: ChatLog, spending: Spending) -> Delegator:
        return Delegator(
            brief,
            log,
            self._store,
            self._engine(),
            depth=self._limits.delegation_depth,
            most=self._limits.subagents_per_run,
            share=spending.share_of_calls,
        )

    def _wall_time(self, brief: ChatBrief, signal: CancelSignal) -> WallTime:
        return WallTime(
            self._store,
            signal,
            run_id=brief.run_id,
            fence=brief.fence,
            limit=self._limits.seconds_per_run,
            before=brief.driven_seconds,
        )

    async def _work_to_the_end(self, turn: "Turn", seen: Seen | LuxxError, signal: CancelSignal) -> None:
        """The work, and the ending that a person or a known error gives it."""
        try:
            await self._work(turn, seen, signal)
        except RunCancelled:
            await turn.end(turn.cut_short(StepStatus.CANCELLED), turn.stopped())
        except LuxxError as error:
            await turn.end(turn.cut_short(StepStatus.ERROR), ended_by(error))

    async def _end_broken(self, turn: "Turn", fence: int) -> None:
        """Ends a run after an error that nobody foresaw, which may be that its message cannot be stored."""
        broke = LuxxError(BROKE, kind="internal_error")
        try:
            await turn.end(turn.cut_short(StepStatus.ERROR), failed(broke))
        except (LostRun, OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("run_given_up", run_id=turn.brief.run_id)
            run_id = turn.brief.run_id
            await self._store.write_rows(
                lambda connection: give_up(connection, run_id, fence, error=BROKE, kind=broke.kind)
            )
            self._told(run_id, turn.brief.user_id)

    def _find(self, session: Session, run_id: str, fence: int) -> tuple[ChatBrief, Seen | LuxxError] | None:
        brief = read_brief(session.connection(), run_id, fence)
        if brief is None:
            return None
        try:
            return brief, self._crew.read(session, brief)
        except LuxxError as error:
            return brief, error

    async def _work(self, turn: "Turn", seen: Seen | LuxxError, signal: CancelSignal) -> None:
        brief = turn.brief
        if isinstance(seen, LuxxError):
            # Somebody who was disabled, for example, with a run that a person ended by that.
            if signal.is_fired:
                raise RunCancelled
            raise seen
        depth = self._limits.delegation_depth
        iteration = Iteration(
            brief=brief,
            log=turn.log,
            channel=turn.channel,
            signal=signal,
            client=self._client,
            executor=self._executor,
            crew=await signal.wait(self._crew.make(brief, seen, signal, delegation_depth=depth)),
            spending=turn.spending,
            asker=Asker(brief, turn.log, decision_seconds=self._decision_seconds),
            delegator=turn.delegator,
            metrics=self._metrics,
        )
        while await turn.go_on(iteration):
            pass


class Turn:
    """One drive's way through the states, and what it writes at each."""

    def __init__(
        self,
        brief: ChatBrief,
        log: ChatLog,
        channel: Channel,
        max_iterations: int,
        spending: Spending,
        wall_time: WallTime,
        delegator: Delegator,
    ) -> None:
        self.spending = spending
        self.delegator = delegator
        self._wall_time = wall_time
        self.brief = brief
        self.log = log
        self.channel = channel
        self.status = ""
        self.usage: Usage | None = None
        self._max_iterations = max_iterations
        self._is_resumed = brief.fence > 1

    async def go_on(self, iteration: Iteration) -> bool:
        """Does what the state asks for; False once the run has ended or waits. Raises RunCancelled."""
        todo = decide(self.log.state)
        match todo:
            case Next.NOTHING:
                return False
            case Next.MEND:
                await iteration.mend()
            case Next.RUN_TOOLS:
                await iteration.act()
                self._is_resumed = False
                return decide(self.log.state) != Next.WAIT
            case Next.WAIT:
                await iteration.wait_on()
                return False
            case Next.CALL_MODEL if self.log.state.iterations > self._max_iterations:
                # Even the completion that was offered no tools was not the last: it paused, or called one.
                await self.end([], OUT_OF_ITERATIONS)
            case Next.CALL_MODEL:
                await self._call_model(iteration)
            case Next.FINISH:
                await self.end([], self._outcome(self.log.state))
            case _:
                assert_never(todo)
        return not self.log.state.is_done

    async def end(
        self, entries: list[Entry], ending: Ending, usage: UsageEntry | None = None, *, is_cut: bool = False
    ) -> None:
        """Writes what is left, the ending and the message, in one transaction.

        `is_cut`: the entries do not tell the sums with `usage`, for its completion did not come to its end.
        """
        await self.delegator.stop()
        last = self.log.after(entries)
        if is_cut and usage is not None:
            last = replace(last, usage=last.usage + usage.usage, cost=added(last.cost, usage.cost))
        keep, size = store_message(self.brief, last, ending)

        def also(connection: Connection) -> None:
            keep(connection)
            if last.asked:
                close_questions(connection, self.brief.run_id)
            if usage is None and not is_cut and self.spending.has_amounts:
                # Something broke that nobody foresaw, perhaps a call to the model with it.
                settle_left(connection, self.brief.run_id)
            self.spending.close(connection, usage)

        events = [*entries, *ending_events(self.brief, last, ending)]
        await self.log.append(events, changes=ending_changes(last, ending), also=also, also_bytes=size)
        self.status = ending.status.value
        self.usage = last.usage

    def stopped(self) -> Ending:
        """The ending that the run's signal gives it: a person's, or that of its time."""
        return ended_by(self._wall_time.reached()) if self._wall_time.is_up else CANCELLED

    def cut_short(self, status: StepStatus) -> list[Entry]:
        """The entries that close what is open: growing steps with what they have, unanswered calls."""
        open_steps = [self.channel.open_steps[index] for index in sorted(self.channel.open_steps)]
        calls = [marked(call, status) for call in open_calls(self.log.state)]
        return [*calls, *closing([step.closed(status) for step in open_steps])]

    async def _call_model(self, iteration: Iteration) -> None:
        if self._is_resumed:
            self._is_resumed = False
            await self._tell_of_lost_call(iteration.lost_line())
        state = self.log.state
        has_tools = state.iterations < self._max_iterations and not self.spending.is_out_of_calls(state)
        try:
            completed = await iteration.complete(with_tools=has_tools)
        except Cut as cut:
            ending = self.stopped() if cut.because is None else failed(cut.because)
            await self.end(cut.completed.entries, ending, cut.completed.usage, is_cut=True)
        else:
            await self._settle(iteration, completed)

    async def _tell_of_lost_call(self, lost: UsageEntry) -> None:
        def also(connection: Connection) -> None:
            # With a limit, what was set aside for the call has been entered already.
            if not self.spending.has_settled:
                record(connection, lost)

        await self.log.append([Warning(message=RESUMED)], phase=RunPhase.THINKING, also=also)

    async def _settle(self, iteration: Iteration, completed: Completed) -> None:
        """Logs an ended completion together with what follows: the start of its tools, or the end."""
        entries = completed.entries
        after = self.log.after(entries)
        if decide(after) == Next.FINISH:
            await self.end(entries, self._outcome(after), completed.usage)
            return
        if after.iterations == self._max_iterations:
            entries.append(Warning(message=LAST_ITERATION))
        await iteration.start_calls(after, entries, completed.usage)

    def _outcome(self, state: ChatState) -> Ending:
        is_out = state.iterations > self._max_iterations or self.spending.is_out_of_calls(state)
        return OUT_OF_ITERATIONS if is_out else FINISHED
