"""One iteration: one model call, then the tool calls it asks for; each is logged before the next begins."""

import asyncio
from collections.abc import Iterable
from functools import partial

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection

from luxx.domain.usage.ledger import UsageEntry, estimated_usage
from luxx.errors import LuxxError, ProviderError, ToolFailed
from luxx.providers.adapter import MANY, CompletionRequest
from luxx.providers.client import CompletionStream, ModelClient
from luxx.providers.retries import Retry
from luxx.runs.cancel import RunCancelled, run_in_own_task
from luxx.runs.log.channel import Frame
from luxx.runs.log.events import LogEntry, store_output
from luxx.runs.turn.asking import QuestionAsker, needed_answer
from luxx.runs.turn.completion import CompletionReader, Output
from luxx.runs.turn.context import RunContext
from luxx.runs.turn.delegation import Delegator
from luxx.runs.turn.resources import CompletionCut, CompletionRecord, RunResources, client_tools
from luxx.runs.turn.rights import (
    allowed_specs,
    inherited_taint,
    new_taint,
    skill_entries,
    tainted_by,
)
from luxx.runs.turn.state import GivenPrompt, TurnState, add_cost, open_calls, unfinished_steps
from luxx.runs.turn.turn_log import (
    call_of,
    closed_entries,
    executed_entries,
    full_output_row,
    interrupted_entries,
    refused_calls,
    refused_entries,
    status_entry,
)
from luxx.tools.core import NeedsAnswer, ToolContext
from luxx.tools.history import Executed
from luxx.wire.event import CompletionNote, ContextCompressed, CostUpdate, ProcessStep, Retrying, Warning
from luxx.wire.run import RunPhase
from luxx.wire.tool import SkillHead
from luxx.wire.turn import REASONING_DETAILS_KEY, Step, StepStatus, StepType, Usage, steps_text

_encode = msgspec.json.Encoder().encode

CallTasks = dict["asyncio.Task[Executed]", Step]


