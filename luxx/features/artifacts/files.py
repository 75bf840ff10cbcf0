"""Downloads, previews and copies in the workspace of artifacts, for who may read them."""

import asyncio
from dataclasses import dataclass

from luxx.domain.accounts.caller import Caller
from luxx.domain.files.upload import Uploads, UploadView
from luxx.errors import Conflict, Unavailable
from luxx.features.artifacts.downloads import (
    TEXT_FORMATS,
    DownloadFile,
    check_format,
    file_name,
    text_file,
)
from luxx.features.artifacts.rendering import ArtifactRendering, FileInfo
from luxx.features.artifacts.rows import Version
from luxx.features.artifacts.service import ArtifactService
from luxx.features.artifacts.source import MARKDOWN
from luxx.features.artifacts.views import ArtifactPreview, PreviewPage
from luxx.infra.documents.render.process import RenderFailed
from luxx.wire.artifacts import ArtifactType


@dataclass(frozen=True, slots=True)
class ArtifactFiles:
    """One per process."""

    service: ArtifactService
    rendering: ArtifactRendering
    uploads: Uploads

    async def download(
        self, caller: Caller, artifact_id: str, format_: str | None, number: int | None
    ) -> DownloadFile:
        """A file of a version; of the newest one without a number. Raises NotFound, InvalidInput for a format
        that its type does not have, Unavailable where the renderer is missing,
        Conflict where it failed."""
        row, version = await self.service.read(caller, artifact_id, number)
        type_ = ArtifactType(row.type)
        chosen = check_format(type_, format_)
        if chosen in TEXT_FORMATS:
            return await asyncio.to_thread(text_file, type_, row.name, version, chosen)
        try:
            data = await self.rendering.file(type_, row.name, version, chosen, caller.user_id)
        except RenderFailed as error:
            raise Conflict(error.message, kind=error.kind) from error
        return DownloadFile(file_name(row.name, chosen), data)

    async def preview(self, caller: Caller, artifact_id: str, number: int | None) -> ArtifactPreview:
        """What is shown of a version: the pages of its file, or those of the source where the browser shows
        that, or where no file can be made. Raises NotFound."""
        row, version = await self.service.read(caller, artifact_id, number)
        type_ = ArtifactType(row.type)
        if type_ not in MARKDOWN:
            return source_preview(type_, version)
        try:
            info = await self.rendering.pages(type_, row.name, version, caller.user_id)
        except (Unavailable, RenderFailed) as error:
            return source_preview(type_, version, error.message)
        return _file_preview(type_, version, info)

    async def picture(
        self, caller: Caller, artifact_id: str, index: int, width: int, number: int | None
    ) -> bytes:
        """The picture of a page of the file, a PNG. Raises NotFound, Unavailable, or Conflict if the
        renderer failed."""
        row, version = await self.service.read(caller, artifact_id, number)
        type_ = ArtifactType(row.type)
        try:
            return await self.rendering.picture(type_, row.name, version, index, width, caller.user_id)
        except RenderFailed as error:
            raise Conflict(error.message, kind=error.kind) from error

    async def save(self, caller: Caller, artifact_id: str, path: str, format_: str | None) -> UploadView:
        """Stores a download in the caller's workspace; a taken name gets a number. A path that ends in `/`
        names a folder. Raises what `download` raises, and TooLarge past the quota."""
        file = await self.download(caller, artifact_id, format_, None)
        folder, _, name = path.strip().rpartition("/")
        extension = file.name.rpartition(".")[2]
        return await self.uploads.store(
            caller, folder, file_name(name, extension) if name.strip() else file.name, file.data
        )


def source_preview(type_: ArtifactType, version: Version, problem: str | None = None) -> ArtifactPreview:
    """The pages of the source, where there is no file to show pictures of. `problem`: why there is none."""
    return ArtifactPreview(
        type=type_,
        version=version.number,
        rendered_by=None,
        pages=[
            PreviewPage(
                index=index,
                source_page=index,
                id=entry.id,
                sha256=entry.sha256,
                thumbnail_url=None,
                content=page.text,
                path=page.path or None,
                problems=[one for one in version.problems if one.page == index],
            )
            for index, (entry, page) in enumerate(zip(version.entries, version.pages, strict=True), 1)
        ],
        problem=problem,
    )


def _file_preview(type_: ArtifactType, version: Version, info: FileInfo) -> ArtifactPreview:
    base = f"/artifacts/{version.artifact_id}/pages"
    count = len(version.entries)
    return ArtifactPreview(
        type=type_,
        version=version.number,
        rendered_by=info.renderer,
        pages=[
            PreviewPage(
                index=page.index,
                source_page=page.source_page,
                id=version.entries[min(max(page.source_page, 1), count) - 1].id,
                sha256=page.sha256,
                thumbnail_url=f"{base}/{page.index}?version={version.number}",
                content=page.text,
                problems=[one for one in version.problems if one.page == page.source_page],
            )
            for page in info.pages
        ],
    )
