"""`/knowledge`: knowledge bases, their members and documents, and searching them."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Controller, Request, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import Meta, Struct

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.files import body_chunks
from luxx.api.http.request_input import (
    OPENAPI_EXTRA,
    InjectedCaller,
    PageNumber,
    PageSize,
    TextId,
    parse_body,
)
from luxx.api.routes.files import BINARY_SCHEMA
from luxx.errors import TooLarge
from luxx.features.knowledge.documents import AddedDocuments, DocumentBody, DocumentService
from luxx.features.knowledge.rows import ChunkView, DocumentView
from luxx.features.knowledge.search import FoundChunk
from luxx.features.knowledge.service import (
    BaseChanges,
    BaseMemberView,
    BaseView,
    DocumentRight,
    KnowledgeService,
    NewBase,
    NewBaseMember,
)
from luxx.wire.memory import EpisodeStatus
from luxx.wire.run import Run

InjectedKnowledge = NamedDependency[KnowledgeService]
InjectedDocuments = NamedDependency[DocumentService]

MAX_JSON_BYTES = 10 * 1024 * 1024
"""Bytes of a document that is given as text in JSON."""

UPLOAD_EXTRA = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/DocumentBody"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {
                            "type": "array",
                            "items": BINARY_SCHEMA,
                            "minItems": 1,
                            "description": "one or more documents",
                        }
                    },
                    "required": ["file"],
                }
            },
        },
    },
    "responses": {"413": {"$ref": "#/components/responses/TooLarge"}},
}


class SearchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to look for in a knowledge base."""

    query: Annotated[str, Meta(min_length=1, max_length=2_000)]
    limit: Annotated[int, Meta(ge=1, le=50)] = 10


class FoundChunks(Struct, frozen=True, kw_only=True):
    """Passages, the best first."""

    items: list[FoundChunk]


class ReindexStart(Struct, frozen=True, kw_only=True):
    """`run` indexes the documents again; null if a run in progress does it, or if none may begin now."""

    run: Run | None


