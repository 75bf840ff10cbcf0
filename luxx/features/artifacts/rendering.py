"""Files and pictures of versions, made by the renderer and kept in a cache; and what it finds wrong in them.

A renderer that is missing or busy leaves a version unchecked. One that fails or takes too long is a problem
of the version: the source is saved all the same.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from weakref import WeakValueDictionary

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from luxx.errors import LuxxError, NotFound, Unavailable
from luxx.features.artifacts.downloads import FORMATS, TEXT_FORMATS, DownloadFile, file_name, text_file
from luxx.features.artifacts.reports import pages_of_files, read_check
from luxx.features.artifacts.rows import Version, artifacts, read_version, renders, versions
from luxx.features.artifacts.source import MARKDOWN
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import ArtifactsConfig
from luxx.infra.documents.render.process import RenderFailed, RenderProcess
from luxx.infra.documents.render.request import PICTURE_WIDTH, Rendered, RenderRequest, RenderSource
from luxx.infra.store.engine import Store
from luxx.wire.artifacts import ArtifactProblem, ArtifactType

MIB = 1024 * 1024
FAILED_SECONDS, MOST_FAILED = 300.0, 200
"""How long a source of which no file could be made is not tried again, and how many are known."""
MAX_KEPT_BYTES = 4 * MIB
"""Bytes of a file with its pictures that are kept in the transaction that writes the version."""

WIDTHS = (320, 640, 960, PICTURE_WIDTH, 1920, 2560)
"""The widths of pictures that are made; another one gets the next larger."""

USED_AGAIN = timedelta(hours=1)
"""How exactly the time of the last use of a file is known."""


class FilePageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a file; `sha256` is that of its picture with PICTURE_WIDTH pixels, or empty."""

    index: int
    source_page: int
    text: str
    sha256: str = ""


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file."""

    renderer: str
    pages: list[FilePageInfo]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check: the file that was made, or the source as text; and what is wrong with it."""

    file: DownloadFile
    problems: list[ArtifactProblem]
    format: str
    rendered: Rendered | None = None


_info = msgspec.json.Decoder(FileInfo)


