"""Which skills and agents of a caller a text asks for: the items that may be chosen, and the match."""

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.queries import AgentSettings, routed_agents
from luxx.domain.conversations.access import user_content
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.service import own_project
from luxx.domain.routing.matching import (
    MOST_RANKED,
    RoutedItem,
    Router,
    RoutingMatch,
    RoutingMatches,
    clauses_of,
)
from luxx.domain.skills.layers import SkillLayers
from luxx.domain.skills.skill import Skill, SkillSet
from luxx.errors import InvalidInput
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunRow
from luxx.runs.options import AnswerOptions, NewMessage, Regeneration
from luxx.tools.pattern import matches_wildcards
from luxx.tools.permissions.rules import ACTIVATE_TOOL
from luxx.wire.delegation import DELEGATE_TOOL
from luxx.wire.model_settings import PlanningMode
from luxx.wire.run import RoutedChoice

MOST_SUGGESTED = 3
"""Items whose names a model gets."""

MOST_CLAUSES, CLAUSE_LENGTH = 10, 200
"""Parts of a message that are matched by themselves, and the characters of one that a reminder repeats."""


class ItemMatch(Struct, frozen=True, kw_only=True):
    """A skill or an agent that shares words with a text. `score`: at least the threshold: the text asks for
    it. `reasons`: what was found in the text."""

    id: str | None
    name: str
    scope: str
    score: float
    reasons: tuple[str, ...]


class MatchedItems(Struct, frozen=True, kw_only=True):
    """The best first. `is_definition`: the text asks what a word means, so nothing is meant by it."""

    matches: list[ItemMatch]
    threshold: float
    is_definition: bool


class PatternFinder(Protocol):
    """Learned patterns as requests are given them. `may_find`: a statement with the parameters `user` and
    `tenant` that has a row where there may be one."""

    may_find: Select[Any]

    def find(
        self, session: Session, caller: Caller, text: str, tools: Collection[str]
    ) -> Sequence[RoutedChoice]:
        """The pattern that fits the text best and needs no other tools, or none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RequestRouter:
    """One per process."""

    store: Store
    skills: SkillLayers
    patterns: PatternFinder

    async def match(
        self, caller: Caller, text: str, kind: Literal["skill", "agent"], project_id: str | None = None
    ) -> MatchedItems:
        """What a message with this text would be matched with, of one kind; both kinds share one index, as in
        a run. Raises NotFound for a project that is not the caller's."""

        def work(session: Session) -> RoutingMatches:
            if project_id is not None:
                own_project(session, caller, project_id)
            return self.find(session, caller, text, project_id).matches

        found = await self.store.read(work)
        return MatchedItems(
            matches=[
                ItemMatch(
                    id=match.item.id,
                    name=match.item.name,
                    scope=match.item.scope,
                    score=match.score,
                    reasons=match.reasons,
                )
                for match in found.ranked
                if match.item.kind == kind
            ][:MOST_RANKED],
            threshold=found.threshold,
            is_definition=found.is_definition,
        )

    def find(
        self, session: Session, caller: Caller, text: str, project_id: str | None = None
    ) -> "TextMatches":
        """What a message with this text asks for, among all that the caller may use in this project."""
        skills = self.skills.for_caller(session, caller, project_id)
        items = (*skills.routed, *routed_agents(session, caller, project_id))
        router, parts = _router(items), clauses_of(text)[:MOST_CLAUSES]
        clauses = [(part, router.match(part)) for part in parts] if len(parts) > 1 else []
        return TextMatches(matches=router.match(text), skills=skills, clauses=clauses)


class TextMatches(Struct, frozen=True, kw_only=True):
    """What a text asks for, and all skills that it was matched with. `clauses`: the parts of a text of
    several, each with what it asks for."""

    matches: RoutingMatches
    skills: SkillSet
    clauses: Sequence[tuple[str, RoutingMatches]] = ()


def acting_match(found: TextMatches, own: AgentSettings) -> RoutingMatch | None:
    """The best match that may act by itself: a skill that is reviewed and that the agent of the conversation
    may activate, or another agent, unless the conversation's own fits better."""
    reviewed = {skill.name for skill in found.skills.named(own.skills) if skill.is_reviewed}
    is_own_better = False
    for match in found.matches.above:
        if match.item.kind == "skill" and match.item.name in reviewed:
            return match
        is_own_better = is_own_better or _is_agent(match, own)
        if match.item.kind == "agent" and not is_own_better:
            return match
    return None


def routed_values(
    found: TextMatches, acting: RoutingMatch | None, tools: Collection[str], agent: AgentSettings
) -> dict[str, Any]:
    """The values of a request in which this acts, or whose model gets these tools and the names of what is
    asked for. A skill that acts stands in place of a plan."""
    of_agent = agent.skills and {skill.name for skill in found.skills.named(agent.skills)}
    clauses = _clauses(found, of_agent) if ACTIVATE_TOOL in tools else []
    if acting is None:
        return {"routed": [*_suggestions(found, tools, agent, of_agent), *clauses]}
    planning = {"planning": PlanningMode.OFF} if acting.item.kind == "skill" else {}
    return {"routed": [_choice(acting, acts=True), *clauses], **planning}