class BaseMemberRight(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new right of a member."""

    right: DocumentRight


class KnowledgeController(Controller):
    path = "/knowledge"
    tags = ("knowledge",)
    opt = CHAT

    @get()
    async def list_bases(
        self,
        caller: InjectedCaller,
        knowledge: InjectedKnowledge,
        q: Annotated[
            str | None, QueryParameter(max_length=200, description="a part of the name or description")
        ] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[BaseView]]:
        """The knowledge bases that you own, are a member of, or that are shared in your tenant."""
        return page_of(await knowledge.list_page(caller, q, page=page, page_size=page_size), page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, knowledge: InjectedKnowledge, data: JSONBody[NewBase]
    ) -> Success[BaseView]:
        """Create a knowledge base. Only an ADMIN may create one for the tenant."""
        return success(await knowledge.create(caller, data), "knowledge base created")

    @get("/{base_id:str}")
    async def show(
        self, caller: InjectedCaller, knowledge: InjectedKnowledge, base_id: TextId
    ) -> Success[BaseView]:
        """A knowledge base."""
        return success(await knowledge.get(caller, base_id))

    @put("/{base_id:str}")
    async def change(
        self,
        caller: InjectedCaller,
        knowledge: InjectedKnowledge,
        base_id: TextId,
        data: JSONBody[BaseChanges],
    ) -> Success[BaseView]:
        """Change a knowledge base. For the owner, and for ADMINs one that is shared in the tenant."""
        return success(await knowledge.update(caller, base_id, data), "saved")

    @delete("/{base_id:str}", status_code=200)
    async def remove(
        self, caller: InjectedCaller, knowledge: InjectedKnowledge, base_id: TextId
    ) -> Success[None]:
        """Delete a knowledge base with its documents."""
        await knowledge.delete(caller, base_id)
        return success(None, "deleted")

    @post("/{base_id:str}/search", status_code=200)
    async def search(
        self,
        caller: InjectedCaller,
        knowledge: InjectedKnowledge,
        base_id: TextId,
        data: JSONBody[SearchBody],
    ) -> Success[FoundChunks]:
        """The passages of the documents that fit a text best, each with its page, slide or row."""
        found = await knowledge.search(caller, base_id, data.query, data.limit)
        return success(FoundChunks(items=found))

    @post("/{base_id:str}/reindex", status_code=200)
    async def reindex(
        self, caller: InjectedCaller, documents: InjectedDocuments, base_id: TextId
    ) -> Success[ReindexStart]:
        """Read and index all documents again."""
        return success(ReindexStart(run=await documents.reindex(caller, base_id)))


class DocumentController(Controller):
    path = "/knowledge/{base_id:str}/documents"
    tags = ("knowledge",)
    opt = CHAT

    @get()
    async def list_documents(
        self,
        caller: InjectedCaller,
        documents: InjectedDocuments,
        base_id: TextId,
        status: FromQuery[EpisodeStatus | None] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[DocumentView]]:
        """The documents of a knowledge base, newest first."""
        found = await documents.list_page(caller, base_id, status, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201, opt={OPENAPI_EXTRA: UPLOAD_EXTRA})
    async def add_documents(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        documents: InjectedDocuments,
        base_id: TextId,
    ) -> Success[AddedDocuments]:
        """Add documents: files of a form, a file of your workspace by its id, or a text with a name. One with
        the name of another replaces it. A run indexes them."""
        content_type = request.headers.get("content-type", "")
        body = body_chunks(request.receive)
        if content_type.lower().startswith("multipart/form-data"):
            added = await documents.add_form(caller, base_id, content_type, request.content_length, body)
        else:
            given = await parse_body(await _whole(body), DocumentBody)
            added = await documents.add(caller, base_id, given)
        return success(added, "added")

    @get("/{document_id:str}")
    async def show_document(
        self, caller: InjectedCaller, documents: InjectedDocuments, base_id: TextId, document_id: TextId
    ) -> Success[DocumentView]:
        """A document."""
        return success(await documents.get(caller, base_id, document_id))

    @delete("/{document_id:str}", status_code=200)
    async def remove_document(
        self, caller: InjectedCaller, documents: InjectedDocuments, base_id: TextId, document_id: TextId
    ) -> Success[None]:
        """Delete a document."""
        await documents.delete(caller, base_id, document_id)
        return success(None, "deleted")

    @post("/{document_id:str}/retry", status_code=200)
    async def retry_document(
        self, caller: InjectedCaller, documents: InjectedDocuments, base_id: TextId, document_id: TextId
    ) -> Success[AddedDocuments]:
        """Index a document again that has failed or was skipped."""
        return success(await documents.retry(caller, base_id, document_id))

    @get("/{document_id:str}/chunks")
    async def list_chunks(
        self,
        caller: InjectedCaller,
        documents: InjectedDocuments,
        base_id: TextId,
        document_id: TextId,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ChunkView]]:
        """The parts of a document that a search finds, in its order."""
        found = await documents.chunks(caller, base_id, document_id, page=page, page_size=page_size)
        return page_of(found, page, page_size)


async def _whole(body: AsyncIterator[bytes]) -> bytes:
    data = bytearray()
    async for chunk in body:
        data += chunk
        if len(data) > MAX_JSON_BYTES:
            raise TooLarge("a text in JSON may have at most 10 MiB; send the document as a file of a form")
    return bytes(data)


class BaseMemberController(Controller):
    path = "/knowledge/{base_id:str}/members"
    tags = ("knowledge",)
    opt = CHAT

    @get()
    async def list_members(
        self,
        caller: InjectedCaller,
        knowledge: InjectedKnowledge,
        base_id: TextId,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[BaseMemberView]]:
        """The members of a knowledge base, in the order in which they were added."""
        found = await knowledge.members(caller, base_id, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def add_member(
        self,
        caller: InjectedCaller,
        knowledge: InjectedKnowledge,
        base_id: TextId,
        data: JSONBody[NewBaseMember],
    ) -> Success[BaseMemberView]:
        """Let a user of your tenant read a knowledge base, or write in it. For the owner."""
        return success(await knowledge.add_member(caller, base_id, data), "member added")

    @put("/{user_id:int}")
    async def change_member(
        self,
        caller: InjectedCaller,
        knowledge: InjectedKnowledge,
        base_id: TextId,
        user_id: FromPath[int],
        data: JSONBody[BaseMemberRight],
    ) -> Success[BaseMemberView]:
        """Change the right of a member. For the owner."""
        return success(await knowledge.change_member(caller, base_id, user_id, data.right), "member saved")

    @delete("/{user_id:int}", status_code=200)
    async def remove_member(
        self, caller: InjectedCaller, knowledge: InjectedKnowledge, base_id: TextId, user_id: FromPath[int]
    ) -> Success[None]:
        """Remove a member, whose next search finds nothing here. Members may remove themselves."""
        await knowledge.remove_member(caller, base_id, user_id)
        return success(None, "member removed")
