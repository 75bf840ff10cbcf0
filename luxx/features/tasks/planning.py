"""Planning: what the model reads, how its answer becomes steps, what it reads when it does not.

Tasks that are executed without steps (`orchestration.py`) and proposed plans (`proposals.py`) plan alike. All
that a planning turn needs is in the note of its event, so any process can continue it.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.models import AgentRow
from luxx.domain.agents.queries import AGENTS, AgentSettings, read_agent
from luxx.domain.context.messages import PastMessage
from luxx.errors import LuxxError, NotFound
from luxx.features.tasks.checks import ReferenceChecker, graph_of
from luxx.features.tasks.estimate import EstimateBasis, Price, estimate_of, read_basis
from luxx.features.tasks.graph import PLAN
from luxx.features.tasks.models import MAX_PLAN_AGENTS, STEP_ID, NewTaskStep
from luxx.features.tasks.plan_text import NO_SCOPE, Plan, PlanScope, parse_plan, plan_schema
from luxx.features.tasks.run_rows import ChosenModels
from luxx.infra.clock import new_id
from luxx.infra.store.tables import lost_error
from luxx.providers.service import ProviderService
from luxx.runs.log.events import LogEntry
from luxx.runs.orchestration.interface import ResolveTurn, TurnStart
from luxx.runs.routing import PatternFinder
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import Ending
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.wire.event import CallPurpose, TurnNote
from luxx.wire.message import UserContent
from luxx.wire.orchestration_event import PlanCreated, PlannedStepInfo, Planning
from luxx.wire.run import RoutedChoice, RunStatus
from luxx.wire.turn import Step, StepType, TurnRef, steps_text
from luxx.wire.turn_event import PatternUsed, Warning, pattern_used

MAX_PLAN_TRIES = 3
"""The model gets the problems of its plan at most twice."""

MAX_PLAN_TOOLS = 100
"""Tools that the model reads of, unless they are named."""

MAX_DESCRIPTION = 120

PLAN_PROMPT = (
    "Split the goal into steps that agents carry out, each with a result that can be checked. A step depends "
    "on those whose results it needs; steps that do not need each other run at the same time. Use as few "
    "steps as make sense. Answer with JSON only: "
    '{"steps": [{"id": "s1", "name": "a few words", "goal": "what it produces", "depends_on": []}]}.'
)

_encode = msgspec.json.Encoder().encode


SettingsFor = Callable[[Session, int, ChosenModels], AgentSettings]
"""See `settings_for`."""


class PlanWish(msgspec.Struct, frozen=True, kw_only=True):
    """What to plan. `tools` and `agents` are those that steps may use; None: all that the user may use.

    `slots`: the steps that will run at the same time.
    """

    goal: str
    constraints: str | None = None
    tools: list[str] | None = None
    agents: list[int] | None = None
    slots: int = 5


class PlanTry(msgspec.Struct, frozen=True):
    """An answer that was no valid plan, and what is wrong with it."""

    answer: str
    problems: tuple[str, ...]


class PlanNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a planning turn needs: the first message, what steps may use, and the tries before it.

    `agents` are ids by the names that the model reads. `is_limited`: only the `tools` may be used at all.
    `pattern`: the learned pattern that the first message has as reference.
    """

    asked: str
    tools: list[str] = []
    is_limited: bool = False
    agents: dict[str, int] = {}
    basis: EstimateBasis
    pattern: PatternUsed | None = None
    tries: list[PlanTry] = []

    @property
    def scope(self) -> PlanScope:
        return PlanScope(tools=self.tools, agents=list(self.agents))


_note = msgspec.json.Decoder(PlanNote)
_step_id = re.compile(STEP_ID)


