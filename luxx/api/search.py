"""`/search`: full text over the caller's own conversations."""

from typing import Annotated

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from luxx.api.envelope import Success, success
from luxx.api.parameters import GivenCaller, PageNumber, PageSize
from luxx.conversations.search import Search, SearchHit, SearchService
from luxx.store.search_words import SearchKind

Query = Annotated[
    str,
    QueryParameter(
        min_length=1,
        max_length=200,
        description='words, all of which must be there; "a phrase" in quotes; the beginning of a word*',
    ),
]
InConversation = Annotated[
    str | None, QueryParameter(min_length=1, max_length=64, description="only in this conversation")
]
Kind = Annotated[SearchKind | None, QueryParameter(description="only titles, or only messages")]


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of hits. `total` counts 1,000 titles and 1,000 messages at most; `has_more`: of more."""

    items: list[SearchHit]
    total: int
    page: int
    page_size: int
    has_more: bool


class SearchController(Controller):
    path = "/search"
    tags = ("search",)

    @get()
    async def search(
        self,
        caller: GivenCaller,
        searches: NamedDependency[SearchService],
        q: Query,
        kind: Kind = None,
        conversation_id: InConversation = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[SearchPage]:
        """Titles and messages in which all words stand: titles first, then messages, newest first."""
        search = Search(query=q, kind=kind, conversation_id=conversation_id)
        found = await searches.find(caller, search, page=page, page_size=page_size)
        return success(
            SearchPage(
                items=found.hits, total=found.total, page=page, page_size=page_size, has_more=found.has_more
            )
        )
