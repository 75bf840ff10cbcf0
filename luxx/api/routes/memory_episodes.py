"""`/memories/episodes` and `/memories/extract`: what facts were extracted from, and extracting now."""

from typing import Annotated

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, QueryParameter

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.features.memory.extraction.episodes import Episode
from luxx.features.memory.extraction.ingestion import Ingestion
from luxx.wire.memory import EpisodeStatus
from luxx.wire.run import Run

InjectedIngestion = NamedDependency[Ingestion]
SourceFilter = Annotated[
    str | None, QueryParameter(max_length=20, description="conversation or room; absent: both")
]


class ExtractRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which conversation to extract facts from."""

    conversation_id: str


class ExtractionStart(msgspec.Struct, frozen=True, kw_only=True):
    """`run` extracts the facts; null if there is nothing to extract, or if a run that is in progress for this
    memory is followed by one for what is new."""

    run: Run | None


class MemoryEpisodeController(Controller):
    path = "/memories"
    tags = ("memories",)
    opt = CHAT

    @get("/episodes")
    async def list_episodes(
        self,
        caller: InjectedCaller,
        ingestion: InjectedIngestion,
        status: FromQuery[EpisodeStatus | None] = None,
        source: SourceFilter = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[Episode]]:
        """The parts of conversations and rooms that are, were or will be looked through for facts."""
        found = await ingestion.list_page(
            caller, status=status, source=source, page=page, page_size=page_size
        )
        return page_of(found, page, page_size)

    @post("/episodes/{episode_id:str}/retry", status_code=200)
    async def retry(
        self, caller: InjectedCaller, ingestion: InjectedIngestion, episode_id: TextId
    ) -> Success[ExtractionStart]:
        """Look once more through an episode that was skipped or failed."""
        return success(ExtractionStart(run=await ingestion.retry(caller, episode_id)))

    @post("/extract", status_code=200)
    async def extract(
        self, caller: InjectedCaller, ingestion: InjectedIngestion, data: JSONBody[ExtractRequest]
    ) -> Success[ExtractionStart]:
        """Extract facts from a conversation now, whether or not extraction is turned on."""
        return success(ExtractionStart(run=await ingestion.extract(caller, data.conversation_id)))
