"""`/conversations`, `/projects` and `/search`: lists, changes, full-text search, export and import."""

import re
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from litestar import Controller, Request, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.event_streams import PreparedResponse
from luxx.api.http.files import TempFileASGIResponse, receive_file
from luxx.api.http.request_input import OPENAPI_EXTRA, InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.conversations.lists import ConversationFilter, ConversationSort
from luxx.domain.conversations.search import Search, SearchHit, SearchService, SearchSort
from luxx.domain.conversations.service import ConversationService, ProjectChange, ProjectService, ProjectView
from luxx.domain.conversations.views import ConversationChange, ConversationView
from luxx.domain.knowledge_bases import KnowledgeIds
from luxx.domain.transfer.document import ImportReport
from luxx.domain.transfer.service import ExportFile, TransferService
from luxx.features.chats.temporary import TemporaryChats
from luxx.infra.store.search_words import SearchKind
from luxx.wire.model_settings import MemoryMode, ModelSettingsChange, PlanningMode, RoutingMode, SlidingWindow

InjectedConversations = NamedDependency[ConversationService]
InjectedProjects = NamedDependency[ProjectService]
InjectedTransfer = NamedDependency[TransferService]

ArtifactsChoice = Annotated[
    Literal["keep", "delete"],
    QueryParameter(name="artifacts", description="what becomes of the artifacts that were made in it"),
]
Tag = Annotated[str, Meta(min_length=1, max_length=50)]


