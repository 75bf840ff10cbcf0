"""One iteration: one completion, then the tools it asked for, each logged before what follows from it."""

import asyncio
from functools import partial

import msgspec
from sqlalchemy import Connection

from luxx.domain.context.prompt import prompt_messages
from luxx.domain.usage.estimate import estimated_usage
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LuxxError, ProviderError
from luxx.infra.observe import Metrics
from luxx.providers.adapter import CompletionRequest
from luxx.providers.answer import Answer, Retry
from luxx.providers.client import ModelClient
from luxx.runs.engine.cancel import CancelSignal, RunCancelled, on_its_own
from luxx.runs.log.events import Entry, keep_output
from luxx.runs.streams.hub import Channel, Frame
from luxx.runs.turn.asking import Asker, wanted_by
from luxx.runs.turn.completion import (
    INTERRUPTED,
    NOT_RUN,
    CompletionReader,
    added,
    answered,
    call_of,
    carried_out,
    closing,
    marked,
    whole_result,
)
from luxx.runs.turn.delegation import Delegator
from luxx.runs.turn.resources import Completed, Crew, Cut
from luxx.runs.turn.restrictions import activated, brought, inherited, still_offered, tainted_by, with_skills
from luxx.runs.turn.spec import ChatBrief
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import ChatLog, ChatState, open_calls, unsettled
from luxx.tools.core import NeedsAnswer, ToolContext
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import Executed
from luxx.wire.delta import Usage
from luxx.wire.event import CompletionNote, CostUpdate, ProcessStep, Retrying, Warning
from luxx.wire.rule import SkillHead
from luxx.wire.run import RunPhase
from luxx.wire.step import Step, StepStatus, StepType
from luxx.wire.tool import ToolSpec

_encode = msgspec.json.Encoder().encode

Tasks = dict["asyncio.Task[Executed]", Step]


