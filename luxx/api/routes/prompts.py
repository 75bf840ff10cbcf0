"""`/prompts`: saved texts that people insert into messages by a slash command."""

from typing import Annotated

from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.features.prompts import NewPrompt, PromptChanges, PromptService, PromptView

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
