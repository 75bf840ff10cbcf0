"""The checks of an agent in one turn: facts first, a model where a check asks for it and they find nothing.

A verdict is in the log before what follows from it. Nothing here runs for an agent without checks.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import Connection

from luxx.domain.agents.models import Check
from luxx.domain.context.prompt import beginning
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import ToolFailed
from luxx.providers.client import ModelClient
from luxx.providers.service import ProviderService
from luxx.runs.log.channel import Frame, OpenStep
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.context import RunContext
from luxx.runs.turn.judging import JUDGE_SECONDS, Judged, Judgement, Judges
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import TurnState, open_calls
from luxx.runs.turn.turn_log import is_paused
from luxx.tools.files.workspace import Workspace
from luxx.tools.pattern import matches_wildcards
from luxx.tools.schema import answer_problem
from luxx.wire.check import ANSWER_TARGET, CheckBy, Verdict, VerdictResult
from luxx.wire.event import ProcessStep
from luxx.wire.message import fenced, objection_in
from luxx.wire.run import RunKind
from luxx.wire.turn import Step, StepStatus, StepType, last_text, steps_text
from luxx.wire.turn_event import Warning

MAX_EVIDENCE = 2_000
OBJECTION_TOKENS = 1_000
"""The most that a model gets at once of what checks found, and a twentieth of its context window."""

_FILES = re.compile(r"`([^`\n]{1,500})`")


class FactProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, and the words that show it."""

    reason: str
    evidence: str = ""


def check_of(checks: Sequence[Check], tool: str) -> Check | None:
    """The first check that judges results of this tool."""
    of_tools = (check for check in checks if check.on != ANSWER_TARGET)
    return next((check for check in of_tools if matches_wildcards(check.on, tool)), None)


def result_problem(step: Step) -> FactProblem | None:
    """What the result of a tool itself says: that the call failed, or a program ended with an error."""
    try:
        value = msgspec.json.decode(step.content)
    except (msgspec.DecodeError, RecursionError):
        value = None
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if step.success is False:
        return FactProblem(reason=f"The call of {step.name} failed.", evidence=str(fields.get("error") or ""))
    data = fields.get("data")
    output = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    code = output.get("exit_code")
    if not isinstance(code, int) or not code:
        return None
    said = str(output.get("stderr") or output.get("stdout") or "")
    return FactProblem(reason=f"{step.name} ended with exit code {code}.", evidence=said[-MAX_EVIDENCE:])