class Iteration:
    """Calls the model and runs the tools for one drive of a run."""

    def __init__(
        self,
        run: RunContext,
        client: ModelClient,
        resources: RunResources,
        asker: QuestionAsker,
        delegator: Delegator,
    ) -> None:
        self._spec = run.spec
        self._log = run.log
        self._channel = run.channel
        self._signal = run.signal
        self._spending = run.spending
        self._executor = run.services.executor
        self._metrics = run.services.metrics
        self._client = client
        self._resources = resources
        self._asker = asker
        self._delegator = delegator
        self._deltas = 0
        self._answer: CompletionStream | None = None
        self._activated_skills: dict[str, SkillHead] = {}
        """Skills that calls of this drive have activated, by call id."""
        self._last_context: ToolContext | None = None
        self._context: ToolContext | LuxxError | None = None
        """For the calls that this drive has started; permissions and rules were read at their start."""

    async def call_model(self, *, with_tools: bool, max_wait: float) -> CompletionRecord:
        """Calls the model and publishes its deltas. Logs each step that closes before the end.

        Raises CompletionCut when the provider fails finally or a person cancels, LimitReached where the call
        does not fit the run's limits.
        """
        state, turn = self._log.state, self._spec.turn
        text = steps_text(state.steps)
        reader = CompletionReader(
            self._spec.run_id,
            len(state.steps),
            self._channel.steps_of(turn),
            turn=turn,
            preceding=text if turn.msg_id else "",
            used_call_ids=self._log.used_call_ids(),
            follows_text=bool(text),
            stops=self._spec.request.stop,
        )
        self._deltas, tools = 0, self._resources.tools if with_tools else []
        if state.narrowed:
            tools = allowed_specs(tools, self._resources.known_tools, state)
        await self._resources.read_images(self._spec, state)
        prompt, estimate, compressed = await self._resources.completion_request(self._spec, state, tools)
        if compressed is not None:
            await self._log.append([compressed])
        prompt = await self._spending.admit(
            prompt, self._resources.target, self._resources.card, self._signal
        )
        try:
            await self._signal.wait(run_in_own_task(partial(self._read, reader, prompt, max_wait)))
        except ProviderError as error:
            self._metrics.model_called(error.kind, self._deltas)
            # Providers rarely bill a failure before the first delta; with a limit it counts if they might.
            may_be_billed = self._answer is not None and self._answer.may_be_billed(error)
            is_billed = self._deltas > 0 or (self._spending.has_limits and may_be_billed)
            raise CompletionCut(self._cut(reader, StepStatus.ERROR, prompt, is_billed), error) from error
        except RunCancelled:
            self._metrics.model_called("cancelled", self._deltas)
            # A sent request is billed. While the client connects or waits for a retry, nothing was sent.
            is_billed = self._answer is not None and self._answer.was_sent
            raise CompletionCut(self._cut(reader, StepStatus.CANCELLED, prompt, is_billed), None) from None
        finally:
            # The stream refers to this iteration: without this, the cycle waits for the garbage collector.
            self._answer = None
        self._metrics.model_called("ok", self._deltas)
        return self._completion_record(reader, prompt, estimate, has_tools=with_tools)

    async def start_calls(
        self, state: TurnState, preceding: list[LogEntry], usage: UsageEntry | None
    ) -> None:
        """Logs `preceding`, then the open calls of `state` as running, and reads the user's permissions anew.

        A call that asks a person first stays pending until it is answered. Without calls (the model paused,
        or a crash ended them) the model is called next.
        """
        refused = refused_calls(state, self._spending.excess_calls(state))
        calls = [call for call in open_calls(state) if call.index not in refused]
        restricted = self._with_restrictions(self._last_context or self._resources.make_context())
        startable = [call for call in calls if not await self._asks_first(call, restricted)]
        running = [status_entry(call, StepStatus.RUNNING) for call in startable]
        entries: list[LogEntry] = [*preceding, *inherited_taint(state, self._spec), *running]
        entries += refused_entries(state, refused)
        if self._spending.uses_up_calls(state):
            entries.append(Warning(message=self._spending.out_of_calls_text()))

        def extra_write(connection: Connection) -> None:
            self._context = self._resources.read_context(connection)
            self._spending.close(connection, usage)

        spent = {"usage": _encode(state.usage).decode(), "cost": state.cost}
        phase = RunPhase.ACTING if calls else RunPhase.THINKING
        await self._log.append(entries, phase=phase, changes=spent, extra_write=extra_write)

    async def run_calls(self) -> None:
        """Runs the open calls concurrently and logs the results; those that finish together in one write.

        Questions for a person are asked once the other calls have ended; then the run waits. On cancel this
        stops the tools, logs the finished results and lets RunCancelled pass.
        Raises NotAllowed if the user was disabled meanwhile.
        """
        if self._context is None:
            await self._interrupt_lost()
            await self.start_calls(self._log.state, [], None)
        context, self._context = self._context, None
        if not isinstance(context, ToolContext):
            raise context or LuxxError("the calls were not started")
        self._last_context, context = context, self._with_restrictions(context)
        await self._start_late_calls(context)
        tasks: CallTasks = {
            asyncio.create_task(self._execute(call, context)): call for call in open_calls(self._log.state)
        }
        try:
            questions = await self._gather(tasks)
        except RunCancelled:
            await self._log_ready(tasks)
            raise
        finally:
            for task in tasks:
                task.cancel()
        if questions:
            await self._asker.ask_person(questions)
            if self._signal.is_fired:
                raise RunCancelled

    async def keep_waiting(self) -> None:
        """Lets a run that was claimed while it waits for a person continue to wait."""
        await self._asker.keep_waiting()

    async def repair(self) -> None:
        """Marks the steps of a completion that a crash interrupted; the model call is repeated."""
        steps = unfinished_steps(self._log.state)
        await self._log.append([status_entry(step, StepStatus.INTERRUPTED) for step in steps])

    async def _read(self, reader: CompletionReader, request: CompletionRequest, max_wait: float) -> None:
        async with self._client.stream_completion(
            request,
            self._resources.target,
            on_retry=partial(self._on_retry, reader, request),
            before_retry=self._before_retry,
            max_wait=max_wait,
        ) as answer:
            self._answer = answer
            while deltas := await answer.read():
                self._deltas += len(deltas)
                if (frame := reader.feed_text(deltas)) is not None:
                    self._channel.publish(frame)
                    continue
                await self._publish(reader.feed(deltas))
                if reader.new_images:
                    reader.show_images(await self._resources.store_images(reader.new_images))
                if reader.is_stopped:
                    break

    async def _publish(self, outputs: Iterable[Output]) -> None:
        for number, output in enumerate(outputs, 1):
            if isinstance(output, Frame):
                self._channel.publish(output)
                if number % MANY == 0:
                    await asyncio.sleep(0)
            else:
                await self._log.append([ProcessStep(step=output)])

    async def _on_retry(self, reader: CompletionReader, request: CompletionRequest, retry: Retry) -> None:
        event = Retrying(attempt=retry.attempt, delay_ms=retry.delay_ms, reason=retry.reason)
        is_lost = retry.may_be_billed and self._spending.has_limits
        await self._spending.log_retry(event, self._estimated(reader, request, []) if is_lost else None)

    async def _before_retry(self) -> None:
        """Raises LimitReached if the failed attempt used up what the next one needs."""
        await self._spending.reserve_again(self._resources.target)
        await self._log.append([], phase=RunPhase.THINKING)

    def after_overflow(self) -> ContextCompressed | None:
        """The event that leaves out half of a prompt that was refused as too long, once in a turn."""
        state = self._log.state
        return None if state.has_overflowed else self._resources.after_overflow(self._spec, state)

    def _completion_record(
        self, reader: CompletionReader, request: CompletionRequest, estimate: int, *, has_tools: bool
    ) -> CompletionRecord:
        state, origin = self._log.state, self._spec.request.origin
        steps = reader.close(StepStatus.DONE, calls_end=bool(client_tools(self._spec.request)))
        details = reader.replay.get(REASONING_DETAILS_KEY, UNSET)
        entry = self._resources.usage_entry(self._spec, reader.usage) if reader.has_usage else None
        entry = entry or self._estimated(reader, request, steps)
        totals = CostUpdate(
            usage=state.usage + entry.usage,
            cost=add_cost(state.cost, entry.cost),
            purpose=self._spec.purpose,
            reasoning_details=details if isinstance(origin, GivenPrompt) else UNSET,
        )
        note = CompletionNote(
            finish=reader.finish.value,
            usage=entry.usage,
            cost=entry.cost,
            replay=reader.replay_of(self._spec.request.model),
            has_tools=has_tools,
            estimate=estimate if reader.has_usage else 0,
        )
        entries = [*closed_entries(steps), *reader.warnings(), (totals, note)]
        return CompletionRecord(entries, entry)

    def _cut(
        self, reader: CompletionReader, status: StepStatus, request: CompletionRequest, is_billed: bool
    ) -> CompletionRecord:
        steps = reader.close(status)
        return CompletionRecord(
            closed_entries(steps), self._estimated(reader, request, steps) if is_billed else None
        )

    def _estimated(
        self, reader: CompletionReader, request: CompletionRequest, closed: list[Step]
    ) -> UsageEntry:
        """The ledger entry of a completion whose provider did not report its full usage."""
        produced_steps = [*unfinished_steps(self._log.state), *closed]
        usage = estimated_usage(
            reader.usage, request.messages, request.tools, produced_steps, max_tokens=request.max_tokens
        )
        is_hidden = self._deltas == 0 or (
            self._resources.card.thinking
            and not any(step.type == StepType.THINKING for step in produced_steps)
        )
        if is_hidden:
            usage = self._spending.with_hidden(usage)
        return self._resources.usage_entry(self._spec, usage, is_estimated=True)

    def lost_call_entry(self) -> UsageEntry:
        """The ledger entry of a model call that ended with its process; its usage and cost are unknown."""
        entry = self._resources.usage_entry(self._spec, Usage(), is_estimated=True)
        return msgspec.structs.replace(entry, cost=None)

    async def _interrupt_lost(self) -> None:
        """Ends the calls that ran when a process died as interrupted, unless their tool is repeatable."""
        state = self._log.state
        lost = [
            call
            for call in open_calls(state)
            if call.status == StepStatus.RUNNING and not self._is_repeatable(call)
        ]
        if lost:
            await self._log.append(interrupted_entries(state, lost))

    def _is_repeatable(self, call: Step) -> bool:
        found = self._resources.known_tools.lookup(str(call.name))
        return found is not None and found[0].repeatable

    async def _execute(self, call: Step, context: ToolContext) -> Executed:
        call_context = self._delegator.without_later_skills(call, self._asker.with_answers(call, context))
        call_context = self._delegator.with_delegate(call, call_context).with_actions(
            activate=partial(self._activate, str(call.id_ref))
        )
        executed = await self._executor.execute(call_of(call), call_context)
        await self._delegator.end_subagent(executed)
        return self._asker.with_taint(self._delegator.with_taint(executed))

    def _activate(self, call_id: str, skill: SkillHead) -> None:
        allowed = self._spec.request.skills
        if allowed is not None and skill.name not in allowed:
            raise ToolFailed(
                f"this agent may not use the skill {skill.name}; it has {', '.join(allowed) or 'none'}"
            )
        self._activated_skills[call_id] = skill

    async def _asks_first(self, call: Step, context: ToolContext) -> bool:
        return await self._executor.asks_first(call_of(call), context) and not self._asker.has_answer(call)

    def _with_restrictions(self, context: ToolContext) -> ToolContext:
        """The context with the restrictions of the log: taint, skills, whether tools were offered."""
        state = self._log.state
        is_offered_any = not state.notes or state.notes[-1].has_tools
        return context.with_permissions(
            tainted_by=tainted_by(state, self._spec),
            narrowed=state.narrowed,
            offered=context.permissions.offered if is_offered_any else frozenset[str](),
        )

    async def _start_late_calls(self, context: ToolContext) -> None:
        """Logs pending calls as running that no longer need a permission under the current rules."""
        pending = [call for call in open_calls(self._log.state) if call.status == StepStatus.PENDING]
        late = [call for call in pending if not await self._asks_first(call, context)]
        if late:
            await self._log.append([status_entry(call, StepStatus.RUNNING) for call in late])

    async def _gather(self, tasks: CallTasks) -> list[tuple[Step, NeedsAnswer]]:
        """Logs the results of the tools. Returns the questions for a person, in the order of the calls."""
        waiting = set(tasks)
        while waiting:
            done, _ = await self._signal.wait(
                asyncio.wait({*waiting, self._delegator.requests_ready}, return_when=asyncio.FIRST_COMPLETED)
            )
            waiting -= done
            if self._delegator.requests_ready in done:
                await self._delegator.write_requested()
            finished = [
                (tasks[task], task.result()) for task in tasks if task in done and not needed_answer(task)
            ]
            if finished:
                await self._log_results(finished)
        return [(call, signal) for task, call in tasks.items() if (signal := needed_answer(task)) is not None]

    async def _log_results(self, results: list[tuple[Step, Executed]]) -> None:
        is_last = len(results) == len(open_calls(self._log.state))
        entries = executed_entries(self._log.state, results)
        executed_calls = [executed for _, executed in results]
        entries += new_taint(self._log.state, executed_calls)
        entries += skill_entries(self._log.state, self._activated_skills, executed_calls)
        entries += self._delegator.end_entries(executed_calls)
        full_output_rows = [
            full_output_row(self._spec.run_id, one.call_id, one.full_output)
            for one in executed_calls
            if one.full_output is not None
        ]

        def store_full_outputs(connection: Connection) -> None:
            for row in full_output_rows:
                store_output(connection, row)

        # The model reads the results next. Writing that phase here saves a transaction.
        phase = RunPhase.THINKING if is_last else RunPhase.OBSERVING
        await self._log.append(
            entries,
            phase=phase,
            extra_write=store_full_outputs if full_output_rows else None,
            extra_bytes=sum(len(row["output"]) for row in full_output_rows),
        )

    async def _log_ready(self, tasks: CallTasks) -> None:
        waiting = {call.index for call in open_calls(self._log.state)}
        ready = [
            (call, task.result())
            for task, call in tasks.items()
            if task.done() and not task.cancelled() and call.index in waiting and needed_answer(task) is None
        ]
        if ready:
            await self._log_results(ready)
