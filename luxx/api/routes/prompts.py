"""`/prompts`: saved texts that people insert into messages by a slash command. `/patterns`: ways of working
that were learned from runs."""

from typing import Annotated

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.features.patterns.service import (
    MAX_GOAL,
    NewPattern,
    PatternChange,
    PatternChanges,
    PatternMatches,
    PatternService,
    PatternView,
)
from luxx.features.prompts import NewPrompt, PromptChanges, PromptService, PromptView
from luxx.wire.patterns import PatternStatus

InjectedPrompts = NamedDependency[PromptService]
TextFilter = Annotated[
    str | None, QueryParameter(max_length=300, description="a part of the name, the title or the description")
]


class PromptController(Controller):
    path = "/prompts"
    tags = ("prompts",)
    opt = CHAT

    @get()
    async def list_prompts(
        self,
        caller: InjectedCaller,
        prompts: InjectedPrompts,
        q: TextFilter = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[PromptView]]:
        """Your prompts and those shared in the tenant, newest first."""
        found = await prompts.list_page(caller, part=q, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, prompts: InjectedPrompts, data: JSONBody[NewPrompt]
    ) -> Success[PromptView]:
        """Create a prompt. Its name is unique among yours. Only an ADMIN may share it."""
        return success(await prompts.create(caller, data), "prompt created")

    @get("/{prompt_id:str}")
    async def show(
        self, caller: InjectedCaller, prompts: InjectedPrompts, prompt_id: TextId
    ) -> Success[PromptView]:
        """One prompt."""
        return success(await prompts.get(caller, prompt_id))

    @put("/{prompt_id:str}")
    async def change(
        self,
        caller: InjectedCaller,
        prompts: InjectedPrompts,
        prompt_id: TextId,
        data: JSONBody[PromptChanges],
    ) -> Success[PromptView]:
        """Change the given fields of a prompt.

        Of a prompt that another ADMIN shares, an ADMIN may only change `is_shared`."""
        return success(await prompts.update(caller, prompt_id, data), "prompt saved")

    @delete("/{prompt_id:str}", status_code=200)
    async def remove(
        self, caller: InjectedCaller, prompts: InjectedPrompts, prompt_id: TextId
    ) -> Success[None]:
        """Delete a prompt; an ADMIN also one that another ADMIN shares."""
        await prompts.delete(caller, prompt_id)
        return success(None, "prompt deleted")


InjectedPatterns = NamedDependency[PatternService]
PatternFilter = Annotated[
    str | None, QueryParameter(max_length=300, description="a part of the name or the description")
]


class PatternFeedback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    useful: bool


class PatternText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1, max_length=MAX_GOAL)]


class PatternController(Controller):
    path = "/patterns"
    tags = ("patterns",)
    opt = CHAT

    @get()
    async def list_patterns(
        self,
        caller: InjectedCaller,
        patterns: InjectedPatterns,
        q: PatternFilter = None,
        status: Annotated[
            PatternStatus | None, QueryParameter(description="only those with this status")
        ] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[PatternView]]:
        """Your patterns and those shared in the tenant, newest first, without their sources."""
        found = await patterns.list_by_status(caller, part=q, status=status, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, patterns: InjectedPatterns, data: JSONBody[NewPattern]
    ) -> Success[PatternView]:
        """Write a pattern yourself; it is active at once. Only an ADMIN may share it."""
        return success(await patterns.create(caller, data), "pattern created")

    @post("/match", status_code=200)
    async def match(
        self, caller: InjectedCaller, patterns: InjectedPatterns, data: JSONBody[PatternText]
    ) -> Success[PatternMatches]:
        """Which active patterns fit a text, the best first, without a model call."""
        return success(await patterns.match(caller, data.text))

    @get("/{pattern_id:str}")
    async def show(
        self, caller: InjectedCaller, patterns: InjectedPatterns, pattern_id: TextId
    ) -> Success[PatternView]:
        """One pattern, with the runs that it was learned from if it is yours."""
        return success(await patterns.get(caller, pattern_id))

    @put("/{pattern_id:str}")
    async def change(
        self,
        caller: InjectedCaller,
        patterns: InjectedPatterns,
        pattern_id: TextId,
        data: JSONBody[PatternChanges],
    ) -> Success[PatternView]:
        """Change the given fields of a pattern. Of one that another ADMIN shares, an ADMIN may only change
        `is_shared`."""
        return success(await patterns.update(caller, pattern_id, data), "pattern saved")

    @delete("/{pattern_id:str}", status_code=200)
    async def remove(
        self, caller: InjectedCaller, patterns: InjectedPatterns, pattern_id: TextId
    ) -> Success[None]:
        """Delete a pattern; an ADMIN also one that another ADMIN shares."""
        await patterns.delete(caller, pattern_id)
        return success(None, "pattern deleted")

    @post("/{pattern_id:str}/share", status_code=200)
    async def share(
        self, caller: InjectedCaller, patterns: InjectedPatterns, pattern_id: TextId
    ) -> Success[PatternView]:
        """Share an active pattern of yours with the tenant, as an ADMIN. `PUT` with `is_shared` ends it."""
        return success(await patterns.share(caller, pattern_id), "pattern shared")

    @get("/{pattern_id:str}/history")
    async def history(
        self, caller: InjectedCaller, patterns: InjectedPatterns, pattern_id: TextId
    ) -> Success[list[PatternChange]]:
        """The newest 100 changes of a pattern, by people and by rules, the newest first."""
        return success(await patterns.history(caller, pattern_id))

    @post("/{pattern_id:str}/feedback", status_code=200)
    async def feedback(
        self,
        caller: InjectedCaller,
        patterns: InjectedPatterns,
        pattern_id: TextId,
        data: JSONBody[PatternFeedback],
    ) -> Success[None]:
        """Whether a pattern was useful. A useless pattern of yours is deleted; of one that another shares, it
        counts as a failure."""
        await patterns.feedback(caller, pattern_id, is_useful=data.useful)
        return success(None, "thank you")