def _clauses(found: TextMatches, of_agent: Collection[str] | None) -> list[RoutedChoice]:
    """The best skill of each part of the text, each skill once."""
    chosen: dict[str, RoutedChoice] = {}
    for part, matches in found.clauses:
        best = next((match for match in matches.above if match.item.kind == "skill"), None)
        if best is not None and (of_agent is None or best.item.name in of_agent):
            choice = replace(_choice(best), clause=" ".join(part.split())[:CLAUSE_LENGTH])
            chosen.setdefault(best.item.name, choice)
    return list(chosen.values())


def _suggestions(
    found: TextMatches, tools: Collection[str], agent: AgentSettings, of_agent: Collection[str] | None
) -> list[RoutedChoice]:
    """The best of what the words ask for and the model can choose with these tools."""
    named = (
        match
        for match in found.matches.above
        if (
            DELEGATE_TOOL in tools and not _is_agent(match, agent)
            if match.item.kind == "agent"
            else ACTIVATE_TOOL in tools and (of_agent is None or match.item.name in of_agent)
        )
    )
    return [_choice(match) for match in islice(named, MOST_SUGGESTED)]


def _is_agent(match: RoutingMatch, agent: AgentSettings) -> bool:
    return match.item.kind == "agent" and match.item.id == str(agent.id)


def _choice(match: RoutingMatch, *, acts: bool = False) -> RoutedChoice:
    return RoutedChoice(kind=match.item.kind, name=match.item.name, score=match.score, acts=acts)


def asked_text(session: Session, options: AnswerOptions, message_id: str) -> str:
    """The text of the message to answer; one that is answered again is stored."""
    if isinstance(options, NewMessage):
        return options.text
    return user_content(session.get_one(MessageRow, message_id).content).text


def with_demanded(
    session: Session,
    known: Callable[[], SkillSet],
    on_demand: Set[str],
    names: list[str],
    text: str,
    given_skills: Sequence[str],
    conversation_id: str | None,
) -> list[str]:
    """The names without those of tools on demand, but for what a message with this text needs: what the run
    before it in the conversation had, so that the prompts begin the same, and the tools of skills that the
    text asks for or the message names."""
    left_out: Set[str] = on_demand & set(names)
    if not left_out:
        return names
    if conversation_id is not None:
        request = session.connection().scalar(_newest_request, {"subject": conversation_id})
        left_out = left_out if request is None else left_out - set(_request_tools.decode(request).tools)
    if left_out and (text.strip() or given_skills):
        skills = known()
        of_given = [_named_by(skill, left_out) for skill in skills.named(given_skills)]
        for wanted in (*of_given, *_asked_for(skills, left_out, text)):
            left_out -= wanted
    return [name for name in names if name not in left_out]


def with_given_skills(
    skills: SkillSet, options: AnswerOptions, agent: AgentSettings, warnings: list[str]
) -> dict[str, Any]:
    """The values of a request with these warnings, for an answer of this agent for which a person activates
    skills; they stand in place of a plan. Raises InvalidInput for one that the person names now."""
    names = options.skills
    if isinstance(options, Regeneration) and options.repeats_skills:
        usable = {skill.id for skill in skills.named(agent.skills)}
        names = [name for name in names if name in skills and skills[name].id in usable]
        if lost := [name for name in options.skills if name not in names]:
            lost_text = (
                f"The answer before had the skill {', '.join(lost)}, which cannot be used here any more."
            )
            warnings = [*warnings, lost_text]
    if not names:
        return {"warnings": warnings}
    unknown = [name for name in names if name not in skills]
    if unknown:
        raise InvalidInput(
            f"there is no skill named {', '.join(unknown)} for you here; GET /skills lists them",
            kind="skill_unknown",
            field="$.skills",
        )
    given = list(dict.fromkeys(skills[name].name for name in names))
    of_agent = {skill.name for skill in skills.named(agent.skills)} if agent.skills is not None else given
    if refused := [name for name in given if name not in of_agent]:
        raise InvalidInput(
            f"the agent '{agent.name}' may not use the skill {', '.join(refused)}; choose another agent, or "
            "change its skills",
            kind="skill_refused",
            field="$.skills",
        )
    return {"given_skills": given, "planning": PlanningMode.OFF, "warnings": warnings}


def _asked_for(skills: SkillSet, names: Set[str], text: str) -> list[Set[str]]:
    """Which of these tools each skill names that the text asks for."""
    wanting = {skill.name: tools for skill in skills.listed if (tools := _named_by(skill, names))}
    if not wanting:
        return []
    found = _router(skills.routed).match(text)
    return [wanting[match.item.name] for match in found.above if match.item.name in wanting]


class _RequestTools(Struct, frozen=True, kw_only=True):
    """The part of a stored request that is read here."""

    tools: list[str] = []


_request_tools = msgspec.json.Decoder(_RequestTools)
_runs = table_of(RunRow)
_newest_request = (
    select(_runs.c.request)
    .where(_runs.c.subject_id == bindparam("subject"))
    .order_by(_runs.c.id.desc())
    .limit(1)
)


def _named_by(skill: Skill, names: Set[str]) -> Set[str]:
    entries = [entry.partition("(")[0] for entry in skill.allowed_tools or ()]
    return {name for name in names for entry in entries if matches_wildcards(entry, name)}


@lru_cache(maxsize=20)
def _router(items: Sequence[RoutedItem]) -> Router:
    """An index takes 0.1 ms an item to make, a match less than 1 ms, so callers with equal items share it."""
    return Router(items)