class ConversationBody(ModelSettingsChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted field does not change. Null clears it, so that the user's settings apply."""

    title: Annotated[str, Meta(min_length=1, max_length=300)] | UnsetType = UNSET
    provider_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType | None = UNSET
    project_id: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType | None = UNSET
    agent_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType | None = UNSET
    model: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType | None = UNSET
    system_prompt: Annotated[str, Meta(max_length=100_000)] | UnsetType | None = UNSET
    planning: PlanningMode | UnsetType | None = UNSET
    routing: RoutingMode | UnsetType | None = UNSET
    sliding_window: SlidingWindow | UnsetType | None = UNSET
    memory: MemoryMode | UnsetType | None = UNSET
    knowledge: KnowledgeIds | UnsetType = UNSET
    record: bool | UnsetType | None = UNSET
    pinned: bool | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    tags: Annotated[list[Tag], Meta(max_length=50)] | UnsetType = UNSET
    is_temporary: bool | UnsetType = UNSET


class ConversationChangeBody(ConversationBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`selected_leaf_id`: a message whose branch becomes the selected path, up to its newest leaf."""

    selected_leaf_id: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType = UNSET


class ConversationController(Controller):
    path = "/conversations"
    tags = ("conversations",)
    opt = CHAT

    @get()
    async def list_conversations(
        self,
        caller: InjectedCaller,
        conversations: InjectedConversations,
        pinned: FromQuery[bool | None] = None,
        archived: FromQuery[bool | None] = None,
        tag: Annotated[str | None, QueryParameter(max_length=50, description="a whole tag")] = None,
        project_id: Annotated[str | None, QueryParameter(max_length=64)] = None,
        q: Annotated[str | None, QueryParameter(max_length=300, description="a part of the title")] = None,
        sort: FromQuery[ConversationSort] = ConversationSort.NEWEST,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ConversationView]]:
        """Your conversations that match all filters, newest first or, with `sort=updated`, by activity."""
        conversation_filter = ConversationFilter(
            pinned=pinned, archived=archived, tag=tag, project_id=project_id, q=q, sort=sort
        )
        found = await conversations.list_page(caller, conversation_filter, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, conversations: InjectedConversations, data: JSONBody[ConversationBody]
    ) -> Success[ConversationView]:
        """Create a conversation; `{}` is a valid body."""
        return success(await conversations.create(caller, _change(data)), "created")

    @get("/{conversation_id:str}")
    async def show(
        self, caller: InjectedCaller, conversations: InjectedConversations, conversation_id: TextId
    ) -> Success[ConversationView]:
        """One conversation."""
        return success(await conversations.get(caller, conversation_id))

    @put("/{conversation_id:str}")
    async def change(
        self,
        caller: InjectedCaller,
        conversations: InjectedConversations,
        conversation_id: TextId,
        data: JSONBody[ConversationChangeBody],
    ) -> Success[ConversationView]:
        """Change the given fields of a conversation."""
        return success(await conversations.update(caller, conversation_id, _change(data)), "saved")

    @delete("/{conversation_id:str}", status_code=200)
    async def delete(
        self,
        caller: InjectedCaller,
        conversations: InjectedConversations,
        temporary_chats: NamedDependency[TemporaryChats],
        conversation_id: TextId,
        of_artifacts: ArtifactsChoice = "keep",
    ) -> Success[None]:
        """Delete a conversation with its messages, and stop its runs. Its artifacts stay by default; those of
        a temporary chat are deleted with it."""
        conversation = await conversations.get(caller, conversation_id)
        if of_artifacts == "delete" or conversation.temporary_minutes is not None:
            await temporary_chats.end(caller, conversation_id)
        else:
            await conversations.delete(caller, conversation_id)
        return success(None, "deleted")


def _change(body: ConversationBody) -> ConversationChange:
    return ConversationChange(**msgspec.structs.asdict(body))


ProjectName = Annotated[str, Meta(min_length=1, max_length=200)]
ProjectDescription = Annotated[str, Meta(max_length=10_000)]


class ProjectBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of projects need not be unique."""

    name: ProjectName
    description: ProjectDescription = ""
    memory: MemoryMode | None = None


class ProjectChangeBody(ProjectChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted field does not change."""

    name: ProjectName | UnsetType = UNSET
    description: ProjectDescription | UnsetType = UNSET


class ProjectController(Controller):
    path = "/projects"
    tags = ("projects",)
    opt = CHAT

    @get()
    async def list_projects(
        self,
        caller: InjectedCaller,
        projects: InjectedProjects,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ProjectView]]:
        """Your projects, newest first."""
        found = await projects.list_page(caller, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, projects: InjectedProjects, data: JSONBody[ProjectBody]
    ) -> Success[ProjectView]:
        """Create a project."""
        project = await projects.create(
            caller, name=data.name, description=data.description, memory=data.memory
        )
        return success(project, "created")

    @get("/{project_id:str}")
    async def show(
        self, caller: InjectedCaller, projects: InjectedProjects, project_id: TextId
    ) -> Success[ProjectView]:
        """One project."""
        return success(await projects.get(caller, project_id))

    @put("/{project_id:str}")
    async def change(
        self,
        caller: InjectedCaller,
        projects: InjectedProjects,
        project_id: TextId,
        data: JSONBody[ProjectChangeBody],
    ) -> Success[ProjectView]:
        """Change the given fields of a project."""
        return success(await projects.update(caller, project_id, data), "saved")

    @delete("/{project_id:str}", status_code=200)
    async def delete(
        self, caller: InjectedCaller, projects: InjectedProjects, project_id: TextId
    ) -> Success[None]:
        """Delete a project; its conversations stay, without a project."""
        await projects.delete(caller, project_id)
        return success(None, "deleted")

    @get("/{project_id:str}/conversations")
    async def list_conversations(
        self,
        caller: InjectedCaller,
        projects: InjectedProjects,
        conversations: InjectedConversations,
        project_id: TextId,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ConversationView]]:
        """The conversations of a project, newest first."""
        await projects.get(caller, project_id)
        conversation_filter = ConversationFilter(project_id=project_id)
        found = await conversations.list_page(caller, conversation_filter, page=page, page_size=page_size)
        return page_of(found, page, page_size)


Query = Annotated[
    str,
    QueryParameter(
        min_length=1,
        max_length=200,
        description='words, of which one must match; a "phrase" and the beginning of a word* must match',
    ),
]
InConversation = Annotated[
    str | None, QueryParameter(min_length=1, max_length=64, description="only in this conversation")
]
InRoom = Annotated[
    str | None, QueryParameter(min_length=1, max_length=64, description="only in this room of yours")
]
KindFilter = Annotated[
    SearchKind | None,
    QueryParameter(description="only titles of conversations, only rooms, only tasks, or only messages"),
]


SortOrder = Annotated[
    SearchSort,
    QueryParameter(description="the best hits first, or of those that match well the newest first"),
]


class SearchPage(Page[SearchHit], frozen=True, kw_only=True):
    """One page of hits. `total` counts at most 1,000; `has_more`: more exist."""

    has_more: bool


class SearchController(Controller):
    path = "/search"
    tags = ("search",)

    @get()
    async def search(
        self,
        caller: InjectedCaller,
        searches: NamedDependency[SearchService],
        q: Query,
        kind: KindFilter = None,
        conversation_id: InConversation = None,
        room_id: InRoom = None,
        sort: SortOrder = SearchSort.RELEVANCE,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[SearchPage]:
        """Titles of your conversations, your rooms, your tasks, and messages of your conversations and rooms
        that match, by relevance: rare words and texts with several of the words come first."""
        search = Search(query=q, kind=kind, conversation_id=conversation_id, room_id=room_id, sort=sort)
        result = await searches.find(caller, search, page=page, page_size=page_size)
        return success(
            SearchPage(
                items=result.hits,
                total=result.total,
                page=page,
                page_size=page_size,
                has_more=result.has_more,
            )
        )


NAME_LENGTH = 80
UNSAFE_NAME_CHARS = re.compile(r"[^\w\- ]+")
BINARY_SCHEMA = {"type": "string", "format": "binary"}
IMPORT_EXTRA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"anyOf": [{"type": "object"}, {"type": "array", "items": {}}]}},
            "application/zip": {"schema": BINARY_SCHEMA},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"file": {**BINARY_SCHEMA, "description": "the export"}},
                    "required": ["file"],
                }
            },
        },
    }
}


class TransferController(Controller):
    path = "/conversations"
    tags = ("conversations",)
    opt = CHAT

    @get("/{conversation_id:str}/export")
    async def export(
        self,
        caller: InjectedCaller,
        transfer: InjectedTransfer,
        conversation_id: TextId,
        format: FromQuery[Literal["json", "md"]] = "json",
    ) -> PreparedResponse:
        """Export a conversation: `json` with all branches, for import, or `md` for reading."""
        if format == "md":
            return _file_response(
                await transfer.export_markdown(caller, conversation_id), "text/markdown", "md"
            )
        return _file_response(await transfer.export_json(caller, conversation_id), "application/json", "json")

    @post("/import", status_code=200, opt={OPENAPI_EXTRA: IMPORT_EXTRA})
    async def import_(
        self, request: Request[Any, Any, Any], caller: InjectedCaller, transfer: InjectedTransfer
    ) -> Success[ImportReport]:
        """Import conversations exported by Luxx, ChatGPT or Claude, as JSON or ZIP, in one transaction.

        The file is the body, or the part `file` of a form. The report lists what could not be imported.
        """
        async with transfer.upload(caller) as file:
            await receive_file(request, file)
            return success(await transfer.import_file(caller, file), "imported")


def _file_response(download: ExportFile, media_type: str, suffix: str) -> PreparedResponse:
    name = UNSAFE_NAME_CHARS.sub("", download.title).strip()[:NAME_LENGTH].strip() or "conversation"
    ascii_name = name.encode("ascii", "ignore").decode().strip() or "conversation"
    disposition = (
        f"attachment; filename=\"{ascii_name}.{suffix}\"; filename*=UTF-8''{quote(f'{name}.{suffix}')}"
    )
    headers = {
        "content-type": f"{media_type}; charset=utf-8" if media_type.startswith("text/") else media_type,
        "content-length": str(download.size),
        "content-disposition": disposition,
    }
    return PreparedResponse(TempFileASGIResponse(download.file, headers, close=download.close))