class Verification:
    """The checks of a turn in one drive of it, and the `judges` that they ask."""

    def __init__(self, client: ModelClient, providers: ProviderService) -> None:
        self.judges = Judges(client, providers)

    @property
    def _run(self) -> RunContext:
        return self.judges.run

    @property
    def _checks(self) -> list[Check]:
        return self._run.spec.request.checks

    def recall_judges(self) -> None:
        """Finds the judges that an earlier drive may have asked, and whose verdicts are not in the log."""
        state = self._run.log.state
        # The judges of results are asked once all calls of their completion have ended.
        end = min((call.index for call in open_calls(state)), default=len(state.steps))
        results = {str(step.id_ref) for step in state.steps[:end] if step.type == StepType.TOOL_RESULT}
        unjudged = results - {verdict.target for verdict in state.verdicts}
        numbers = range(len(self._checks) if state.is_answered else 0)
        self.judges.lost = {(call_id, 0) for call_id in unjudged} | {(ANSWER_TARGET, at) for at in numbers}

    async def judge_results(self, *, may_object: bool = True) -> None:
        """Logs the verdicts on results of tools that there are; asks the judges of the others. `may_object`:
        the evidence may go back to the model."""
        state = self._run.log.state
        if is_paused(state):
            return
        judged = {verdict.target for verdict in state.verdicts} | {target for target, _ in self.judges.asked}
        for step in state.steps:
            call_id = str(step.id_ref)
            if step.type != StepType.TOOL_RESULT or call_id in judged:
                continue
            if (check := check_of(self._checks, str(step.name))) is None:
                continue
            found = result_problem(step) or await self._missing(check)
            if found is not None or check.by == CheckBy.FACTS:
                await self._log_result(call_id, check, _of_facts(found), CheckBy.FACTS, may_object)
                continue
            author = f"the tool {step.name}"
            problem = await self.judges.ask(call_id, check, author, step.content, JUDGE_SECONDS)
            if problem is not None:
                await self._log_result(call_id, check, problem, CheckBy.MODEL, may_object)
        await self._log_answered(may_object)

    async def settle(self, *, may_object: bool = True) -> None:
        """Waits for the judges of results and logs their verdicts. Raises RunCancelled."""
        await self.judge_results(may_object=may_object)
        await self.judges.wait()
        await self._log_answered(may_object)

    async def judge_answer(
        self, answer: list[LogEntry], usage: UsageEntry | None, *, may_object: bool
    ) -> list[LogEntry] | None:
        """Logs the answer, judges it, and returns the entries of the verdicts; None if it went back to the
        model, which is logged. It waits for the judges of results too. Raises RunCancelled."""
        if answer:
            # The answer is in the log before it is judged, so that a crash meanwhile does not repeat it.
            await self._run.log.append(answer, extra_write=partial(self._run.spending.close, entry=usage))
        until = time.monotonic() + JUDGE_SECONDS
        await self.settle(may_object=may_object)
        if not self._run.log.state.is_answered:
            return None
        verdicts: list[tuple[Check, Verdict]] = []
        entries: list[LogEntry] = []
        for check, by, judged in await self._judged_answer(until):
            verdicts.append((check, _verdict(ANSWER_TARGET, by, judged)))
            entries += _warnings(judged)
        rounds = 1 + sum(1 for number in _rounds_of_answer(self._run.log.state) if number)
        objects = may_object and any(
            verdict.result == VerdictResult.INVALID and check.rounds >= rounds for check, verdict in verdicts
        )
        entries += [
            replace(each, round=rounds) if objects and each.result == VerdictResult.INVALID else each
            for _, each in verdicts
        ]
        if not objects:
            return entries
        await self._log_verdicts(entries, objects=True)
        return None

    async def _judged_answer(self, until: float) -> list[tuple[Check, CheckBy, Judged]]:
        """The judgements of the checks of the answer, those of models until this time."""
        state = self._run.log.state
        text = steps_text(state.steps)
        judged: list[tuple[Check, CheckBy, Judged | None]] = []
        for check in (each for each in self._checks if each.on == ANSWER_TARGET):
            found = await self._answer_problem(check, state)
            if found is not None or check.by == CheckBy.FACTS:
                judged.append((check, CheckBy.FACTS, _of_facts(found)))
                continue
            seconds = max(0.0, until - time.monotonic())
            problem = await self.judges.ask(ANSWER_TARGET, check, "the assistant", text, seconds, len(judged))
            judged.append((check, CheckBy.MODEL, problem))
        await self.judges.wait()
        for number, (check, by, _) in enumerate(judged):
            if (judge := self.judges.asked.get((ANSWER_TARGET, number))) is not None:
                judged[number] = check, by, await self.judges.count_cost(judge)
                del self.judges.asked[ANSWER_TARGET, number]
        return [(check, by, each) for check, by, each in judged if each is not None]

    async def _log_answered(self, may_object: bool) -> None:
        """Logs the verdicts on results of the judges that have answered."""
        for (target, number), judge in list(self.judges.asked.items()):
            if judge.task.done():
                del self.judges.asked[target, number]
                await self._log_result(
                    target, judge.check, judge.task.result(), CheckBy.MODEL, may_object, judge.spending
                )

    async def _log_result(
        self,
        call_id: str,
        check: Check,
        judged: Judged,
        by: CheckBy,
        may_object: bool,
        spending: Spending | None = None,
    ) -> None:
        """Logs the verdict on the result of a call, and what it cost."""
        state = self._run.log.state
        names = {
            str(step.id_ref): str(step.name) for step in state.steps if step.type == StepType.TOOL_RESULT
        }
        rounds = sum(
            1
            for each in state.verdicts
            if each.round and each.target in names and check_of(self._checks, names[each.target]) == check
        )
        verdict = _verdict(call_id, by, judged)
        objects = verdict.result == VerdictResult.INVALID and may_object and rounds < check.rounds
        if objects:
            verdict = replace(verdict, round=rounds + 1)
        entries = [*self.judges.cost(judged), *_warnings(judged), verdict]
        write = None if spending is None else partial(spending.close, entry=judged.usage)
        await self._log_verdicts(entries, objects=objects, write=write)

    async def _log_verdicts(
        self, entries: list[LogEntry], *, objects: bool, write: Callable[[Connection], None] | None = None
    ) -> None:
        """Logs verdicts. If one `objects` after the answer, that is none: clients of a room, which get the
        text of a message, drop it."""
        state, spec = self._run.log.state, self._run.spec
        refused = _superseded(state) if objects and state.is_answered else []
        await self._run.log.append([*refused, *entries], extra_write=write)
        if refused and spec.turn.msg_id:
            state = self._run.log.state
            text = steps_text(state.steps)
            step = OpenStep(spec.run_id, len(state.steps), StepType.TEXT, turn=spec.turn, preceding=text)
            self._run.channel.publish(Frame(step.reset_frame()))

    async def _answer_problem(self, check: Check, state: TurnState) -> FactProblem | None:
        """What the facts say of an answer: its schema, the last call, the files that should exist."""
        spec = self._run.spec
        schema = spec.request.response_schema if spec.kind == RunKind.CHAT and not spec.turn.key else None
        if schema is not None:
            problem = await asyncio.to_thread(answer_problem, schema, last_text(state.steps))
            if problem is not None:
                return FactProblem(reason=problem)
        last = next((each for each in reversed(state.steps) if each.type == StepType.TOOL_RESULT), None)
        found = None if last is None else result_problem(last)
        return found or await self._missing(check)

    async def _missing(self, check: Check) -> FactProblem | None:
        """The files that the criteria name and that do not exist, if the check is by facts."""
        names = _FILES.findall(check.criteria) if check.by == CheckBy.FACTS else []
        root = self.judges.resources.make_context().permissions.workspace
        missing = [name for name in names if not await asyncio.to_thread(_exists, root, name)]
        if not missing:
            return None
        return FactProblem(reason=f"These files do not exist: {', '.join(missing)}.")


