"""Makes a prompt smaller before a model call: the run's own model writes the summary of what is left out.

If it cannot, the oldest turns are left out without a summary, and the turn goes on.
"""

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from luxx.domain.context.summary import accepted_summary
from luxx.domain.context.window import Cut, summarized, truncated
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LimitReached, LuxxError, ProviderError
from luxx.providers.adapter import CompletionRequest
from luxx.providers.client import CompletionStream, ModelClient
from luxx.runs.cancel import RunCancelled, run_in_own_task
from luxx.runs.log.channel import OpenStep
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.completion import CompletionReader
from luxx.runs.turn.context import RunContext
from luxx.runs.turn.prompting import TurnPrompt
from luxx.runs.turn.resources import RunResources
from luxx.runs.turn.state import add_cost
from luxx.wire.event import CallPurpose, CompletionNote, CostUpdate
from luxx.wire.message import CompressionStrategy
from luxx.wire.turn import WITHHELD, Delta, FinishReason, Step, StepStatus, steps_text
from luxx.wire.turn_event import Warning

THINKING_TOKENS = 8_000
"""What a model that thinks may produce besides the summary."""


class SummaryCut(Exception):
    """A person cancelled the run while its model wrote a summary. `usage`: what the call may cost."""

    def __init__(self, usage: UsageEntry | None) -> None:
        super().__init__()
        self.usage = usage


class NotCompressed(LuxxError):
    """A person wanted less to be sent, and it cannot be: what is sent stays as it is."""

    kind = "not_compressed"


class _NotWritten(Exception):
    """A model wrote no summary, because of this `problem`. `usage`: what the call may cost."""

    def __init__(self, problem: str, usage: UsageEntry | None) -> None:
        super().__init__()
        self.problem, self.usage = problem, usage


class _Call:
    """One call of a model for a summary, and what it has produced."""

    def __init__(self, run_id: str) -> None:
        self._open: dict[int, OpenStep] = {}
        self.reader = CompletionReader(run_id, 0, self._open)
        self.stream: CompletionStream | None = None
        self.deltas = 0
        self._steps: dict[int, Step] = {}

    def read(self, deltas: list[Delta]) -> None:
        self.deltas += len(deltas)
        for output in self.reader.feed(deltas):
            if isinstance(output, Step):
                self._steps[output.index] = output
                self._open.pop(output.index, None)

    def close(self, status: StepStatus) -> list[Step]:
        """All steps, closed."""
        self._steps |= {step.index: step for step in self.reader.close(status)}
        return list(self._steps.values())