@dataclass(frozen=True, slots=True)
class Planner:
    """Begins plans. One per process."""

    resolve: ResolveTurn
    references: ReferenceChecker
    providers: ProviderService
    settings_for: SettingsFor
    patterns: PatternFinder

    def begin(
        self, session: Session, user_id: int, settings: AgentSettings, wish: PlanWish
    ) -> tuple[ChatRequest, PlanNote]:
        """The request and the note of the first planning turn. Raises LuxxError for what cannot be used.

        `settings` are those of the agent that plans, and of steps that have no agent.
        """
        caller = user_as_caller(session.connection(), user_id).in_project(settings.in_project)
        planning = replace(settings, system_prompt=PLAN_PROMPT, tools=[])
        request = self.resolve(session, user_id, planning)
        card = self.providers.select_provider(session, caller, request.provider_id, request.model).choice.card
        tools = self._tools(session, caller, wish) if card.tools or wish.tools is not None else {}
        agents = _agents(session, caller, wish)
        prices: dict[int, Price] = {}
        for agent_id in (0, *(row.id for row in agents.values())):
            price = self._price(session, caller, settings, agent_id)
            if price is not None:
                prices[agent_id] = price
        pattern = self._pattern(session, caller, wish.goal, tools)
        note = PlanNote(
            asked="\n\n".join([_asked(wish, tools, agents), *(one.text for one in pattern)]),
            tools=list(tools),
            is_limited=wish.tools is not None,
            agents={name: row.id for name, row in agents.items()},
            basis=read_basis(session, user_id, prices, wish.slots),
            pattern=next((pattern_used(one) for one in pattern), None),
        )
        if card.structured:
            request = self.resolve(session, user_id, planning, response_schema=plan_schema(note.scope))
        return request, note

    def _pattern(
        self, session: Session, caller: Caller, goal: str, tools: Collection[str]
    ) -> Sequence[RoutedChoice]:
        """The learned pattern that fits the goal, or none."""
        who = {"user": caller.user_id, "tenant": caller.tenant_id}
        if session.connection().execute(self.patterns.may_find, who).first() is None:
            return ()
        return self.patterns.find(session, caller, goal, tools)

    def in_chat(self, session: Session, user_id: int, request: ChatRequest, prompt: str) -> ChatRequest:
        """The request that plans the answer to a message, from that of the answer: it calls no tools and does
        not think, so that it is short. Raises LuxxError for what cannot be used."""
        caller = user_as_caller(session.connection(), user_id)
        card = self.providers.select_provider(session, caller, request.provider_id, request.model).choice.card
        schema = plan_schema(NO_SCOPE) if card.structured else None
        return replace(
            request,
            system_prompt=prompt,
            tools=[],
            response_schema=schema,
            thinking_enabled=False,
            prompted_thinking=False,
        )

    def _tools(self, session: Session, caller: Caller, wish: PlanWish) -> dict[str, str]:
        """Descriptions of the tools that steps may use, by their names."""
        usable = self.references.usable_tools(session, caller)
        tools = {tool.name: tool.description for tool in usable}
        if wish.tools is not None:
            return {name: text for name, text in tools.items() if name in wish.tools}
        tools.pop(READ_RESULT_TOOL, None)
        return dict(islice(tools.items(), MAX_PLAN_TOOLS))

    def _price(self, session: Session, caller: Caller, default: AgentSettings, agent_id: int) -> Price | None:
        """The price of the model of an agent, 0: of the default; None if it is unknown or cannot be used."""
        try:
            settings = default
            if agent_id:
                chosen = ChosenModels(
                    agent_id=agent_id, provider_id=default.provider_id, project_id=default.in_project
                )
                settings = self.settings_for(session, caller.user_id, chosen)
            request = self.resolve(session, caller.user_id, replace(settings, tools=[]))
            choice = self.providers.select_provider(
                session, caller, request.provider_id, request.model
            ).choice
        except LuxxError:
            return None
        if choice.card.input_price is None or choice.card.output_price is None:
            return None
        return Price(choice.card.input_price, choice.card.output_price)


def settings_for(session: Session, user_id: int, chosen: ChosenModels) -> AgentSettings:
    """The settings of the chosen agent, or of none, with the chosen provider where the agent has none.

    Raises Conflict if the user can use the agent no more.
    """
    agent = AgentSettings()
    if chosen.agent_id is not None:
        try:
            agent = read_agent(session, user_as_caller(session.connection(), user_id), chosen.agent_id)
        except NotFound as error:
            raise lost_error("agent", chosen.lost_agent, chosen.agent_of) from error
    elif chosen.lost_agent is not None:
        raise lost_error("agent", chosen.lost_agent, chosen.agent_of)
    agent = replace(agent, in_project=chosen.project_id)
    if agent.provider_id is not None or agent.lost_provider is not None:
        return agent
    return replace(
        agent,
        provider_id=chosen.provider_id,
        lost_provider=chosen.lost_provider,
        chosen_by=chosen.provider_of,
    )


def _agents(session: Session, caller: Caller, wish: PlanWish) -> dict[str, AgentRow]:
    """The agents that steps may have, by the names that the model reads: those of the user first."""
    query = select(AgentRow).where(AGENTS.visible_to(caller)).order_by(AgentRow.id.desc())
    if wish.agents is not None:
        query = query.where(AgentRow.id.in_(wish.agents))
    rows = sorted(session.scalars(query), key=lambda row: row.user_id != caller.user_id)
    rows = rows if wish.agents is not None else rows[:MAX_PLAN_AGENTS]
    names = Counter(row.name.casefold() for row in rows)
    return {row.name if names[row.name.casefold()] == 1 else f"{row.name} ({row.id})": row for row in rows}


def _asked(wish: PlanWish, tools: dict[str, str], agents: dict[str, AgentRow]) -> str:
    parts = [f"The goal:\n{wish.goal}"]
    if wish.constraints:
        parts.append(f"Constraints, which the plan must keep:\n{wish.constraints}")
    if tools:
        listed = "\n".join(f"- {name}: {_short(text)}" for name, text in tools.items())
        parts.append(f'Tools; "tools" of a step names those that it needs:\n{listed}')
    if agents:
        listed = "\n".join(f"- {name}: {_short(row.role or row.name)}" for name, row in agents.items())
        parts.append(f'Agents; "agent" of a step names one, if one fits it better than the others:\n{listed}')
    return "\n\n".join(parts)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_DESCRIPTION else f"{line[: MAX_DESCRIPTION - 1]}…"


