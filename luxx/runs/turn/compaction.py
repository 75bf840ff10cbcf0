"""Makes a prompt smaller before a model call: the run's own model writes the summary of what is left out.

If it cannot, the oldest turns are left out without a summary, and the turn goes on.
"""

from msgspec.structs import replace

from luxx.domain.context.summary import accepted_summary
from luxx.domain.context.window import Cut, summarized, truncated
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LuxxError
from luxx.providers.client import ModelClient
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.context import RunContext
from luxx.runs.turn.extra_call import ExtraCall, extra_cost
from luxx.runs.turn.prompting import TurnPrompt
from luxx.runs.turn.resources import RunResources
from luxx.wire.event import CallPurpose
from luxx.wire.message import CompressionStrategy
from luxx.wire.turn_event import Warning


class NotCompressed(LuxxError):
    """A person wanted less to be sent, and it cannot be: what is sent stays as it is."""

    kind = "not_compressed"


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

        Raises ExtraCallCut if a person cancels the run meanwhile.
        """
        if cut.strategy != CompressionStrategy.SUMMARIZE:
            await self._log.append([self._prompt.entry(self._log.state, cut)])
            return
        call = ExtraCall(self._client, self._resources, self._spec, self._spending, self._metrics)
        limits = self._prompt.limits(cut.record)
        longest = call.longest_answer(2 * limits.summary)
        request = self._prompt.summary_request(self._log.state, cut, longest)
        if request is None:
            await self._truncate("it does not fit its context window", None)
            return
        tokens = self._prompt.tokens(self._log.state.context)
        reply = await call.ask(request, self._signal, tokens=tokens, max_wait=max_wait)
        text = accepted_summary(reply.text, limits.summary)
        made = summarized(self._prompt.prompt, cut, text, limits) if text else None
        if made is None or reply.usage is None:
            await self._truncate(reply.problem or "it wrote none that is short enough", reply.usage)
            return
        entry = self._prompt.entry(self._log.state, made, summary=text, usage=reply.usage.usage)
        await self._append([entry], reply.usage)

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
        if usage is not None:
            entries.append(extra_cost(self._log.state, usage, CallPurpose.SUMMARY))
        await self._log.append(
            entries, extra_write=lambda connection: self._spending.close(connection, usage)
        )
