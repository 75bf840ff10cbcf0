"""`/memories`: the facts that Luxx remembers, their changes, and all of them as a file; what they were
extracted from, and extracting now."""

from datetime import datetime
from typing import Annotated

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import Meta, Struct

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.event_streams import PreparedResponse
from luxx.api.http.files import TempFileASGIResponse
from luxx.api.http.request_input import OPENAPI_EXTRA, UUID, InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.files.names import content_disposition
from luxx.features.memory.changes import MemoryChange
from luxx.features.memory.extraction.episodes import Episode, EpisodeSource
from luxx.features.memory.extraction.ingestion import Ingestion
from luxx.features.memory.scopes import IN_SCOPE, SCOPE_LENGTH
from luxx.features.memory.service import FactFilter, MemoryService
from luxx.features.memory.sources import IN_SOURCE
from luxx.features.memory.vectors.status import EmbeddingReport, EmbeddingStatus
from luxx.features.memory.views import Fact, FactChanges, FactTime, NewFact
from luxx.wire.memory import EpisodeStatus, FactCategory
from luxx.wire.run import Run

InjectedMemory = NamedDependency[MemoryService]
InjectedEmbedding = NamedDependency[EmbeddingReport]
AwareDatetime = Annotated[datetime, Meta(tz=True)]
ScopeFilter = Annotated[
    str | None, QueryParameter(name="scope", max_length=SCOPE_LENGTH, description=IN_SCOPE)
]
SourceParameter = Annotated[str | None, QueryParameter(max_length=2_000, description=IN_SOURCE)]
WordsFilter = Annotated[
    str | None, QueryParameter(max_length=300, description="words, all of which a fact has")
]
AsOf = Annotated[AwareDatetime | None, QueryParameter(description="only what was true at this time")]
KnownAt = Annotated[
    AwareDatetime | None, QueryParameter(description="what Luxx knew at this time, instead of now")
]
FactIdFilter = Annotated[
    str | None,
    QueryParameter(name="fact_id", pattern=UUID, description="the id of a fact: only changes of it"),
]

EntityIdFilter = Annotated[
    str | None,
    QueryParameter(
        name="entity_id",
        pattern=UUID,
        description="the id of an entity: only merges and splits of it, and of others into or off it",
    ),
]
EXPORT_EXTRA = {
    "responses": {
        "200": {
            "description": "Done.",
            "content": {"application/json": {"schema": {"type": "object", "description": "the facts"}}},
        }
    }
}


class DeletedFacts(Struct, frozen=True, kw_only=True):
    """How many facts were deleted, earlier wordings and retired ones included."""

    deleted: int


class MemoryController(Controller):
    path = "/memories"
    tags = ("memories",)
    opt = CHAT

    @get()
    async def list_memories(
        self,
        caller: InjectedCaller,
        memory: InjectedMemory,
        category: FromQuery[FactCategory | None] = None,
        of_scope: ScopeFilter = None,
        q: WordsFilter = None,
        as_of: AsOf = None,
        known_at: KnownAt = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[Fact]]:
        """The facts that you may read, newest first: yours, those of your projects, of your rooms and of the
        tenant."""
        wanted = FactFilter(category=category, scope=of_scope, q=q, as_of=as_of, known_at=known_at)
        found = await memory.list_page(caller, wanted, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, memory: InjectedMemory, data: JSONBody[NewFact]
    ) -> Success[Fact]:
        """Remember a fact. Only an ADMIN may do it for the tenant, and in a room members who may speak."""
        return success(await memory.create(caller, data), "remembered")

    @delete(status_code=200)
    async def remove_many(
        self,
        caller: InjectedCaller,
        memory: InjectedMemory,
        of_scope: ScopeFilter = None,
        source: SourceParameter = None,
    ) -> Success[DeletedFacts]:
        """Delete all facts of a scope, of a source, or of a source in a scope, for good. Facts that you may
        not change stay."""
        deleted = await memory.delete_many(caller, of_scope, source)
        return success(DeletedFacts(deleted=deleted), "forgotten")

    @get("/export", opt={OPENAPI_EXTRA: EXPORT_EXTRA})
    async def export(
        self, caller: InjectedCaller, memory: InjectedMemory, of_scope: ScopeFilter = None
    ) -> PreparedResponse:
        """The facts that you may read, oldest first, with retired ones and earlier wordings, as a file."""
        file, size = await memory.export(caller, of_scope)
        headers = {
            "content-type": "application/json",
            "content-length": str(size),
            "content-disposition": content_disposition("memories.json"),
        }
        return PreparedResponse(TempFileASGIResponse(file, headers, close=file.close))

    @get("/embedding")
    async def embedding_status(
        self, caller: InjectedCaller, embedding: InjectedEmbedding
    ) -> Success[EmbeddingStatus]:
        """Whether facts are also searched by meaning, with which model, and how good that is."""
        return success(await embedding.status(caller))

    @get("/changes")
    async def list_changes(
        self,
        caller: InjectedCaller,
        memory: InjectedMemory,
        of_scope: ScopeFilter = None,
        of_fact: FactIdFilter = None,
        of_entity: EntityIdFilter = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[MemoryChange]]:
        """What was changed in memory, newest first."""
        found = await memory.changes(caller, of_scope, of_fact, of_entity, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post("/changes/{memory_change_id:str}/undo", status_code=200)
    async def undo(
        self, caller: InjectedCaller, memory: InjectedMemory, memory_change_id: TextId
    ) -> Success[MemoryChange]:
        """Bring back the state before a change. Of several changes of a fact, the newest is undone first."""
        return success(await memory.undo(caller, memory_change_id), "undone")

    @get("/{fact_id:str}")
    async def show(
        self,
        caller: InjectedCaller,
        memory: InjectedMemory,
        fact_id: TextId,
        as_of: AsOf = None,
        known_at: KnownAt = None,
    ) -> Success[Fact]:
        """One fact; with `known_at` in its wording of then. 404 if it was not true, or not known, at the
        given times."""
        return success(await memory.get(caller, fact_id, FactTime(as_of=as_of, known_at=known_at)))

    @put("/{fact_id:str}")
    async def change(
        self, caller: InjectedCaller, memory: InjectedMemory, fact_id: TextId, data: JSONBody[FactChanges]
    ) -> Success[Fact]:
        """Change the given fields of a fact. The wording before is kept, and the change can be undone."""
        return success(await memory.change(caller, fact_id, data), "saved")

    @post("/{fact_id:str}/restore", status_code=200)
    async def restore(self, caller: InjectedCaller, memory: InjectedMemory, fact_id: TextId) -> Success[Fact]:
        """Bring back a retired fact."""
        return success(await memory.restore(caller, fact_id), "restored")

    @delete("/{fact_id:str}", status_code=200)
    async def remove(self, caller: InjectedCaller, memory: InjectedMemory, fact_id: TextId) -> Success[None]:
        """Delete a fact for good, with its earlier wordings and what only it supported."""
        await memory.delete(caller, fact_id)
        return success(None, "forgotten")


InjectedIngestion = NamedDependency[Ingestion]
SourceFilter = Annotated[
    EpisodeSource | None, QueryParameter(description="what the messages are from; absent: both")
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