def plan_turn(request: ChatRequest, note: PlanNote) -> TurnStart:
    """The turn that plans; after tries that were no valid plan it tells the model what was wrong."""
    past = [PastMessage(user=UserContent(text=note.asked))]
    for one in note.tries:
        step = Step(id="step-0", index=0, type=StepType.TEXT, content=one.answer)
        wrong = "\n".join(f"- {problem}" for problem in one.problems)
        text = f"This is no valid plan:\n{wrong}\nAnswer again, with the whole plan as JSON only."
        past += [PastMessage(steps=(step,)), PastMessage(user=UserContent(text=text))]
    turn = TurnRef(step_id=f"{PLAN}-{len(note.tries) + 1}")
    return TurnStart(turn=turn, request=request, past=past, purpose=CallPurpose.PLAN)


def planning_entry(task_id: str | None, start: TurnStart, note: PlanNote) -> LogEntry:
    """The event with which a planning turn begins."""
    stored = TurnNote(request=msgspec.Raw(_encode(start.request)), data=msgspec.Raw(_encode(note)))
    return Planning(step_id=start.turn.step_id, task_id=task_id, attempt=len(note.tries) + 1), stored


def plan_note_of(note: TurnNote) -> PlanNote:
    """The PlanNote in the note of the event with which a planning turn began."""
    assert isinstance(note.data, msgspec.Raw)
    return _note.decode(note.data)


class PlanOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a planning turn: a valid plan, an error, or (neither) another try, in its events."""

    entries: list[LogEntry]
    steps: tuple[NewTaskStep, ...] | None = None
    error: LuxxError | None = None


def plan_outcome(
    task_id: str | None, start: TurnStart, turn_note: TurnNote, state: TurnState, ending: Ending
) -> PlanOutcome:
    """What follows from the end of a planning turn."""
    if ending.error is not None or ending.status == RunStatus.CANCELLED:
        return PlanOutcome(entries=[], error=ending.error)
    note = plan_note_of(turn_note)
    text = steps_text(state.steps)
    plan = parse_plan(text, note.scope)
    if isinstance(plan, Plan):
        steps = planned_steps(plan, note.agents, is_limited=note.is_limited)
        created = PlanCreated(
            task_id=task_id,
            steps=[step_info(step) for step in steps],
            estimate=estimate_of(note.basis, steps, graph_of(steps)),
        )
        used = [] if note.pattern is None else [note.pattern]
        return PlanOutcome(entries=[*used, created], steps=steps)
    tries = [*note.tries, PlanTry(text, plan.problems)]
    wrong = "; ".join(plan.problems)
    entries: list[LogEntry] = [Warning(message=f"The plan is not valid: {wrong}")]
    if len(tries) == MAX_PLAN_TRIES:
        error = LuxxError(
            f"The model drew no valid plan in {MAX_PLAN_TRIES} attempts: {wrong}. Use another model, or add "
            "the steps yourself.",
            kind="plan_invalid",
        )
        return PlanOutcome(entries=entries, error=error)
    following = replace(note, tries=tries)
    return PlanOutcome(
        entries=[*entries, planning_entry(task_id, plan_turn(start.request, following), following)]
    )


def planned_steps(
    plan: Plan, agents: Mapping[str, int], *, is_limited: bool = False
) -> tuple[NewTaskStep, ...]:
    """The steps of a plan, as a task has them, with the ids of these agents. An id that a task cannot have
    becomes `s` and a number."""
    taken = {one.id for one in plan.steps}
    ids: dict[str, str] = {}
    for number, one in enumerate(plan.steps, 1):
        free = next(name for name in (f"s{number}", f"s{number}_{number}", new_id()) if name not in taken)
        ids[one.id] = one.id if _step_id.fullmatch(one.id) else free
    return tuple(
        NewTaskStep(
            id=ids[one.id],
            name=one.name,
            goal=one.goal,
            depends_on=[ids[other] for other in one.depends_on],
            agent_id=None if one.agent is None else agents[one.agent],
            required_tools=list(one.tools) if one.tools or is_limited else None,
            expected_output=one.expected_output,
        )
        for one in plan.steps
    )


def step_info(step: NewTaskStep) -> PlannedStepInfo:
    """A step as the event of its plan shows it."""
    info = PlannedStepInfo(id=str(step.id), name=step.name, goal=step.goal, depends_on=step.depends_on)
    given = {
        name: value
        for name in ("agent_id", "required_tools", "expected_output")
        if (value := getattr(step, name)) is not None
    }
    return replace(info, **given)
