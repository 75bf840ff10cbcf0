"""The models that judge for the checks of an agent: what they are asked, and what is read in their answers.

A judge of a result is asked beside the calls of the turn, so its own call writes nothing.
"""

import asyncio
import re
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import caller_of_turn
from luxx.domain.agents.models import Check
from luxx.domain.context.messages import user_text
from luxx.domain.context.tokens import estimated_tokens
from luxx.domain.usage.ledger import UsageEntry, record
from luxx.domain.usage.reserve import limits_of
from luxx.errors import ContextTooLong, LuxxError
from luxx.infra.config.schema import LimitsConfig
from luxx.providers.adapter import CompletionRequest
from luxx.providers.catalog import ModelCard, ProviderSelection
from luxx.providers.client import ModelClient
from luxx.providers.service import ProviderService
from luxx.runs.cancel import CancelSignal
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.context import RunContext
from luxx.runs.turn.extra_call import UNKNOWN_COST, ExtraCall, ExtraCallCut, extra_cost
from luxx.runs.turn.resources import RunResources
from luxx.runs.turn.spending import COUNT_MARGIN, Spending
from luxx.runs.turn.state import RunSpec
from luxx.wire.check import VerdictResult
from luxx.wire.event import CallPurpose
from luxx.wire.message import PromptMessage, SystemPrompt, UserPrompt, fenced
from luxx.wire.turn import TURN_LENGTH, TurnRef
from luxx.wire.turn_event import Warning

JUDGE_SECONDS = 30.0
JUDGE_TOKENS = 1_000
LENGTHS_SHOWN = (20_000, 8_000, 3_000, 1_000)
"""The characters of a request and of a result that a judge is shown: the most that fit its context window."""

PROMPT = files("luxx.runs.turn").joinpath("verification.md").read_text("utf-8").strip()
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "result": {"type": "string", "enum": [one.value for one in VerdictResult]},
        "reasons": {"type": "array", "items": {"type": "string"}},
        "evidence": {"type": "string"},
    },
    "required": ["result", "reasons", "evidence"],
    "additionalProperties": False,
}

_FENCE = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge finds."""

    result: VerdictResult
    reasons: list[str] = []
    evidence: str = ""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge answers. One that is not held to the schema also writes one text for several, or several
    for one."""

    result: VerdictResult
    reasons: list[str] | str = []
    evidence: str | list[str] = ""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A judgement, what it cost, and why there is none, if it is unsure for that."""

    judgement: Judgement
    usage: UsageEntry | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJudge:
    """A model that judges for a check; what it may cost is reserved on its own. `signal` ends it early."""

    check: Check
    task: asyncio.Task[Judged]
    signal: CancelSignal
    spending: Spending


class JudgeAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The provider of a judge, and the limits of its calls."""

    selection: ProviderSelection
    limits: LimitsConfig


