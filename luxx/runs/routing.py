"""Which skills and agents of a caller a text asks for: the items that may be chosen, and the match."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from msgspec import Struct
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.queries import routed_agents
from luxx.domain.conversations.service import own_project
from luxx.domain.routing.matching import RoutedItem, Router, RoutingMatches
from luxx.domain.skills.layers import SkillLayers
from luxx.domain.skills.skill import Skill
from luxx.infra.store.engine import Store

MOST_MATCHES = 10
"""Items that an answer names."""


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RequestRouter:
    """One per process."""

    store: Store
    skills: SkillLayers

    async def match(
        self, caller: Caller, text: str, kind: Literal["skill", "agent"], project_id: str | None = None
    ) -> MatchedItems:
        """What a message with this text would be matched with, of one kind; both kinds share one index, as in
        a run. Raises NotFound for a project that is not the caller's."""

        def work(session: Session) -> RoutingMatches:
            if project_id is not None:
                own_project(session, caller, project_id)
            return self.matches(session, caller, text, project_id)

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
            ][:MOST_MATCHES],
            threshold=found.threshold,
            is_definition=found.is_definition,
        )

    def matches(
        self, session: Session, caller: Caller, text: str, project_id: str | None = None
    ) -> RoutingMatches:
        """What a message with this text asks for, among all that the caller may use in this project."""
        skills = self.skills.for_caller(session, caller, project_id).values()
        items = [*map(_skill_item, skills), *routed_agents(session, caller)]
        return _router(tuple(items)).match(text)


def _skill_item(skill: Skill) -> RoutedItem:
    return RoutedItem(
        kind="skill",
        id=skill.id,
        name=skill.name,
        description=skill.description,
        scope=skill.scope,
        trigger_type=skill.trigger_type,
        triggers=tuple(skill.trigger_patterns),
    )


@lru_cache(maxsize=20)
def _router(items: Sequence[RoutedItem]) -> Router:
    """An index takes 0.1 ms an item to make, a match less than 1 ms, so callers with equal items share it."""
    return Router(items)