class Compactor:
    """Carries out what `window.py` decides, for one drive of a turn. With `is_asked` a person wants it, so
    that nothing is left out without a summary: then it raises NotCompressed."""

    def __init__(
        self,
        run: RunContext,
        client: ModelClient,
        resources: RunResources,
        prompt: TurnPrompt,
        *,
        is_asked: bool = False,
    ) -> None:
        self._is_asked = is_asked
        self._spec = replace(run.spec, purpose=CallPurpose.SUMMARY)
        self._log, self._signal = run.log, run.signal
        self._spending, self._metrics = run.spending, run.services.metrics
        self._client, self._resources, self._prompt = client, resources, prompt

    async def carry_out(self, cut: Cut, max_wait: float) -> None:
        """Logs the cut, with its summary if it has one.

        Raises SummaryCut if a person cancels the run meanwhile.
        """
        if cut.strategy != CompressionStrategy.SUMMARIZE:
            await self._log.append([self._prompt.entry(self._log.state, cut)])
            return
        limits = self._prompt.limits(cut.record)
        request = self._prompt.summary_request(self._log.state, cut, self._max_tokens(limits.summary))
        if request is None:
            await self._truncate("it does not fit its context window", None)
            return
        try:
            text, usage = await self._written(request, max_wait)
        except _NotWritten as failed:
            await self._truncate(failed.problem, failed.usage)
            return
        text = accepted_summary(text, limits.summary)
        made = summarized(self._prompt.prompt, cut, text, limits) if text else None
        if made is None:
            await self._truncate("it wrote none that is short enough", usage)
            return
        entry = self._prompt.entry(self._log.state, made, summary=text, usage=usage.usage)
        await self._append([entry], usage)

    async def _written(self, request: CompletionRequest, max_wait: float) -> tuple[str, UsageEntry]:
        """What the model writes, and what the call cost. Raises _NotWritten, SummaryCut."""
        call = _Call(self._spec.run_id)
        try:
            request = await self._spending.admit(
                request,
                self._resources.target,
                self._resources.card,
                self._signal,
                tokens=self._prompt.tokens(self._log.state.context),
            )
            await self._signal.wait(run_in_own_task(partial(self._read, request, call, max_wait)))
        except RunCancelled:
            if call.stream is None:
                raise SummaryCut(None) from None
            self._metrics.model_called("cancelled", call.deltas)
            is_billed = call.stream.was_sent
            raise SummaryCut(self._cut(request, call, StepStatus.CANCELLED) if is_billed else None) from None
        except ProviderError as error:
            self._metrics.model_called(error.kind, call.deltas)
            is_billed = self._spending.is_counted(call.stream, call.deltas, error)
            usage = self._cut(request, call, StepStatus.ERROR) if is_billed else None
            raise _NotWritten(error.message, usage) from error
        except LimitReached as error:
            raise _NotWritten(error.message, None) from error
        self._metrics.model_called("ok", call.deltas)
        steps, reader = call.close(StepStatus.DONE), call.reader
        usage = self._resources.usage_entry(self._spec, reader.usage) if reader.has_usage else None
        # A text that the provider withheld in part, or that repeats itself, is no summary.
        is_whole = reader.finish not in (*WITHHELD, FinishReason.LOOP)
        return steps_text(steps) if is_whole else "", usage or self._estimated(request, call, steps)

    def _max_tokens(self, limit: int) -> int:
        thinks = self._resources.card.thinking and self._spec.request.thinking_enabled is not False
        return 2 * limit + (THINKING_TOKENS if thinks else 0)

    async def _truncate(self, problem: str, usage: UsageEntry | None) -> None:
        """Leaves out the oldest turns without a summary."""
        if self._is_asked:
            await self._append([], usage)
            raise NotCompressed(f"The model could not summarise the conversation: {problem.rstrip('.')}.")
        state = self._log.state
        cut = truncated(self._prompt.prompt, state.context, self._prompt.limits(state.context))
        warning = Warning(
            message=f"The model could not summarise the earlier conversation: {problem.rstrip('.')}. "
            "Its oldest part is left out of what the model reads."
        )
        await self._append([warning, *([] if cut is None else [self._prompt.entry(state, cut)])], usage)

    async def _append(self, entries: list[LogEntry], usage: UsageEntry | None) -> None:
        """Logs what was done, with what the call of the model cost."""
        state = self._log.state
        if usage is not None:
            totals = CostUpdate(
                usage=state.usage + usage.usage,
                cost=add_cost(state.cost, usage.cost),
                purpose=CallPurpose.SUMMARY,
            )
            note = CompletionNote(
                finish=FinishReason.STOP.value, usage=usage.usage, cost=usage.cost, is_extra=True
            )
            entries.append((totals, note))
        await self._log.append(
            entries, extra_write=lambda connection: self._spending.close(connection, usage)
        )

    async def _read(self, request: CompletionRequest, call: _Call, max_wait: float) -> None:
        async with self._client.stream_completion(
            request,
            self._resources.target,
            on_retry=partial(self._spending.on_retry, lost=lambda: self._estimated(request, call, [])),
            before_retry=partial(self._spending.before_retry, self._resources.target),
            max_wait=max_wait,
        ) as call.stream:
            while not call.reader.is_stopped and (deltas := await call.stream.read()):
                call.read(deltas)

    def _cut(self, request: CompletionRequest, call: _Call, status: StepStatus) -> UsageEntry:
        return self._estimated(request, call, call.close(status))

    def _estimated(self, request: CompletionRequest, call: _Call, steps: Sequence[Step]) -> UsageEntry:
        """The ledger entry of a call whose provider did not report its full usage."""
        return self._resources.estimated_entry(
            self._spec,
            request,
            call.reader.usage,
            steps,
            with_hidden=self._spending.with_hidden,
            is_silent=call.deltas == 0,
        )
