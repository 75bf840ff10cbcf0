"""`/artifacts`: documents, decks, sheets, pages, programs and diagrams with their versions and files.

Nothing is answered as HTML, SVG or XML: downloads are attachments, pictures of pages are PNG.
"""

from functools import partial
from typing import Annotated, Any, Literal

from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.event_streams import Streams
from luxx.api.http.request_input import OPENAPI_EXTRA, InjectedCaller, PageNumber, PageSize, TextId
from luxx.api.routes.files import BINARY_CONTENT, BINARY_SCHEMA, DOWNLOAD_POLICY
from luxx.domain.files.names import content_disposition
from luxx.domain.files.upload import UploadView
from luxx.features.artifacts.downloads import ALL_FORMATS
from luxx.features.artifacts.files import ArtifactFiles
from luxx.features.artifacts.new_page import PageRegeneration
from luxx.features.artifacts.service import ArtifactFilter, ArtifactService
from luxx.features.artifacts.views import (
    MAX_NUMBER,
    ArtifactChanges,
    ArtifactContent,
    ArtifactDiff,
    ArtifactPreview,
    ArtifactView,
    NewArtifact,
    NewContent,
    RegenerateBody,
    SavedContent,
    VersionNumber,
    VersionView,
)
from luxx.wire.artifacts import ArtifactType

InjectedArtifacts = NamedDependency[ArtifactService]
InjectedArtifactFiles = NamedDependency[ArtifactFiles]

FormatName = Literal["csv", "docx", "html", "json", "md", "mmd", "pdf", "png", "pptx", "svg", "xlsx", "zip"]
assert set(FormatName.__args__) == set(ALL_FORMATS)  # type: ignore[attr-defined]
OfVersion = Annotated[
    int | None, QueryParameter(ge=1, le=MAX_NUMBER, description="a version; default: the newest one")
]
TOO_LARGE = {"responses": {"413": {"$ref": "#/components/responses/TooLarge"}}}
DOWNLOAD_EXTRA = {"responses": {"200": {"description": "The file.", "content": BINARY_CONTENT}}}
PICTURE_EXTRA = {
    "responses": {"200": {"description": "The picture.", "content": {"image/png": {"schema": BINARY_SCHEMA}}}}
}


class RestoreBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The version whose pages become the newest ones."""

    version: VersionNumber


class SaveBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in the workspace; a path that ends in `/` names a folder."""

    path: Annotated[str, Meta(max_length=4096)] = ""
    format: FormatName | None = None