@dataclass(frozen=True, slots=True)
class ArtifactRendering:
    """One per process."""

    store: Store
    process: RenderProcess
    config: ArtifactsConfig
    _making: WeakValueDictionary[tuple[str, int, int], asyncio.Lock] = field(
        default_factory=WeakValueDictionary[tuple[str, int, int], asyncio.Lock], init=False
    )
    """Who makes the pictures of a version and width; the others wait for them."""
    _failed: dict[str, tuple[float, LuxxError]] = field(
        default_factory=dict[str, tuple[float, LuxxError]], init=False
    )
    """Until when a source counts as one of which no file can be made, and why, by the hash of the request."""

    async def make(
        self,
        type_: ArtifactType,
        name: str,
        version: Version,
        format_: str,
        user_id: int,
        *,
        width: int | None = None,
    ) -> Rendered:
        """A file, with pictures of all pages if a width is given. Raises Unavailable, RenderFailed."""
        source = RenderSource(
            type=type_,
            name=name,
            pages=tuple(page.text for page in pages_of_files(type_, version)),
            theme=version.settings.theme,
            language=version.settings.language,
        )
        pictures = () if width is None else None
        request = RenderRequest(
            source=source, format=format_, pictures=pictures, width=width or PICTURE_WIDTH
        )
        # Otherwise each look at a source that takes too long would take that time again.
        key, now = hashlib.sha256(msgspec.msgpack.encode(source)).hexdigest() + format_, time.monotonic()
        until, error = self._failed.get(key, (0.0, None))
        if error is not None and now < until:
            raise error
        try:
            return _with_source_pages(await self.process.render(request, user_id), len(version.pages))
        except RenderFailed as failure:
            if len(self._failed) >= MOST_FAILED:
                self._failed.clear()
            self._failed[key] = time.monotonic() + FAILED_SECONDS, failure
            raise

    async def check(self, type_: ArtifactType, name: str, version: Version, user_id: int) -> Checked:
        """Makes the default file of a version that may not be stored yet. Raises nothing but cancellation."""
        chosen = FORMATS[type_][0]
        problems: list[ArtifactProblem] = []
        if type_ == ArtifactType.REPORT:
            citations = await self.store.read_rows(lambda connection: read_check(connection, version))
            problems = await asyncio.to_thread(citations.problems)
            settings = msgspec.structs.replace(version.settings, sources=citations.sources)
            version = msgspec.structs.replace(version, settings=settings)
        if chosen not in TEXT_FORMATS and type_ != ArtifactType.DIAGRAM:
            width = PICTURE_WIDTH if type_ in MARKDOWN else None
            try:
                rendered = await self.make(type_, name, version, chosen, user_id, width=width)
            except Unavailable:
                pass
            except LuxxError as error:
                problems.append(ArtifactProblem(page=None, kind="render_failed", text=error.message))
            else:
                file = DownloadFile(file_name(name, chosen), rendered.data)
                problems += _problems(rendered)
                return Checked(file=file, problems=problems, format=chosen, rendered=rendered)
        chosen = next(one for one in FORMATS[type_] if one in TEXT_FORMATS)
        file = await asyncio.to_thread(text_file, type_, name, version, chosen)
        return Checked(file=file, problems=problems, format=chosen)

    async def check_stored(self, artifact_id: str, number: int, user_id: int) -> list[ArtifactProblem]:
        """Makes the default file of a version, and stores the problems with it."""

        def read(connection: Connection) -> tuple[ArtifactType, str, Version] | None:
            named = select(artifacts.c.type, artifacts.c.name).where(artifacts.c.id == artifact_id)
            row = connection.execute(named).one_or_none()
            if row is None:
                return None
            return ArtifactType(row.type), row.name, read_version(connection, artifact_id, number)

        try:
            found = await self.store.read_rows(read)
        except NotFound:
            return []
        if found is None:
            return []
        checked = await self.check(*found, user_id)

        def write(connection: Connection) -> None:
            is_it = versions.c.artifact_id == artifact_id, versions.c.number == number
            stored = msgspec.json.encode(checked.problems).decode()
            updated = connection.execute(update(versions).where(*is_it).values(problems=stored))
            if updated.rowcount and checked.rendered is not None:
                self.keep(connection, artifact_id, number, checked.format, checked.rendered, PICTURE_WIDTH)

        with suppress(IntegrityError):
            await self.store.write_rows(write)
        return checked.problems

    async def file(
        self, type_: ArtifactType, name: str, version: Version, format_: str, user_id: int
    ) -> bytes:
        """The file of a stored version, from the cache or made now. Raises Unavailable, RenderFailed."""
        if type_ == ArtifactType.DIAGRAM:
            problem = "a diagram is drawn by the browser: download it on its page, or take the format mmd"
            raise Unavailable(problem, kind="renderer_missing")
        kept = await self._kept(version, format_, 0, 0)
        if kept is not None:
            return kept[0]
        rendered = await self.make(type_, name, version, format_, user_id)
        await self._keep(version, format_, rendered, 0)
        return rendered.data

    async def pages(self, type_: ArtifactType, name: str, version: Version, user_id: int) -> FileInfo:
        """The pages of the default file of a stored version. Raises Unavailable, RenderFailed."""
        format_ = FORMATS[type_][0]
        kept = await self._kept(version, format_, 0, 0)
        if kept is not None and all(page.sha256 for page in kept[1].pages):
            return kept[1]
        rendered = await self.make(type_, name, version, format_, user_id, width=PICTURE_WIDTH)
        await self._keep(version, format_, rendered, PICTURE_WIDTH)
        return _info_of(rendered, PICTURE_WIDTH)

    async def picture(
        self, type_: ArtifactType, name: str, version: Version, index: int, width: int, user_id: int
    ) -> bytes:
        """The PNG of a page of the default file. Raises NotFound, Unavailable, RenderFailed."""
        if type_ not in MARKDOWN:
            raise NotFound("artifacts of this type have no pictures of pages", kind="page_not_found")
        format_ = FORMATS[type_][0]
        chosen = next(one for one in WIDTHS if one >= width)
        kept = await self._kept(version, format_, index, chosen)
        if kept is not None:
            return kept[0]
        of_version = version.artifact_id, version.number, chosen
        async with self._making.setdefault(of_version, asyncio.Lock()):
            kept = await self._kept(version, format_, index, chosen)
            if kept is not None:
                return kept[0]
            rendered = await self.make(type_, name, version, format_, user_id, width=chosen)
            await self._keep(version, format_, rendered, chosen)
        pictures = {page.index: page.picture for page in rendered.pages}
        if not pictures.get(index):
            raise NotFound(f"the file has no page {index}", kind="page_not_found")
        return pictures[index]

    async def _kept(
        self, version: Version, format_: str, page: int, width: int
    ) -> tuple[bytes, FileInfo] | None:
        is_it = (
            renders.c.artifact_id == version.artifact_id,
            renders.c.version == version.number,
            renders.c.format == format_,
            renders.c.page == page,
            renders.c.width == width,
        )
        query = select(renders.c.data, renders.c.info, renders.c.used_at).where(*is_it)
        row = await self.store.read_rows(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            return None
        if row.used_at < utc_now() - USED_AGAIN:
            used = update(renders).where(*is_it).values(used_at=utc_now())
            await self.store.write_rows(lambda connection: connection.execute(used))
        return row.data, _info.decode(row.info)

    async def _keep(self, version: Version, format_: str, rendered: Rendered, width: int) -> None:
        # The artifact may have been deleted or renamed, or another process may have kept the same file.
        with suppress(IntegrityError):
            await self.store.write_rows(
                lambda connection: self.keep(
                    connection, version.artifact_id, version.number, format_, rendered, width
                )
            )

    def keep_checked(self, connection: Connection, draft: Version, checked: Checked) -> None:
        """Keeps the file of a version in the transaction that writes this, unless it is large."""
        rendered = checked.rendered
        if rendered is None:
            return
        if len(rendered.data) + sum(len(page.picture) for page in rendered.pages) <= MAX_KEPT_BYTES:
            self.keep(connection, draft.artifact_id, draft.number, checked.format, rendered, PICTURE_WIDTH)

    def keep(
        self,
        connection: Connection,
        artifact_id: str,
        number: int,
        format_: str,
        rendered: Rendered,
        width: int,
    ) -> None:
        """Keeps a file with its pictures of this width, and deletes the oldest files beyond the limit."""
        if not self.config.cache_mb:
            return
        info = msgspec.json.encode(_info_of(rendered, width)).decode()
        of_version: dict[str, object] = {"artifact_id": artifact_id, "version": number, "format": format_}
        rows = [_row(of_version, 0, 0, rendered.renderer, rendered.data, info)]
        empty = msgspec.json.encode(FileInfo(renderer=rendered.renderer, pages=[])).decode()
        rows += [
            _row(of_version, page.index, width, rendered.renderer, page.picture, empty)
            for page in rendered.pages
            if page.picture
        ]
        is_it = renders.c.artifact_id == artifact_id, renders.c.version == number, renders.c.format == format_
        is_replaced = renders.c.page == 0
        if width:
            is_replaced = is_replaced | (renders.c.width == width)
        connection.execute(delete(renders).where(*is_it, is_replaced))
        connection.execute(insert(renders), rows)
        self._trim(connection)

    def _trim(self, connection: Connection) -> None:
        total = int(connection.scalar(select(func.coalesce(func.sum(renders.c.size), 0))) or 0)
        excess = total - self.config.cache_mb * MIB
        if excess <= 0:
            return
        key = (renders.c.artifact_id, renders.c.version, renders.c.format, renders.c.page, renders.c.width)
        oldest = connection.execute(select(*key, renders.c.size).order_by(renders.c.used_at))
        gone: list[Sequence[object]] = []
        for *values, size in oldest:
            if excess <= 0:
                break
            gone.append(values)
            excess -= size
        connection.execute(delete(renders).where(tuple_(*key).in_(gone)))


def _info_of(rendered: Rendered, width: int) -> FileInfo:
    pages = [
        FilePageInfo(
            index=page.index,
            source_page=page.source_page,
            text=page.text,
            sha256=hashlib.sha256(page.picture).hexdigest()
            if page.picture and width == PICTURE_WIDTH
            else "",
        )
        for page in rendered.pages
    ]
    return FileInfo(renderer=rendered.renderer, pages=pages)


def _row(
    of_version: dict[str, object], page: int, width: int, renderer: str, data: bytes, info: str
) -> dict[str, object]:
    return {
        **of_version, "page": page, "width": width, "renderer": renderer[:200],
        "sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "info": info, "data": data,
        "used_at": utc_now(),
    }  # fmt: skip


def _with_source_pages(rendered: Rendered, count: int) -> Rendered:
    """The file as if its references, which are no page of the source, belonged to the last one."""
    pages = tuple(
        msgspec.structs.replace(page, source_page=min(page.source_page, count)) for page in rendered.pages
    )
    problems = tuple(
        one if one.page is None or one.page <= count else msgspec.structs.replace(one, page=None)
        for one in rendered.problems
    )
    return msgspec.structs.replace(rendered, pages=pages, problems=problems)


def _problems(rendered: Rendered) -> list[ArtifactProblem]:
    return [ArtifactProblem(page=one.page, kind=one.kind, text=one.text) for one in rendered.problems]
