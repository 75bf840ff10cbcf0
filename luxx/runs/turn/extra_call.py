"""One call of a model beside the completions of a turn: for a summary of what no longer fits, or for a check.

It is reserved, read and billed like a completion, but its text is no part of the answer.
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from luxx.domain.usage.ledger import UsageEntry, add_cost
from luxx.errors import LimitReached, ProviderError
from luxx.infra.observe import Metrics
from luxx.providers.adapter import CompletionRequest
from luxx.providers.client import CompletionStream, ModelClient
from luxx.providers.retries import Retry
from luxx.runs.cancel import CancelSignal, RunCancelled, run_in_own_task
from luxx.runs.log.channel import OpenStep
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.completion import CompletionReader
from luxx.runs.turn.resources import RunResources
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import RunSpec, TurnState
from luxx.wire.event import CallPurpose, CompletionNote, CostUpdate
from luxx.wire.turn import WITHHELD, FinishReason, Step, StepStatus, steps_text

THINKING_TOKENS = 8_000
"""What a model that thinks may produce besides the text that is asked for."""


UNKNOWN_COST = "What the interrupted model call cost is not known."
"""The warning of a call that ended with its process."""


class ExtraCallCut(Exception):
    """The signal fired during the call. `usage`: what the call may cost."""

    def __init__(self, usage: UsageEntry | None) -> None:
        super().__init__()
        self.usage = usage


class ExtraReply(msgspec.Struct, frozen=True, kw_only=True):
    """The text that a model wrote, empty if its provider withheld some of it or if it repeats itself; or the
    `problem`, a sentence, why there is none. `usage`: what the call may cost."""

    text: str = ""
    problem: str = ""
    usage: UsageEntry | None = None


class ExtraCall:
    """The call, with the provider of `resources` and the model and purpose of `spec`. `logs_retries`: the log
    says that the call is made again; False: the call runs beside others and writes nothing, so it is not made
    again where an attempt has used up what was reserved."""

    def __init__(
        self,
        client: ModelClient,
        resources: RunResources,
        spec: RunSpec,
        spending: Spending,
        metrics: Metrics,
        *,
        logs_retries: bool = True,
    ) -> None:
        self._client, self._resources, self._spec = client, resources, spec
        self.spending, self._metrics = spending, metrics
        self._logs_retries = logs_retries
        self._open: dict[int, OpenStep] = {}
        self._reader = CompletionReader(spec.run_id, 0, self._open)
        self._stream: CompletionStream | None = None
        self._deltas = 0
        self._is_spent = False
        self._steps: dict[int, Step] = {}

    def lost_entry(self) -> UsageEntry:
        """The ledger entry of the same call of an earlier drive that ended with its process."""
        return self._resources.lost_entry(self._spec)

    def longest_answer(self, limit: int) -> int:
        """The `max_tokens` for a text of so many tokens."""
        thinks = self._resources.card.thinking and self._spec.request.thinking_enabled is not False
        return limit + (THINKING_TOKENS if thinks else 0)

    async def ask(
        self, request: CompletionRequest, signal: CancelSignal, *, tokens: int, max_wait: float
    ) -> ExtraReply:
        """Reserves for the call, whose prompt has about so many tokens, and makes it. Raises ExtraCallCut."""
        try:
            request = await self.admit(request, signal, tokens=tokens)
        except RunCancelled:
            raise ExtraCallCut(None) from None
        except LimitReached as error:
            return ExtraReply(problem=error.message)
        return await self.read(request, signal, max_wait=max_wait)

    async def admit(
        self, request: CompletionRequest, signal: CancelSignal, *, tokens: int, may_wait: bool = True
    ) -> CompletionRequest:
        """Reserves for the call, see `Spending.admit`."""
        target, card = self._resources.target, self._resources.card
        return await self.spending.admit(request, target, card, signal, tokens=tokens, may_wait=may_wait)

    async def read(self, request: CompletionRequest, signal: CancelSignal, *, max_wait: float) -> ExtraReply:
        """Makes the call. Raises ExtraCallCut."""
        try:
            await signal.wait(run_in_own_task(partial(self._read, request, max_wait)))
        except RunCancelled:
            if self._stream is None:
                raise ExtraCallCut(None) from None
            self._metrics.model_called("cancelled", self._deltas)
            is_billed = self._stream.was_sent
            raise ExtraCallCut(self._cut(request, StepStatus.CANCELLED) if is_billed else None) from None
        except ProviderError as error:
            self._metrics.model_called(error.kind, self._deltas)
            is_billed = self._is_spent or self.spending.is_counted(self._stream, self._deltas, error)
            usage = self._cut(request, StepStatus.ERROR) if is_billed else None
            return ExtraReply(problem=error.message, usage=usage)
        self._metrics.model_called("ok", self._deltas)
        steps, reader = self._close(StepStatus.DONE), self._reader
        usage = self._resources.usage_entry(self._spec, reader.usage) if reader.has_usage else None
        is_whole = reader.finish not in (*WITHHELD, FinishReason.LOOP)
        text = steps_text(steps) if is_whole else ""
        return ExtraReply(text=text, usage=usage or self._estimated(request, steps))

    async def _read(self, request: CompletionRequest, max_wait: float) -> None:
        lost = partial(self._estimated, request, [])
        on_retry = partial(self.spending.on_retry, lost=lost) if self._logs_retries else self._on_retry
        before = partial(self.spending.before_retry, self._resources.target) if self._logs_retries else None
        async with self._client.stream_completion(
            request, self._resources.target, on_retry=on_retry, before_retry=before, max_wait=max_wait
        ) as self._stream:
            while not self._reader.is_stopped and (deltas := await self._stream.read()):
                self._deltas += len(deltas)
                for output in self._reader.feed(deltas):
                    if isinstance(output, Step):
                        self._steps[output.index] = output
                        self._open.pop(output.index, None)

    async def _on_retry(self, retry: Retry) -> None:
        self._is_spent = retry.may_be_billed and self.spending.has_limits
        if self._is_spent:
            raise ProviderError(retry.reason)

    def _close(self, status: StepStatus) -> list[Step]:
        """All steps, closed."""
        self._steps |= {step.index: step for step in self._reader.close(status)}
        return list(self._steps.values())

    def _cut(self, request: CompletionRequest, status: StepStatus) -> UsageEntry:
        return self._estimated(request, self._close(status))

    def _estimated(self, request: CompletionRequest, steps: Sequence[Step]) -> UsageEntry:
        """The ledger entry of a call whose provider did not report its full usage."""
        return self._resources.estimated_entry(
            self._spec,
            request,
            self._reader.usage,
            steps,
            with_hidden=self.spending.with_hidden,
            is_silent=self._deltas == 0,
        )


def extra_cost(state: TurnState, usage: UsageEntry, purpose: CallPurpose) -> LogEntry:
    """The entry that counts the call for the run."""
    totals = CostUpdate(
        usage=state.usage + usage.usage, cost=add_cost(state.cost, usage.cost), purpose=purpose
    )
    note = CompletionNote(finish=FinishReason.STOP.value, usage=usage.usage, cost=usage.cost, is_extra=True)
    return totals, note
