"""`/graph`: the graph of memory as a picture, its entities and communities, queries, and as a file."""

from datetime import datetime
from typing import Annotated

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.event_streams import PreparedResponse
from luxx.api.http.files import TempFileASGIResponse
from luxx.api.http.request_input import OPENAPI_EXTRA, UUID, InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.files.names import content_disposition
from luxx.features.memory.graph import (
    MAX_DEPTH,
    MAX_NODES,
    Community,
    Entity,
    EntityDetails,
    GraphQuery,
    GraphService,
    MergeTarget,
    SplitPart,
)
from luxx.features.memory.graph_export import GraphFormat
from luxx.features.memory.graph_picture import Graph
from luxx.features.memory.graph_query import QueryResult
from luxx.features.memory.models import NAME_LENGTH, TYPE_LENGTH
from luxx.features.memory.scopes import IN_SCOPE, SCOPE_LENGTH
from luxx.features.memory.views import FactTime

InjectedGraph = NamedDependency[GraphService]
AwareDatetime = Annotated[datetime, Meta(tz=True)]
ScopeFilter = Annotated[
    str | None, QueryParameter(name="scope", max_length=SCOPE_LENGTH, description=IN_SCOPE)
]
Center = Annotated[
    str | None,
    QueryParameter(pattern=UUID, description="the id of an entity: only what is near it, see depth"),
]
Depth = Annotated[
    int, QueryParameter(ge=1, le=MAX_DEPTH, description="with `center`: how many facts away at most")
]
NodeLimit = Annotated[int, QueryParameter(name="limit", ge=1, le=MAX_NODES, description="the most nodes")]
AsOf = Annotated[AwareDatetime | None, QueryParameter(description="only facts that were true at this time")]
KnownAt = Annotated[
    AwareDatetime | None, QueryParameter(description="facts that Luxx knew at this time, instead of now")
]
NamePart = Annotated[str | None, QueryParameter(max_length=NAME_LENGTH, description="a part of the name")]
TypeFilter = Annotated[
    str | None,
    QueryParameter(
        name="type", min_length=1, max_length=TYPE_LENGTH, description="only entities of this type"
    ),
]
FormatParameter = Annotated[GraphFormat, QueryParameter(name="format")]

MEDIA_TYPES = {
    GraphFormat.JSON: "application/json",
    GraphFormat.GRAPHML: "application/xml",
    GraphFormat.CYPHER: "text/plain; charset=utf-8",
}
EXPORT_EXTRA = {
    "responses": {
        "200": {
            "description": "Done.",
            "content": {
                "application/json": {"schema": {"type": "object", "description": "nodes and relationships"}},
                "application/xml": {"schema": {"type": "string", "description": "GraphML"}},
                "text/plain": {"schema": {"type": "string", "description": "a script for Neo4j"}},
            },
        }
    }
}


class GraphController(Controller):
    path = "/graph"
    tags = ("graph",)
    opt = CHAT

    @get()
    async def overview(
        self,
        caller: InjectedCaller,
        graph: InjectedGraph,
        of_scope: ScopeFilter = None,
        center: Center = None,
        depth: Depth = 1,
        node_limit: NodeLimit = 500,
        as_of: AsOf = None,
        known_at: KnownAt = None,
    ) -> Success[Graph]:
        """A picture of the graph that you may read: the entities with the most facts, or those around one."""
        time = FactTime(as_of=as_of, known_at=known_at)
        return success(await graph.overview(caller, of_scope, center, time, depth=depth, limit=node_limit))

    @get("/entities")
    async def list_entities(
        self,
        caller: InjectedCaller,
        graph: InjectedGraph,
        of_scope: ScopeFilter = None,
        q: NamePart = None,
        of_type: TypeFilter = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[Entity]]:
        """The entities that you may read, by name; those that were merged into another are left out."""
        found = await graph.entities(caller, of_scope, q, of_type, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @get("/entities/{entity_id:str}")
    async def show_entity(
        self,
        caller: InjectedCaller,
        graph: InjectedGraph,
        entity_id: TextId,
        as_of: AsOf = None,
        known_at: KnownAt = None,
    ) -> Success[EntityDetails]:
        """One entity with the newest facts that name it."""
        return success(await graph.entity(caller, entity_id, FactTime(as_of=as_of, known_at=known_at)))

    @post("/entities/{entity_id:str}/merge", status_code=200)
    async def merge(
        self,
        caller: InjectedCaller,
        graph: InjectedGraph,
        entity_id: TextId,
        data: JSONBody[MergeTarget],
    ) -> Success[EntityDetails]:
        """Merge an entity into another of its scope, which is returned. It can be split off, or undone."""
        return success(await graph.merge(caller, entity_id, data.into), "merged")

    @post("/entities/{entity_id:str}/split", status_code=200)
    async def split(
        self,
        caller: InjectedCaller,
        graph: InjectedGraph,
        entity_id: TextId,
        data: JSONBody[SplitPart],
    ) -> Success[EntityDetails]:
        """Split an entity off the one that it was merged into; it is as it was before."""
        return success(await graph.split(caller, entity_id, data.merged_id), "split")

    @get("/communities")
    async def list_communities(
        self,
        caller: InjectedCaller,
        graph: InjectedGraph,
        of_scope: ScopeFilter = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[Community]]:
        """Groups of entities that facts connect closely, by name."""
        found = await graph.communities(caller, of_scope, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post("/query", status_code=200)
    async def query(
        self, caller: InjectedCaller, graph: InjectedGraph, data: JSONBody[GraphQuery]
    ) -> Success[QueryResult]:
        """Rows of a query in a subset of openCypher that only reads, of what you may read. It ends after two
        seconds, and a row beyond the limit sets `truncated`."""
        return success(await graph.query(caller, data))

    @get("/export", opt={OPENAPI_EXTRA: EXPORT_EXTRA})
    async def export(
        self,
        caller: InjectedCaller,
        graph: InjectedGraph,
        of_scope: ScopeFilter = None,
        file_format: FormatParameter = GraphFormat.JSON,
    ) -> PreparedResponse:
        """The graph that you may read as a file, with merged entities and facts that ended."""
        file, size = await graph.export(caller, of_scope, file_format)
        headers = {
            "content-type": MEDIA_TYPES[file_format],
            "content-length": str(size),
            "content-disposition": content_disposition(f"graph.{file_format.value}"),
        }
        return PreparedResponse(TempFileASGIResponse(file, headers, close=file.close))
