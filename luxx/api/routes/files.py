"""`/files` and attachments of messages: streamed uploads and downloads."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.errors import failure
from luxx.api.http.event_streams import PreparedResponse
from luxx.api.http.files import FileASGIResponse, body_chunks, parse_range
from luxx.api.http.request_input import OPENAPI_EXTRA, InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.conversations.service import ConversationService
from luxx.domain.files.names import content_disposition
from luxx.domain.files.service import FileService, FileView
from luxx.domain.files.upload import Uploads, UploadView
from luxx.errors import InvalidInput

InjectedFiles = NamedDependency[FileService]

BINARY_SCHEMA = {"type": "string", "format": "binary"}
BINARY_CONTENT = {"application/octet-stream": {"schema": BINARY_SCHEMA}}
DOWNLOAD_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
"""A browser that opens a download runs and embeds nothing of it, whatever the file contains."""

FORM_SCHEMA = {
    "type": "object",
    "properties": {
        "file": {"type": "array", "items": BINARY_SCHEMA, "minItems": 1, "description": "one or more files"},
        "path": {"type": "string", "description": "the folder for the files; created if missing"},
    },
    "required": ["file"],
}
UPLOAD_EXTRA = {
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM_SCHEMA}}},
    "responses": {"413": {"$ref": "#/components/responses/TooLarge"}},
}
RANGE_HEADER = {
    "name": "Range",
    "in": "header",
    "required": False,
    "description": "one range of bytes, as `bytes=0-499`; for any other value the response is the whole file",
    "schema": {"type": "string"},
}
DOWNLOAD_EXTRA = {
    "parameters": [RANGE_HEADER],
    "responses": {
        "206": {"description": "The requested range.", "content": BINARY_CONTENT},
        "416": {"$ref": "#/components/responses/Failed"},
    },
}
ATTACHMENT_MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp", "text/plain")
ATTACHMENT_CONTENT = {kind: {"schema": BINARY_SCHEMA} for kind in ATTACHMENT_MEDIA_TYPES}
ATTACHMENT_EXTRA = {"responses": {"200": {"description": "Done.", "content": ATTACHMENT_CONTENT}}}


class FileController(Controller):
    path = "/files"
    tags = ("files",)
    opt = CHAT

    @post(status_code=201, opt={OPENAPI_EXTRA: UPLOAD_EXTRA})
    async def upload(
        self, request: Request[Any, Any, Any], caller: InjectedCaller, uploads: NamedDependency[Uploads]
    ) -> Success[UploadView]:
        """Upload files to your workspace. A taken name gets a number; no file is replaced."""
        content_type = request.headers.get("content-type", "")
        body = body_chunks(request.receive)
        return success(await uploads.receive(caller, content_type, request.content_length, body), "uploaded")

    @get()
    async def list_files(
        self,
        caller: InjectedCaller,
        files: InjectedFiles,
        path: Annotated[
            str, QueryParameter(max_length=4096, description="a folder; default: the whole workspace")
        ] = "",
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[FileView]]:
        """The content of a folder of your workspace: folders, then files, by name."""
        try:
            found = await files.list_page(caller, path, page=page, page_size=page_size)
        except InvalidInput as error:
            raise error.about("path") from error
        return page_of(found, page, page_size)

    @get("/{file_id:str}", media_type="application/octet-stream", opt={OPENAPI_EXTRA: DOWNLOAD_EXTRA})
    async def download(
        self, request: Request[Any, Any, Any], caller: InjectedCaller, files: InjectedFiles, file_id: TextId
    ) -> Response[Any]:
        """Download a file. The headers prevent a browser from displaying it."""
        file = await files.open(caller, file_id)
        part = parse_range(request.headers.get("range"), file.size)
        if part is None:
            file.close()
            return failure(
                416, f"the file has only {file.size} bytes; request a range in it", "range_refused"
            )
        headers = {"content-security-policy": DOWNLOAD_POLICY}
        return PreparedResponse(FileASGIResponse(file, part, headers))

    @delete("/{file_id:str}", status_code=200)
    async def delete(self, caller: InjectedCaller, files: InjectedFiles, file_id: TextId) -> Success[None]:
        """Delete a file or an empty folder."""
        await files.delete(caller, file_id)
        return success(None, "deleted")


class AttachmentController(Controller):
    path = "/messages"
    tags = ("messages",)

    @get(
        "/{message_id:str}/attachments/{index:int}",
        media_type="text/plain",
        opt={OPENAPI_EXTRA: ATTACHMENT_EXTRA},
    )
    async def attachment(
        self,
        caller: InjectedCaller,
        conversations: NamedDependency[ConversationService],
        message_id: TextId,
        index: Annotated[int, PathParameter(ge=0, le=1000)],
    ) -> Response[bytes]:
        """An attachment of a message, with `index` from 0: the bytes of an image, or the text."""
        content = await conversations.attachment(caller, message_id, index)
        headers = {
            "content-disposition": content_disposition(content.name),
            "content-security-policy": DOWNLOAD_POLICY,
        }
        return Response(content.data, media_type=content.media_type, headers=headers)