class Iteration:
    """The hands of one drive."""

    def __init__(
        self,
        *,
        brief: ChatBrief,
        log: ChatLog,
        channel: Channel,
        signal: CancelSignal,
        client: ModelClient,
        executor: ToolExecutor,
        crew: Crew,
        spending: Spending,
        asker: Asker,
        delegator: Delegator,
        metrics: Metrics,
    ) -> None:
        self._spending = spending
        self._asker = asker
        self._delegator = delegator
        self._metrics = metrics
        self._deltas = 0
        self._answer: Answer | None = None
        self._brief = brief
        self._log = log
        self._channel = channel
        self._signal = signal
        self._client = client
        self._executor = executor
        self._crew = crew
        self._wanted: dict[str, SkillHead] = {}
        """Skills that calls of this drive have taken from the shelf, by the calls' ids."""
        self._known = crew.context
        self._context: ToolContext | LuxxError | None = None
        """For the calls that this drive has started; what the user may do was read as they were."""

    async def complete(self, *, with_tools: bool) -> Completed:
        """Calls the model and publishes what it says. Steps that close on the way are logged.

        Raises Cut when the provider fails for good or a person cancels, LimitReached where the call does
        not fit what the run may spend.
        """
        steps = self._log.state.steps
        taken = {str(step.id_ref) for step in steps if step.type == StepType.TOOL_CALL}
        reader = CompletionReader(self._brief.run_id, len(steps), self._channel.open_steps, taken=taken)
        self._deltas = 0
        request = await self._spending.admitted(
            self._request(self._offered() if with_tools else []),
            self._crew.target,
            self._crew.card,
            self._log,
            self._signal,
        )
        try:
            await self._signal.wait(on_its_own(self._read(reader, request)))
        except ProviderError as error:
            self._metrics.model_called(error.kind, self._deltas)
            # What fails before it says anything is hardly ever billed; where a limit must hold, it counts.
            is_billed = self._deltas > 0 or (self._spending.has_amounts and self._may_be_billed(error))
            raise Cut(self._cut(reader, StepStatus.ERROR, request, is_billed), error) from error
        except RunCancelled:
            self._metrics.model_called("cancelled", self._deltas)
            # What was sent is read and billed; while it connects, or waits to ask again, nothing was.
            is_billed = self._answer is not None and self._answer.was_sent
            raise Cut(self._cut(reader, StepStatus.CANCELLED, request, is_billed), None) from None
        finally:
            # It knows this iteration: a circle that would stay until the collector comes by.
            self._answer = None
        self._metrics.model_called("ok", self._deltas)
        return self._completed(reader, request, has_tools=with_tools)

    async def start_calls(self, state: ChatState, before: list[Entry], usage: UsageEntry | None) -> None:
        """Logs the open calls of `state` as running, after `before`, and reads what the user may do now.

        Those that ask a person first do not begin before there is an answer. Where there are no calls,
        because a turn paused or a crash ended them, the model is asked next.
        """
        refused = self._spending.calls_too_many(state)
        calls = [call for call in open_calls(state) if call not in refused]
        known = self._as_it_stands(self._known)
        free = [call for call in calls if not await self._asks_first(call, known)]
        running = [marked(call, StepStatus.RUNNING) for call in free]
        entries: list[Entry] = [*before, *inherited(state, self._brief), *running]
        for index, call in enumerate(refused, len(state.steps)):
            entries += [marked(call, StepStatus.ERROR), answered(call, index, NOT_RUN)]
        if self._spending.uses_up_calls(state):
            entries.append(Warning(message=self._spending.out_of_calls()))

        def also(connection: Connection) -> None:
            self._context = self._crew.context_in(connection)
            self._spending.close(connection, usage)

        spent = {"usage": _encode(state.usage).decode(), "cost": state.cost}
        phase = RunPhase.ACTING if calls else RunPhase.THINKING
        await self._log.append(entries, phase=phase, changes=spent, also=also)

    async def act(self) -> None:
        """Runs the open calls side by side and logs each result; those that finish together, together.

        What some of them have to ask a person is asked once the others have ended; then the run waits.
        On cancel the tools are stopped, results that were ready are logged, and RunCancelled passes on.
        Raises NotAllowed where the user was disabled meanwhile.
        """
        if self._context is None:
            await self._interrupt_lost()
            await self.start_calls(self._log.state, [], None)
        context, self._context = self._context, None
        if not isinstance(context, ToolContext):
            raise context or LuxxError("the calls were not started")
        self._known, context = context, self._as_it_stands(context)
        await self._mark_late(context)
        tasks: Tasks = {
            asyncio.create_task(self._execute(call, context)): call for call in open_calls(self._log.state)
        }
        try:
            wanted = await self._gather(tasks)
        except RunCancelled:
            await self._log_ready(tasks)
            raise
        finally:
            for task in tasks:
                task.cancel()
        if wanted:
            await self._asker.put(wanted)
            if self._signal.is_fired:
                raise RunCancelled

    async def wait_on(self) -> None:
        """Lets a run that was taken up while it waits for a person wait on."""
        await self._asker.wait_on()

    async def mend(self) -> None:
        """Marks the steps of a completion that a crash cut: it is made again."""
        steps = unsettled(self._log.state)
        await self._log.append([marked(step, StepStatus.INTERRUPTED) for step in steps])

    async def _read(self, reader: CompletionReader, request: CompletionRequest) -> None:
        publish = self._channel.publish
        asked = self._client.answer(
            request,
            self._crew.target,
            on_retry=partial(self._on_retry, reader, request),
            on_again=self._on_again,
        )
        async with asked as answer:
            self._answer = answer
            while deltas := await answer.read():
                self._deltas += len(deltas)
                if (frame := reader.continued(deltas)) is not None:
                    publish(frame)
                    continue
                for output in reader.take(deltas):
                    if isinstance(output, Frame):
                        publish(output)
                    else:
                        await self._log.append([ProcessStep(step=output)])

    async def _on_retry(self, reader: CompletionReader, request: CompletionRequest, retry: Retry) -> None:
        event = Retrying(attempt=retry.attempt, delay_ms=retry.delay_ms, reason=retry.reason)
        lost = None
        if retry.may_be_billed and self._spending.has_amounts:
            lost = self._estimated(reader, request, [])
        await self._spending.retried(self._log, event, lost)

    async def _on_again(self) -> None:
        """Raises LimitReached where the failed try took what this one needs."""
        await self._spending.admit_again(self._log, self._crew.target)
        await self._log.append([], phase=RunPhase.THINKING)

    def _may_be_billed(self, error: ProviderError) -> bool:
        return self._answer is not None and self._answer.may_be_billed(error)

    def _offered(self) -> list[ToolSpec]:
        return still_offered(self._crew.tools, self._executor.registry, self._log.state)

    def _request(self, tools: list[ToolSpec]) -> CompletionRequest:
        asked, state = self._brief.request, self._log.state
        replay = [dict(note.replay) for note in state.notes]
        system = with_skills(asked.system_prompt, self._crew.skills)
        return CompletionRequest(
            model=asked.model,
            messages=prompt_messages(system, self._brief.past, state.steps, replay),
            tools=tools,
            thinking_enabled=asked.thinking_enabled,
            temperature=asked.temperature,
            max_tokens=asked.max_tokens,
            response_schema=asked.response_schema,
        )

    def _completed(
        self, reader: CompletionReader, request: CompletionRequest, *, has_tools: bool
    ) -> Completed:
        state, usage = self._log.state, reader.usage
        steps = reader.close(StepStatus.DONE)
        is_told = bool(usage.prompt_tokens or usage.completion_tokens)
        line = self._line(usage) if is_told else self._estimated(reader, request, steps)
        sums = CostUpdate(usage=state.usage + line.usage, cost=added(state.cost, line.cost))
        note = CompletionNote(
            finish=reader.finish.value,
            usage=line.usage,
            cost=line.cost,
            replay=reader.replay,
            has_tools=has_tools,
        )
        entries = closing(steps)
        entries.append((sums, note))
        return Completed(entries, line)

    def _cut(
        self, reader: CompletionReader, status: StepStatus, request: CompletionRequest, is_billed: bool
    ) -> Completed:
        steps = reader.close(status)
        return Completed(closing(steps), self._estimated(reader, request, steps) if is_billed else None)

    def _estimated(
        self, reader: CompletionReader, request: CompletionRequest, closed: list[Step]
    ) -> UsageEntry:
        """The line of a completion whose provider did not tell all that it will bill."""
        said = [*unsettled(self._log.state), *closed]
        usage = estimated_usage(reader.usage, request.messages, request.tools, said, most=request.max_tokens)
        is_hidden = self._deltas == 0 or (
            self._crew.card.thinking and not any(step.type == StepType.THINKING for step in said)
        )
        if is_hidden:
            usage = self._spending.with_hidden(usage)
        return self._line(usage, is_estimated=True)

    def lost_line(self) -> UsageEntry:
        """The line of a completion that ended with its process: that it was, and no more, is known."""
        return msgspec.structs.replace(self._line(Usage(), is_estimated=True), cost=None)

    def _line(self, usage: Usage, *, is_estimated: bool = False) -> UsageEntry:
        """A completion's line of the ledger."""
        return UsageEntry(
            user_id=self._brief.user_id,
            tenant_id=self._brief.tenant_id,
            run_id=self._brief.run_id,
            subject_id=self._brief.conversation_id,
            provider_id=self._crew.target.provider_id,
            model=self._brief.request.model,
            usage=usage,
            cost=self._crew.card.cost(usage),
            is_estimated=is_estimated,
        )

    async def _interrupt_lost(self) -> None:
        """Calls that were running when a process died: those that cannot be repeated end as interrupted."""
        state = self._log.state
        lost = [
            call
            for call in open_calls(state)
            if call.status == StepStatus.RUNNING and not self._is_repeatable(call)
        ]
        entries: list[Entry] = []
        for index, call in enumerate(lost, len(state.steps)):
            entries += [marked(call, StepStatus.INTERRUPTED), answered(call, index, INTERRUPTED)]
        if entries:
            await self._log.append(entries)

    def _is_repeatable(self, call: Step) -> bool:
        tool = self._executor.registry.get(str(call.name))
        return tool is not None and tool.repeatable

    async def _execute(self, call: Step, context: ToolContext) -> Executed:
        told = self._delegator.free_of_skills(call, self._asker.told(call, context))
        told = msgspec.structs.replace(
            self._delegator.told(call, told),
            activate=partial(self._wanted.__setitem__, str(call.id_ref)),
        )
        executed = await self._executor.execute(call_of(call), told)
        await self._delegator.settle(executed)
        return self._delegator.marked(executed)

    async def _asks_first(self, call: Step, context: ToolContext) -> bool:
        return await self._executor.asks_first(call_of(call), context) and not self._asker.is_free(call)

    def _as_it_stands(self, context: ToolContext) -> ToolContext:
        """With what the log says that binds a call: taint, skills, whether tools were offered."""
        state = self._log.state
        is_offered_any = not state.notes or state.notes[-1].has_tools
        return msgspec.structs.replace(
            context,
            tainted_by=tainted_by(state, self._brief),
            narrowed=state.narrowed,
            offered=context.offered if is_offered_any else frozenset[str](),
        )

    async def _mark_late(self, context: ToolContext) -> None:
        """Logs those calls as running that would have asked by the rules of before, and do not any more."""
        pending = [call for call in open_calls(self._log.state) if call.status == StepStatus.PENDING]
        late = [call for call in pending if not await self._asks_first(call, context)]
        if late:
            await self._log.append([marked(call, StepStatus.RUNNING) for call in late])

    async def _gather(self, tasks: Tasks) -> list[tuple[Step, NeedsAnswer]]:
        """Logs what the tools answer; what they want to know of a person, in the order of the calls."""
        waiting = set(tasks)
        while waiting:
            done, _ = await self._signal.wait(
                asyncio.wait({*waiting, self._delegator.bell}, return_when=asyncio.FIRST_COMPLETED)
            )
            waiting -= done
            if self._delegator.bell in done:
                await self._delegator.carry_out()
            ended = [(tasks[task], task.result()) for task in tasks if task in done and not wanted_by(task)]
            if ended:
                await self._log_results(ended)
        return [(call, signal) for task, call in tasks.items() if (signal := wanted_by(task)) is not None]

    async def _log_results(self, results: list[tuple[Step, Executed]]) -> None:
        is_last = len(results) == len(open_calls(self._log.state))
        entries: list[Entry] = []
        for index, (call, executed) in enumerate(results, len(self._log.state.steps)):
            status = StepStatus.DONE if executed.result.success else StepStatus.ERROR
            entries.append(marked(call, status, executed.duration_ms))
            entries.append(carried_out(call, index, executed))
        ended = [executed for _, executed in results]
        entries += brought(self._log.state, ended)
        entries += activated(self._log.state, self._wanted, ended)
        entries += self._delegator.ended(ended)
        run_id = self._brief.run_id
        whole = [
            whole_result(run_id, one.call_id, one.full_output) for one in ended if one.full_output is not None
        ]

        def keep(connection: Connection) -> None:
            for row in whole:
                keep_output(connection, row)

        # The model reads the results next: said here, which spares a transaction.
        phase = RunPhase.THINKING if is_last else RunPhase.OBSERVING
        size = sum(len(row["output"]) for row in whole)
        await self._log.append(entries, phase=phase, also=keep if whole else None, also_bytes=size)

    async def _log_ready(self, tasks: Tasks) -> None:
        waiting = {call.index for call in open_calls(self._log.state)}
        ready = [
            (call, task.result())
            for task, call in tasks.items()
            if task.done() and not task.cancelled() and call.index in waiting and wanted_by(task) is None
        ]
        if ready:
            await self._log_results(ready)
