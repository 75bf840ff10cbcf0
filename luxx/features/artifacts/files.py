"""Downloads, previews and copies in the workspace of artifacts, for who may read them."""

import asyncio
from dataclasses import dataclass

from luxx.domain.accounts.caller import Caller
from luxx.domain.files.upload import Uploads, UploadView
from luxx.errors import Unavailable
from luxx.features.artifacts.access import ArtifactRecord
from luxx.features.artifacts.downloads import (
    TEXT_FORMATS,
    DownloadFile,
    check_format,
    file_name,
    text_file,
)
from luxx.features.artifacts.rows import Version
from luxx.features.artifacts.service import ArtifactService
from luxx.features.artifacts.views import ArtifactPreview, PreviewPage
from luxx.wire.artifacts import ArtifactType


@dataclass(frozen=True, slots=True)
class ArtifactFiles:
    """One per process."""

    service: ArtifactService
    uploads: Uploads

    async def download(
        self, caller: Caller, artifact_id: str, format_: str | None, number: int | None
    ) -> DownloadFile:
        """A file of a version; of the newest one without a number. Raises NotFound, InvalidInput for a format
        that its type does not have, Unavailable where the renderer is missing or failed."""
        row, version = await self.service.read(caller, artifact_id, number)
        type_ = ArtifactType(row.type)
        chosen = check_format(type_, format_)
        if chosen in TEXT_FORMATS:
            return await asyncio.to_thread(text_file, type_, row.name, version, chosen)
        return DownloadFile(file_name(row.name, chosen), await self._rendered(row, version, chosen))

    async def _rendered(self, row: ArtifactRecord, version: Version, format_: str) -> bytes:
        raise Unavailable(f"this server makes no {format_} files yet", kind="renderer_missing")

    async def preview(self, caller: Caller, artifact_id: str, number: int | None) -> ArtifactPreview:
        """What is shown of a version. Raises NotFound."""
        row, version = await self.service.read(caller, artifact_id, number)
        return source_preview(ArtifactType(row.type), version)

    async def picture(
        self, caller: Caller, artifact_id: str, index: int, width: int, number: int | None
    ) -> bytes:
        """The picture of a page of the file, a PNG. Raises NotFound, Unavailable."""
        await self.service.read(caller, artifact_id, number)
        raise Unavailable("this server draws no pages yet", kind="renderer_missing")

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
