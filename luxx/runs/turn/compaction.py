"""Makes a prompt smaller before a model call: the run's own model writes the summary of what is left out.

If it cannot, the oldest turns are left out without a summary, and the turn goes on.
"""

from functools import partial

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from luxx.domain.context.summary import accepted_summary
from luxx.domain.context.tokens import estimated_usage
from luxx.domain.context.window import Cut, summarized, truncated
from luxx.domain.usage.ledger import UsageEntry, clamped
from luxx.errors import LimitReached, ProviderError
from luxx.providers.adapter import CompletionRequest
from luxx.providers.client import CompletionStream, ModelClient
from luxx.providers.retries import Retry
from luxx.runs.cancel import RunCancelled, run_in_own_task
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.context import RunContext
from luxx.runs.turn.prompting import TurnPrompt
from luxx.runs.turn.resources import RunResources
from luxx.runs.turn.state import add_cost
from luxx.wire.event import CallPurpose, CompletionNote, CostUpdate
from luxx.wire.message import CompressionStrategy
from luxx.wire.turn import FinishReason, Step, StepType, TextDelta, Usage, UsageDelta, step_id
from luxx.wire.turn_event import Retrying, Warning

THINKING_TOKENS = 8_000
"""What a model that thinks may produce besides the summary."""


class SummaryCut(Exception):
    """A person cancelled the run while its model wrote a summary. `usage`: what the call may cost."""

    def __init__(self, usage: UsageEntry | None) -> None:
        super().__init__()
        self.usage = usage


class _Written(msgspec.Struct):
    """What a model has written of a summary."""

    text: list[str] = []
    usage: Usage = Usage()
    stream: CompletionStream | None = None


class Compactor:
    """Carries out what `window.py` decides, for one drive of a turn."""

    def __init__(
        self, run: RunContext, client: ModelClient, resources: RunResources, prompt: TurnPrompt
    ) -> None:
        self._spec, self._log, self._signal = run.spec, run.log, run.signal
        self._spending, self._metrics = run.spending, run.services.metrics
        self._client, self._resources, self._prompt = client, resources, prompt

    async def carry_out(self, cut: Cut, max_wait: float) -> None:
        """Logs the cut, with its summary if it has one.

        Raises SummaryCut if a person cancels the run meanwhile.
        """
        if cut.strategy != CompressionStrategy.SUMMARIZE:
            await self._log.append([self._prompt.entry(self._log.state, cut)])
            return
        written, limits = _Written(), self._prompt.limits(cut.record)
        request = self._prompt.summary_request(self._log.state, cut, self._max_tokens(limits.summary))
        if request is None:
            await self._truncate("it does not fit its context window", None)
            return
        problem = ""
        try:
            request = await self._spending.admit(
                request,
                self._resources.target,
                self._resources.card,
                self._signal,
                tokens=self._prompt.tokens(self._log.state.context),
            )
            await self._signal.wait(run_in_own_task(partial(self._read, request, written, max_wait)))
        except RunCancelled:
            raise SummaryCut(self._usage(request, written, is_cut=True)) from None
        except (ProviderError, LimitReached) as error:
            problem = error.message
        text = "" if problem else accepted_summary("".join(written.text), limits.summary)
        made = summarized(self._prompt.prompt, cut, text, limits) if text else None
        usage = self._usage(request, written)
        if made is None:
            await self._truncate(problem or "it wrote none that is short enough", usage)
            return
        entry = self._prompt.entry(
            self._log.state, made, summary=text, usage=UNSET if usage is None else usage.usage
        )
        await self._append([entry], usage)

    def _max_tokens(self, limit: int) -> int:
        thinks = self._resources.card.thinking and self._spec.request.thinking_enabled is not False
        return 2 * limit + (THINKING_TOKENS if thinks else 0)

    async def _truncate(self, problem: str, usage: UsageEntry | None) -> None:
        """Leaves out the oldest turns without a summary."""
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

    async def _read(self, request: CompletionRequest, written: _Written, max_wait: float) -> None:
        async with self._client.stream_completion(
            request, self._resources.target, on_retry=self._on_retry, max_wait=max_wait
        ) as written.stream:
            while deltas := await written.stream.read():
                for delta in deltas:
                    match delta:
                        case TextDelta(text=text):
                            written.text.append(text)
                        case UsageDelta(usage=usage):
                            written.usage = clamped(usage)
                        case _:
                            pass

    async def _on_retry(self, retry: Retry) -> None:
        event = Retrying(attempt=retry.attempt, delay_ms=retry.delay_ms, reason=retry.reason)
        await self._spending.log_retry(event, None)

    def _usage(
        self, request: CompletionRequest, written: _Written, *, is_cut: bool = False
    ) -> UsageEntry | None:
        """The ledger entry of the call; None if nothing was sent or its provider bills nothing."""
        stream = written.stream
        if stream is None or not stream.was_sent:
            return None
        if not (is_cut or written.text or written.usage != Usage()):
            return None
        step = Step(id=step_id(0), index=0, type=StepType.TEXT, content="".join(written.text))
        reported = written.usage
        usage = estimated_usage(
            reported, request.messages, request.tools, [step], max_tokens=request.max_tokens
        )
        entry = self._resources.usage_entry(
            self._spec, usage, is_estimated=not (reported.prompt_tokens and reported.completion_tokens)
        )
        return replace(entry, purpose=CallPurpose.SUMMARY.value)