class Judges:
    """The models that judge in one drive of a turn. `providers` finds them, for the user of the run.
    `resources` are those of the provider that makes the calls of the turn now.

    `asked`: those that are asked, by the target and the number of the check; `lost`: those that an earlier
    drive may have asked, and whose answers are not in the log.
    """

    run: RunContext
    resources: RunResources

    def __init__(self, client: ModelClient, providers: ProviderService) -> None:
        self._client = client
        self._providers = providers
        self._numbers = count(1)
        self.asked: dict[tuple[str, int], AskedJudge] = {}
        self.lost: set[tuple[str, int]] = set()

    def close(self) -> None:
        """Ends the judges that have not answered, without writing anything."""
        for judge in self.asked.values():
            judge.task.cancel()

    async def stop(self) -> None:
        """Ends the judges that have not answered, and counts what they may have cost."""
        judges, self.asked = self.asked, {}
        for judge in judges.values():
            judge.signal.fire()
        for judge in judges.values():
            await self.count_cost(judge)

    async def wait(self) -> None:
        """Waits until all judges that are asked have answered; each ends in time by itself."""
        if self.asked:
            await self.run.signal.wait(asyncio.wait([judge.task for judge in self.asked.values()]))

    async def count_cost(self, judge: AskedJudge) -> Judged:
        """Logs what a judge cost that has answered, or is ending; returns what it said."""
        judged = await judge.task
        await self.run.log.append(
            self.cost(judged), extra_write=partial(judge.spending.close, entry=judged.usage)
        )
        return judged

    def cost(self, judged: Judged) -> list[LogEntry]:
        """The entry of what a judge cost."""
        usage = judged.usage
        return [] if usage is None else [extra_cost(self.run.log.state, usage, CallPurpose.CHECK)]

    async def ask(
        self, target: str, check: Check, author: str, shown: str, seconds: float, number: int = 0
    ) -> Judged | None:
        """Asks a model to judge within so many seconds; unsure, with a problem, if it cannot be asked."""
        try:
            call, request = await self._call_of(check, author, shown)
            await self._log_lost(target, number, call)
            tokens = estimated_tokens(request.messages, (), SCHEMA)
            # Others wait for what a judge has reserved, but no judge for others: it would hold up the turn.
            request = await call.admit(request, self.run.signal, tokens=tokens, may_wait=False)
        except LuxxError as error:
            return unsure(error.message)
        signal = CancelSignal()
        task = asyncio.create_task(_reply(call, request, signal, seconds))
        self.asked[target, number] = AskedJudge(check=check, task=task, signal=signal, spending=call.spending)
        return None

    async def _call_of(self, check: Check, author: str, shown: str) -> tuple[ExtraCall, CompletionRequest]:
        """The call of a judge, and what it is asked. Raises LuxxError if it cannot be asked."""
        run = self.run
        access = await run.services.store.read(partial(self._select, check))
        resolved = await run.signal.wait(self._providers.resolve_selection(access.selection))
        spec = self._spec_of_judge(resolved.choice.model)
        spending = Spending(run.services.config.limits, spec, run.log)
        spending.use(spec, access.limits)
        resources = replace(self.resources, target=resolved.target, card=resolved.choice.card)
        call = ExtraCall(self._client, resources, spec, spending, run.services.metrics, logs_retries=False)
        request = CompletionRequest(
            model=resolved.choice.model,
            messages=self._messages(check, author, shown, resources.card),
            response_schema=SCHEMA,
            max_tokens=call.longest_answer(JUDGE_TOKENS),
        )
        return call, request

    async def _log_lost(self, target: str, number: int, call: ExtraCall) -> None:
        """Logs that a judge is asked again whose call ended with its process: what that cost is not known,
        where no limit holds, or is charged by what was reserved."""
        if (target, number) in self.lost:
            self.lost.discard((target, number))
            write = None if call.spending.has_limits else partial(record, entry=call.lost_entry())
            await self.run.log.append([Warning(message=UNKNOWN_COST)], extra_write=write)

    def _spec_of_judge(self, model: str) -> RunSpec:
        """The turn as the call of a judge sees it: what it reserves has a key of its own."""
        spec = self.run.spec
        turn = TurnRef(step_id=f"{spec.turn.key}#{next(self._numbers)}"[-TURN_LENGTH:])
        request = replace(spec.request, model=model, max_tokens=None)
        return replace(spec, turn=turn, purpose=CallPurpose.CHECK, request=request)

    def _messages(self, check: Check, author: str, shown: str, card: ModelCard) -> list[PromptMessage]:
        """What a judge is asked, cut to fit its context window. Raises ContextTooLong if it does not."""
        past = self.run.spec.past
        asked = next((each.user for each in reversed(past) if each.user is not None), None)
        request = "" if asked is None else user_text(asked)
        for most in LENGTHS_SHOWN:
            parts = [
                f"The request:\n{fenced(_cut(request, most), '')}",
                f"The criteria:\n{fenced(check.criteria, '')}",
                f"The result, of {author}:\n{fenced(_cut(shown, most), '')}",
            ]
            messages: list[PromptMessage] = [SystemPrompt(text=PROMPT), UserPrompt(text="\n\n".join(parts))]
            tokens = estimated_tokens(messages, (), SCHEMA) * COUNT_MARGIN
            if card.is_unknown or tokens + JUDGE_TOKENS <= card.context_window:
                return messages
        raise ContextTooLong("its context window has no room for what it should judge")

    def _select(self, check: Check, session: Session) -> "JudgeAccess":
        """Who judges, as the user of the run may use it. Raises NotFound, InvalidInput or Conflict."""
        request = self.run.spec.request
        caller = caller_of_turn(session, self.run.spec.user_id)
        model = check.model or (request.model if check.provider_id is None else None)
        provider_id = check.provider_id or request.provider_id
        selection = self._providers.select_provider(session, caller, provider_id, model)
        is_own = selection.row.user_id == caller.user_id
        limits = self.run.services.config.limits
        return JudgeAccess(
            selection=selection,
            limits=limits_of(limits, caller.permission_level, is_own_provider=is_own),
        )


async def _reply(call: ExtraCall, request: CompletionRequest, signal: CancelSignal, seconds: float) -> Judged:
    """What a judge answers within so many seconds."""
    timer = asyncio.get_running_loop().call_later(seconds, signal.fire)
    try:
        reply = await call.read(request, signal, max_wait=seconds)
    except ExtraCallCut as cut:
        problem = f"it did not answer within {JUDGE_SECONDS:g} seconds"
        return replace(unsure(problem), usage=cut.usage)
    finally:
        timer.cancel()
    return replace(unsure(reply.problem) if reply.problem else _read(reply.text), usage=reply.usage)


def _read(text: str) -> Judged:
    """The judgement in the answer of a judge."""
    try:
        answer = msgspec.json.decode(_FENCE.sub(r"\1", text), type=_Answer)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return unsure("its answer is not the JSON that was asked for")
    reasons, evidence = answer.reasons, answer.evidence
    judgement = Judgement(
        result=answer.result,
        reasons=[reasons] if isinstance(reasons, str) else reasons,
        evidence=evidence if isinstance(evidence, str) else "\n".join(evidence),
    )
    return Judged(judgement=judgement)


def unsure(problem: str) -> Judged:
    reason = f"The judge could not decide: {problem.rstrip('.')}."
    return Judged(judgement=Judgement(result=VerdictResult.UNSURE, reasons=[reason]), problem=reason)


def _cut(text: str, most: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