class ArtifactController(Controller):
    path = "/artifacts"
    tags = ("artifacts",)
    opt = CHAT

    @get()
    async def list_artifacts(
        self,
        caller: InjectedCaller,
        artifacts: InjectedArtifacts,
        conversation_id: FromQuery[str | None] = None,
        room_id: FromQuery[str | None] = None,
        task_id: FromQuery[str | None] = None,
        of_type: Annotated[
            ArtifactType | None, QueryParameter(name="type", description="only those of this type")
        ] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ArtifactView]]:
        """Your artifacts, and those of rooms that you are a member of, newest first."""
        wanted = ArtifactFilter(
            conversation_id=conversation_id, room_id=room_id, task_id=task_id, type=of_type
        )
        return page_of(
            await artifacts.list_page(caller, wanted, page=page, page_size=page_size), page, page_size
        )

    @post(status_code=201, opt={OPENAPI_EXTRA: TOO_LARGE})
    async def create(
        self, caller: InjectedCaller, artifacts: InjectedArtifacts, data: JSONBody[NewArtifact]
    ) -> Success[ArtifactView]:
        """Create an artifact from its source."""
        return success(await artifacts.create(caller, data), "artifact created")

    @get("/{artifact_id:str}")
    async def show(
        self, caller: InjectedCaller, artifacts: InjectedArtifacts, artifact_id: TextId
    ) -> Success[ArtifactView]:
        """An artifact."""
        return success(await artifacts.get(caller, artifact_id))

    @put("/{artifact_id:str}")
    async def change(
        self,
        caller: InjectedCaller,
        artifacts: InjectedArtifacts,
        artifact_id: TextId,
        data: JSONBody[ArtifactChanges],
    ) -> Success[ArtifactView]:
        """Change the name, the theme or the language."""
        return success(await artifacts.update(caller, artifact_id, data), "saved")

    @delete("/{artifact_id:str}", status_code=200)
    async def remove(
        self, caller: InjectedCaller, artifacts: InjectedArtifacts, artifact_id: TextId
    ) -> Success[None]:
        """Delete an artifact with all its versions. For its owner."""
        await artifacts.delete(caller, artifact_id)
        return success(None, "deleted")

    @get("/{artifact_id:str}/content")
    async def show_content(
        self,
        caller: InjectedCaller,
        artifacts: InjectedArtifacts,
        artifact_id: TextId,
        page: Annotated[
            int | None, QueryParameter(ge=1, le=10_000, description="only this page, counted from 1")
        ] = None,
        version: OfVersion = None,
    ) -> Success[ArtifactContent]:
        """The source of an artifact, whole and by its pages."""
        return success(await artifacts.content(caller, artifact_id, page, version))

    @put("/{artifact_id:str}/content", opt={OPENAPI_EXTRA: TOO_LARGE})
    async def save_content(
        self,
        caller: InjectedCaller,
        artifacts: InjectedArtifacts,
        artifact_id: TextId,
        data: JSONBody[NewContent],
    ) -> Success[SavedContent]:
        """Save a page, or the whole source, as a new version. 409 with both texts if it was changed since."""
        return success(await artifacts.save_content(caller, artifact_id, data), "saved")

    @get("/{artifact_id:str}/versions")
    async def list_versions(
        self,
        caller: InjectedCaller,
        artifacts: InjectedArtifacts,
        artifact_id: TextId,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[VersionView]]:
        """The versions of an artifact, newest first."""
        found = await artifacts.versions(caller, artifact_id, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @get("/{artifact_id:str}/diff")
    async def diff(
        self,
        caller: InjectedCaller,
        artifacts: InjectedArtifacts,
        artifact_id: TextId,
        first: Annotated[
            int | None,
            QueryParameter(name="from", ge=1, le=MAX_NUMBER, description="default: the version before `to`"),
        ] = None,
        last: Annotated[
            int | None,
            QueryParameter(name="to", ge=1, le=MAX_NUMBER, description="a version; default: the newest one"),
        ] = None,
    ) -> Success[ArtifactDiff]:
        """The pages that differ between two versions."""
        return success(await artifacts.diff(caller, artifact_id, first, last))

    @post("/{artifact_id:str}/restore", status_code=200)
    async def restore(
        self,
        caller: InjectedCaller,
        artifacts: InjectedArtifacts,
        artifact_id: TextId,
        data: JSONBody[RestoreBody],
    ) -> Success[SavedContent]:
        """Make a new version with the pages of an earlier one."""
        return success(await artifacts.restore(caller, artifact_id, data.version), "restored")

    @post("/{artifact_id:str}/regenerate", status_code=200)
    async def regenerate(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        page_regeneration: NamedDependency[PageRegeneration],
        streams: NamedDependency[Streams],
        artifact_id: TextId,
        data: JSONBody[RegenerateBody],
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Have a model write a page anew and follow its run, whose answer becomes the page of a new version.

        With `Accept: application/json`: 202 and the run. 409 if the artifact has such a run already.
        """
        return await streams.follow_started(
            request,
            caller,
            partial(page_regeneration.start, caller, artifact_id, data),
            partial(page_regeneration.start_and_watch, caller, artifact_id, data, accumulated=accumulated),
        )


class ArtifactFileController(Controller):
    path = "/artifacts/{artifact_id:str}"
    tags = ("artifacts",)
    opt = CHAT

    @get("/download", media_type="application/octet-stream", opt={OPENAPI_EXTRA: DOWNLOAD_EXTRA})
    async def download(
        self,
        caller: InjectedCaller,
        artifact_files: InjectedArtifactFiles,
        artifact_id: TextId,
        file_format: Annotated[
            FormatName | None,
            QueryParameter(name="format", description="one of the formats of its type; default: the first"),
        ] = None,
        version: OfVersion = None,
    ) -> Response[bytes]:
        """Download an artifact as a file. The headers prevent a browser from displaying it."""
        file = await artifact_files.download(caller, artifact_id, file_format, version)
        headers = {
            "content-disposition": content_disposition(file.name),
            "content-security-policy": DOWNLOAD_POLICY,
            "cache-control": "private, no-store",
        }
        return Response(file.data, media_type="application/octet-stream", headers=headers)

    @get("/preview")
    async def preview(
        self,
        caller: InjectedCaller,
        artifact_files: InjectedArtifactFiles,
        artifact_id: TextId,
        version: OfVersion = None,
    ) -> Success[ArtifactPreview]:
        """The pages of the file with their pictures, or the source where a browser shows that."""
        return success(await artifact_files.preview(caller, artifact_id, version))

    @get("/pages/{page_index:int}", media_type="image/png", opt={OPENAPI_EXTRA: PICTURE_EXTRA})
    async def picture(
        self,
        caller: InjectedCaller,
        artifact_files: InjectedArtifactFiles,
        artifact_id: TextId,
        page_index: Annotated[
            int, PathParameter(ge=1, le=10_000, description="a page of the file, counted from 1")
        ],
        width: Annotated[int, QueryParameter(ge=64, le=2560, description="pixels")] = 1280,
        version: OfVersion = None,
    ) -> Response[bytes]:
        """The picture of a page of the file."""
        data = await artifact_files.picture(caller, artifact_id, page_index, width, version)
        headers = {"content-security-policy": DOWNLOAD_POLICY, "cache-control": "private, max-age=3600"}
        return Response(data, media_type="image/png", headers=headers)

    @post("/save", status_code=201, opt={OPENAPI_EXTRA: TOO_LARGE})
    async def save(
        self,
        caller: InjectedCaller,
        artifact_files: InjectedArtifactFiles,
        artifact_id: TextId,
        data: JSONBody[SaveBody],
    ) -> Success[UploadView]:
        """Save an artifact as a file in your workspace. A taken name gets a number."""
        saved = await artifact_files.save(caller, artifact_id, data.path, data.format)
        return success(saved, "saved in your workspace")
