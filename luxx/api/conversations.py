"""`/conversations`: make, list, show, change, delete."""

from typing import Annotated

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from luxx.api.envelope import Page, Success, success
from luxx.api.parameters import GivenCaller, PageNumber, PageSize, TextId
from luxx.conversations.listing import ConversationFilter, ConversationSort
from luxx.conversations.service import ConversationService
from luxx.conversations.views import ConversationChange, ConversationView

Tag = Annotated[str, Meta(min_length=1, max_length=50)]


class ConversationBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field left out stays as it is; null clears it, so that the user's settings decide."""

    title: Annotated[str, Meta(min_length=1, max_length=300)] | UnsetType = UNSET
    provider_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType | None = UNSET
    project_id: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType | None = UNSET
    model: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType | None = UNSET
    system_prompt: Annotated[str, Meta(max_length=100_000)] | UnsetType | None = UNSET
    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType | None = UNSET
    max_tokens: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType | None = UNSET
    thinking_enabled: bool | UnsetType | None = UNSET
    pinned: bool | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    tags: Annotated[list[Tag], Meta(max_length=50)] | UnsetType = UNSET


class ConversationChangeBody(ConversationBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`selected_leaf_id`: a message whose branch shall be shown and sent; its newest leaf is selected."""

    selected_leaf_id: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType = UNSET


class ConversationController(Controller):
    path = "/conversations"
    tags = ("conversations",)

    @get()
    async def list_conversations(
        self,
        caller: GivenCaller,
        conversations: NamedDependency[ConversationService],
        pinned: FromQuery[bool | None] = None,
        archived: FromQuery[bool | None] = None,
        tag: Annotated[str | None, QueryParameter(max_length=50, description="a whole tag")] = None,
        project_id: Annotated[str | None, QueryParameter(max_length=64)] = None,
        q: Annotated[str | None, QueryParameter(max_length=300, description="a part of the title")] = None,
        sort: FromQuery[ConversationSort] = ConversationSort.NEWEST,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ConversationView]]:
        """Your conversations that match all that is given, newest first or, `sort=updated`, by activity."""
        wanted = ConversationFilter(
            pinned=pinned, archived=archived, tag=tag, project_id=project_id, q=q, sort=sort
        )
        items, total = await conversations.list_page(caller, wanted, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))

    @post(status_code=201)
    async def create(
        self,
        caller: GivenCaller,
        conversations: NamedDependency[ConversationService],
        data: JSONBody[ConversationBody],
    ) -> Success[ConversationView]:
        """A new conversation; `{}` will do."""
        return success(await conversations.create(caller, _change(data)), "created")

    @get("/{conversation_id:str}")
    async def show(
        self,
        caller: GivenCaller,
        conversations: NamedDependency[ConversationService],
        conversation_id: TextId,
    ) -> Success[ConversationView]:
        """One conversation."""
        return success(await conversations.get(caller, conversation_id))

    @put("/{conversation_id:str}")
    async def change(
        self,
        caller: GivenCaller,
        conversations: NamedDependency[ConversationService],
        conversation_id: TextId,
        data: JSONBody[ConversationChangeBody],
    ) -> Success[ConversationView]:
        """Set what is given."""
        return success(await conversations.update(caller, conversation_id, _change(data)), "saved")

    @delete("/{conversation_id:str}", status_code=200)
    async def delete(
        self,
        caller: GivenCaller,
        conversations: NamedDependency[ConversationService],
        conversation_id: TextId,
    ) -> Success[None]:
        """Delete a conversation with its messages; what runs in it is stopped."""
        await conversations.delete(caller, conversation_id)
        return success(None, "deleted")


def _change(body: ConversationBody) -> ConversationChange:
    return ConversationChange(**{name: getattr(body, name) for name in body.__struct_fields__})
