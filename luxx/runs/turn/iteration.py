"""One iteration: a model call whose answer is logged as it arrives. `calls.py` runs the calls it asks for."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from luxx.domain.context.prompt import with_list
from luxx.domain.context.tokens import ESTIMATOR
from luxx.domain.context.window import Cut
from luxx.domain.mcp.search import called_tool
from luxx.domain.usage.ledger import UsageEntry, add_cost, record
from luxx.errors import ContentRefused, ContextTooLong, LuxxError, ProviderError, ProviderRefused
from luxx.providers.adapter import MANY, CompletionRequest
from luxx.providers.choosing import note_failure
from luxx.providers.client import CompletionStream, ModelClient
from luxx.providers.retries import Retry
from luxx.runs.cancel import RunCancelled, run_in_own_task
from luxx.runs.log.channel import Frame
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.compaction import Compactor, NotCompressed
from luxx.runs.turn.completion import CompletionReader, Output
from luxx.runs.turn.context import RunContext
from luxx.runs.turn.extra_call import UNKNOWN_COST, ExtraCallCut
from luxx.runs.turn.pins import kept_list
from luxx.runs.turn.prompting import TurnPrompt, log_recalled
from luxx.runs.turn.resources import RunResources, client_tools
from luxx.runs.turn.state import ChatRequest, GivenPrompt, TurnState, unfinished_steps
from luxx.runs.turn.steering import log_chosen_skills, waited_for_pattern
from luxx.runs.turn.turn_log import closed_entries, is_paused, may_be_steered, status_entry
from luxx.wire.event import CompletionNote, CostUpdate, ProcessStep
from luxx.wire.run import RunPhase
from luxx.wire.tool import CALL_TOOL
from luxx.wire.turn import REASONING_DETAILS_KEY, Step, StepStatus, steps_text
from luxx.wire.turn_event import Retrying, Warning

INTERRUPTED_CALL = "The server stopped while the model was being called."

STATUSES_OF_REQUESTS = frozenset({400, 413, 422})
"""Of a provider that refuses one request; it may answer others."""


class CompletionCut(Exception):
    """A completion stopped before its end. `completion_record` has its closed steps and estimated usage.

    `cause` is the provider's error, or None if the run was cancelled.
    """

    def __init__(self, completion_record: "CompletionRecord", cause: ProviderError | None) -> None:
        super().__init__()
        self.completion_record = completion_record
        self.cause = cause


class CompletionRecord(msgspec.Struct, frozen=True):
    """A completion that is not yet in the log: its closing entries, and its ledger entry if the provider may
    bill it."""

    entries: list[LogEntry]
    usage: UsageEntry | None


class Iteration:
    """Calls the model for one drive of a run, with the provider and the tools of `resources`."""

    def __init__(self, run: RunContext, client: ModelClient, resources: RunResources) -> None:
        self._run = run
        self._spec = run.spec
        self._log = run.log
        self._channel = run.channel
        self._signal = run.signal
        self._spending = run.spending
        self._metrics = run.services.metrics
        self._store = run.services.store
        self._client = client
        self.resources = resources
        self._prompt = TurnPrompt(run.spec, resources, run.services.config.context)
        if resources.pins.skills:
            listed = kept_list(run.spec, resources.pins, resources.card.known_window)
            context = with_list(run.log.state.context, listed)
            run.log.state = msgspec.structs.replace(run.log.state, context=context)
        self._deltas = 0
        self._answer: CompletionStream | None = None
        self._refused_tools: dict[str, str] = {}

    async def call_model(self, *, with_tools: bool, max_wait: float) -> CompletionRecord:
        """Calls the model and publishes its deltas. Logs each step that closes before the end.

        Raises CompletionCut when the provider fails finally or a person cancels, LimitReached where the call
        does not fit the run's limits.
        """
        if self._spec.request.given_skills or self._spec.request.routed:
            await log_chosen_skills(self._run, self.resources.places, self.resources.make_context)
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
            level=self._spec.level,
        )
        self._deltas = 0
        prompt = await self._next_request(max_wait, with_tools=with_tools)
        try:
            await self._signal.wait(run_in_own_task(partial(self._read, reader, prompt, max_wait)))
        except ProviderError as error:
            self._metrics.model_called(error.kind, self._deltas)
            is_billed = self._spending.is_counted(self._answer, self._deltas, error)
            raise CompletionCut(self._cut(reader, StepStatus.ERROR, prompt, is_billed), error) from error
        except RunCancelled:
            self._metrics.model_called("cancelled", self._deltas)
            # A sent request is billed. While the client connects or waits for a retry, nothing was sent.
            is_billed = self._answer is not None and self._answer.was_sent
            raise CompletionCut(self._cut(reader, StepStatus.CANCELLED, prompt, is_billed), None) from None
        finally:
            if self._answer is not None:
                self._refused_tools |= self._answer.refused_tools
            # The stream refers to this iteration: without this, the cycle waits for the garbage collector.
            self._answer = None
        self._metrics.model_called("ok", self._deltas)
        return self._completion_record(reader, prompt, has_tools=with_tools)

    def has_words(self) -> bool:
        """Whether people may have written for the turn since its last call."""
        state, run = self._log.state, self._run
        if not may_be_steered(self._spec, state):
            return not is_paused(state) and bool(run.heard())
        # Another process may have taken the message, and its hint can be lost.
        is_known = self._store.is_sqlite or not state.notes
        return run.signal.has_input or not is_known or bool(self._spec.level)

    async def _next_request(self, max_wait: float, *, with_tools: bool) -> CompletionRequest:
        """The request of the next call. What it is given of memory, and what it leaves out more than the one
        before, is logged first."""
        if self.resources.recall is not None:
            await log_recalled(self._run, self.resources.recall)
        await self._prompt.read(self._log.state)
        if (cut := await self._prompt.next_cut(self._log.state)) is not None:
            await self._leave_out(cut, max_wait, is_asked=False)
        return await self._spending.admit(
            self._prompt.request(self._log.state, with_tools=with_tools),
            self.resources.target,
            self.resources.card,
            self._signal,
            tokens=self._prompt.tokens(self._log.state.context),
        )

    async def compress(self, max_wait: float) -> None:
        """Leaves out what can be of the next prompt, because a person wants it.

        Raises CompletionCut when a person cancels, NotCompressed if nothing is left out.
        """
        await self._prompt.read(self._log.state)
        cut = await self._prompt.asked_cut(self._log.state)
        if cut is None:
            raise NotCompressed("There is not enough that a summary could replace.")
        await self._leave_out(cut, max_wait, is_asked=True)

    async def _leave_out(self, cut: Cut, max_wait: float, *, is_asked: bool) -> None:
        compactor = Compactor(self._run, self._client, self.resources, self._prompt, is_asked=is_asked)
        try:
            await compactor.carry_out(cut, max_wait)
        except ExtraCallCut as cancelled:
            raise CompletionCut(CompletionRecord([], cancelled.usage), None) from None

    async def note_failure(self, cause: ProviderError) -> None:
        """Remembers for all runs that the provider has failed for good, if others can answer in its place."""
        request = self._spec.request
        is_of_request = isinstance(cause, ContextTooLong | ContentRefused) or (
            isinstance(cause, ProviderRefused) and cause.status in STATUSES_OF_REQUESTS
        )
        if not request.fallbacks or is_of_request:
            return
        with suppress(IntegrityError):  # The provider was deleted meanwhile.
            await self._store.write(
                lambda session: note_failure(session.connection(), request.provider_id, request.model)
            )

    async def repair(self) -> None:
        """Marks the steps of a completion that a crash interrupted; the model call is repeated."""
        steps = unfinished_steps(self._log.state)
        await self._log.append([status_entry(step, StepStatus.INTERRUPTED) for step in steps])

    async def _read(self, reader: CompletionReader, request: CompletionRequest, max_wait: float) -> None:
        async with self._client.stream_completion(
            request,
            self.resources.target,
            on_retry=partial(self._on_retry, reader, request),
            before_retry=partial(self._spending.before_retry, self.resources.target),
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
                    reader.show_images(await self.resources.store_images(reader.new_images))
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
        await self._spending.on_retry(retry, lambda: self._estimated(reader, request, []))

    async def send_less(self, cut: CompletionCut) -> bool:
        """Logs that the call is made again with half of a prompt that was refused as too long, once in a
        turn; False if it is not."""
        state, cause = self._log.state, cut.cause
        compressed = None if state.has_overflowed else self._prompt.after_overflow(state)
        if cause is None or compressed is None or cut.completion_record.entries:
            return False
        reason = f"{cause.message} The call is made again without the oldest messages."
        await self._log.append([compressed])
        event = Retrying(attempt=2, delay_ms=0, reason=reason)
        await self._spending.log_retry(event, cut.completion_record.usage, is_over=True)
        return True

    def _completion_record(
        self, reader: CompletionReader, request: CompletionRequest, *, has_tools: bool
    ) -> CompletionRecord:
        state, origin = self._log.state, self._spec.request.origin
        for open_step in self._channel.steps_of(self._spec.turn).values():
            if open_step.name == CALL_TOOL:
                # The call of the tool that it names takes its place.
                self._channel.publish(Frame(open_step.reset_frame()))
        steps = reader.close(StepStatus.DONE, calls_end=bool(client_tools(self._spec.request)))
        steps = [called_tool(step) if step.name == CALL_TOOL else step for step in steps]
        details = reader.replay.get(REASONING_DETAILS_KEY, UNSET)
        entry = self.resources.usage_entry(self._spec, reader.usage) if reader.has_usage else None
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
            replay=reader.replay_of(self._spec.request.model) | self._prompt.objection,
            has_tools=has_tools,
            estimate=self._prompt.estimate(state.context) if reader.has_usage else 0,
            estimator=ESTIMATOR,
        )
        entries = [*closed_entries(steps), *reader.warnings(), *self._take_refused_tools(), (totals, note)]
        return CompletionRecord(entries, entry)

    def _cut(
        self, reader: CompletionReader, status: StepStatus, request: CompletionRequest, is_billed: bool
    ) -> CompletionRecord:
        steps = reader.close(status)
        return CompletionRecord(
            closed_entries(steps), self._estimated(reader, request, steps) if is_billed else None
        )

    def _take_refused_tools(self) -> list[LogEntry]:
        """A warning for each tool that the provider refused since the last answer."""
        refused, self._refused_tools = self._refused_tools, {}
        return [
            Warning(message=f"The provider refuses the tool {name}, so this model does not get it: {problem}")
            for name, problem in refused.items()
        ]

    def _estimated(
        self, reader: CompletionReader, request: CompletionRequest, closed: list[Step]
    ) -> UsageEntry:
        """The ledger entry of a completion whose provider did not report its full usage."""
        return self.resources.estimated_entry(
            self._spec,
            request,
            reader.usage,
            [*unfinished_steps(self._log.state), *closed],
            with_hidden=self._spending.with_hidden,
            is_silent=self._deltas == 0,
        )

    async def log_fallback(self, cause: LuxxError, number: int, usage: UsageEntry | None) -> None:
        """Logs that the provider cannot make the call; it goes to the fallback of this number."""
        request = self._spec.request
        target = request.fallbacks[number - 1]
        reason = f"{cause.message} The call goes to {target.model} of the provider '{target.provider_name}'."
        event = Retrying(attempt=1, delay_ms=0, reason=reason, fallback=number)
        await self._spending.log_retry(event, usage, passed_over(request, self._log.state), is_over=True)

    async def log_lost_call(self) -> None:
        """Logs that a call is made again that ended with its process, and whose usage and cost are unknown;
        with `retrying`, clients discard what they have of it. A drive that only waited for a person lost
        none."""
        if waited_for_pattern(self._log.state):
            return
        lost = self.resources.lost_entry(self._spec)

        def extra_write(connection: Connection) -> None:
            # With a limit, the reservation of the call has been charged already.
            if not self._spending.has_recorded_lost_call:
                record(connection, lost)

        retrying = Retrying(attempt=2, delay_ms=0, reason=INTERRUPTED_CALL)
        entries: list[LogEntry] = [retrying, Warning(message=UNKNOWN_COST)]
        await self._log.append(entries, phase=RunPhase.THINKING, extra_write=extra_write)


def next_fallback(request: ChatRequest, state: TurnState) -> int:
    """The number of the next fallback that can be used; 0 if none is left."""
    left = range(state.fallback, len(request.fallbacks))
    return next((index + 1 for index in left if not request.fallbacks[index].problem), 0)


def passed_over(request: ChatRequest, state: TurnState) -> Sequence[LogEntry]:
    """A warning for each fallback before the next that can be used, or for all that are left."""
    left = takewhile(lambda target: target.problem, request.fallbacks[state.fallback :])
    return [Warning(message=lost.problem) for lost in left]