def _of_facts(found: FactProblem | None) -> Judged:
    if found is None:
        return Judged(judgement=Judgement(result=VerdictResult.VALID))
    reasons = [found.reason]
    return Judged(judgement=Judgement(result=VerdictResult.INVALID, reasons=reasons, evidence=found.evidence))


def _verdict(target: str, by: CheckBy, judged: Judged) -> Verdict:
    judgement = judged.judgement
    return Verdict(
        target=target,
        result=judgement.result,
        by=by,
        reasons=[reason[:MAX_EVIDENCE] for reason in judgement.reasons[:10]],
        evidence=judgement.evidence[:MAX_EVIDENCE],
        cost=0.0 if judged.usage is None else judged.usage.cost,
    )


def _warnings(judged: Judged) -> list[LogEntry]:
    return [Warning(message=judged.problem)] if judged.problem else []


def _rounds_of_answer(state: TurnState) -> set[int]:
    """The rounds in which the answer went back to the model."""
    return {verdict.round for verdict in state.verdicts if verdict.target == ANSWER_TARGET}


def _superseded(state: TurnState) -> list[LogEntry]:
    """The entries that take the text of the last completion out of the answer."""
    ends = (StepType.TOOL_RESULT, StepType.USER)
    begin = max((step.index + 1 for step in state.steps if step.type in ends), default=0)
    texts = (step for step in state.steps[begin:] if step.type == StepType.TEXT)
    return [
        ProcessStep(step=replace(step, superseded=True))
        for step in texts
        if step.status != StepStatus.INTERRUPTED and step.superseded is not True
    ]


def kept_answer(state: TurnState) -> list[LogEntry]:
    """The entries that make the last refused answer the text again, for a turn that ends without another."""
    texts = [
        step for step in state.steps if step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED
    ]
    if not texts or texts[-1].superseded is not True:
        return []
    begins = (objection[0] for note in state.notes if (objection := objection_in(note.replay)) is not None)
    first = max((begin for begin in begins if begin <= texts[-1].index), default=0)
    return [
        ProcessStep(step=replace(step, superseded=UNSET))
        for step in texts
        if step.index >= first and step.superseded is True
    ]


def objection_text(state: TurnState, window: int | None) -> str:
    """What checks found, for the next completion of a model with this context window."""
    names = {str(step.id_ref): str(step.name) for step in state.steps if step.type == StepType.TOOL_RESULT}
    text = "\n\n".join(_objection(verdict, names.get(verdict.target, "")) for verdict in state.objections)
    return beginning(text, min(OBJECTION_TOKENS, (window or OBJECTION_TOKENS * 20) // 20))


def _objection(verdict: Verdict, tool: str) -> str:
    is_of_answer = verdict.target == ANSWER_TARGET
    what = "your answer" if is_of_answer else f"the result of {tool} ({verdict.target})"
    do = "Give the whole answer again, corrected." if is_of_answer else "Take it into account."
    shown = f"\n\nEvidence:\n{fenced(verdict.evidence, '')}" if verdict.evidence else ""
    return f"A check of {what} found a problem. {do} {' '.join(verdict.reasons)}{shown}"


def _exists(root: Path | None, name: str) -> bool:
    try:
        return root is not None and Workspace(root).kind(name) is not None
    except ToolFailed:
        return False
