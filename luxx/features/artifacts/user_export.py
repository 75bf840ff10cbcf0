"""The artifacts of a user with their versions in an export of all their data, and their import elsewhere.

An import makes new artifacts, whose versions are numbered from 1. Files are made again. The run that wrote a
version, and what an artifact belongs to other than a conversation, stay behind.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, Row, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.backup.user_export import FeatureExport, ImportedIds
from luxx.domain.conversations.images import MIB
from luxx.errors import InvalidInput, LuxxError, TooLarge
from luxx.features.artifacts.citations import CitedSource
from luxx.features.artifacts.models import NOTE_LENGTH
from luxx.features.artifacts.rows import (
    NewVersion,
    Version,
    add_artifact,
    add_version,
    artifacts,
    bytes_of_user,
    read_version,
    versions,
)
from luxx.features.artifacts.source import SourceLimits, SourcePage, clean, join, size_of, split
from luxx.features.artifacts.views import (
    ArtifactName,
    ArtifactSettings,
    AuthorKind,
    LanguageTag,
    ThemeName,
    VersionAuthorRow,
)
from luxx.infra.clock import new_id
from luxx.infra.config.schema import ArtifactsConfig
from luxx.runs.turn.run_rows import stored_bytes
from luxx.wire.artifacts import ArtifactProblem, ArtifactType

MAX_BYTES = 64 * MIB
"""Bytes of all texts in an export; its reader keeps them in memory."""

MAX_VERSIONS = 10_000
MAX_PAGES = 1_000
"""Of a version; as many as `artifacts` in the configuration allows at most."""

_PROBLEMS = Meta(max_length=10_000)


class ExportedPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`part` is the place of its text in `parts` of the artifact; `path`: of a file of code."""

    part: Annotated[int, Meta(ge=0)]
    path: str = ""


class ExportedVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version. `sources`: what a report may cite."""

    pages: Annotated[list[ExportedPage], Meta(min_length=1, max_length=MAX_PAGES)]
    theme: ThemeName = ""
    language: LanguageTag = ""
    sources: list[CitedSource] = []
    author_kind: AuthorKind
    author_name: Annotated[str, Meta(max_length=200)]
    note: Annotated[str, Meta(max_length=NOTE_LENGTH)] = ""
    problems: Annotated[list[ArtifactProblem], _PROBLEMS] = []
    created_at: datetime


class ExportedArtifact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An artifact with its versions, oldest first. `left_out`: how many there was no room for, the oldest.
    `conversation`: the id in the file of the one that it was made in."""

    type: ArtifactType
    name: ArtifactName
    conversation: str | None = None
    parts: list[str] = []
    versions: Annotated[list[ExportedVersion], Meta(max_length=MAX_VERSIONS)] = []
    left_out: Annotated[int, Meta(ge=0)] = 0
    created_at: datetime
    updated_at: datetime


def read_artifacts(session: Session, caller: Caller, _project_ids: object) -> list[ExportedArtifact]:
    """The artifacts that the user owns, oldest first. Where they have too much text, the newest versions of
    each are kept."""
    connection = session.connection()
    own = select(artifacts).where(artifacts.c.user_id == caller.user_id).order_by(artifacts.c.id)
    left = MAX_BYTES
    exported: list[ExportedArtifact] = []
    for row in connection.execute(own).all():
        one, size = _exported(connection, row, left)
        left -= size
        exported.append(one)
    return exported


def _exported(connection: Connection, row: Row[Any], left: int) -> tuple[ExportedArtifact, int]:
    """An artifact with at most `left` bytes of text, and their number."""
    of_artifact = select(versions).where(versions.c.artifact_id == row.id)
    places: dict[str, int] = {}
    parts: list[str] = []
    found: list[ExportedVersion] = []
    size = left_out = 0
    for stored in connection.execute(of_artifact.order_by(versions.c.number.desc())).all():
        version = read_version(connection, row.id, stored.number)
        new = {entry.sha256: page for entry, page in zip(version.entries, version.pages, strict=True)}
        new = {sha256: page for sha256, page in new.items() if sha256 not in places}
        if left_out or size + size_of([*new.values()]) > left:
            left_out += 1
            continue
        size += size_of([*new.values()])
        for sha256, page in new.items():
            places[sha256] = len(parts)
            parts.append(page.text)
        found.append(_exported_version(version, stored, places))
    artifact = ExportedArtifact(
        type=ArtifactType(row.type),
        name=row.name,
        conversation=row.conversation_id,
        parts=parts,
        versions=found[::-1],
        left_out=left_out,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
    return artifact, size


def _exported_version(version: Version, stored: Row[Any], places: dict[str, int]) -> ExportedVersion:
    return ExportedVersion(
        pages=[ExportedPage(part=places[entry.sha256], path=entry.path) for entry in version.entries],
        theme=msgspec.convert(version.settings.theme, ThemeName),
        language=version.settings.language,
        sources=version.settings.sources,
        author_kind=AuthorKind(version.author_kind),
        author_name=version.author_name,
        note=stored.note,
        problems=version.problems,
        created_at=stored.created_at,
    )


def artifact_export(config: ArtifactsConfig, storage_mb: int) -> FeatureExport:
    """Artifacts in an export. `storage_mb`: what a user may store on the server that imports; 0 is no
    limit."""
    limits = SourceLimits(max_pages=config.max_pages, max_source_kb=config.max_source_kb)

    def add(session: Session, caller: Caller, ids: ImportedIds, value: Any) -> list[str]:
        """Adds artifacts. Returns notes about what was left out. Raises LuxxError for what no server has
        exported."""
        try:
            exported = msgspec.convert(value, list[ExportedArtifact])
            return list(_add_all(session.connection(), caller, ids, exported, limits, storage_mb))
        except (msgspec.MsgspecError, InvalidInput, RecursionError) as error:
            raise LuxxError(f"the artifacts in it cannot be read ({error})") from error

    return FeatureExport(name="artifacts", read=read_artifacts, add=add)


def _add_all(
    connection: Connection,
    caller: Caller,
    ids: ImportedIds,
    exported: list[ExportedArtifact],
    limits: SourceLimits,
    storage_mb: int,
) -> Iterator[str]:
    used = int(connection.scalar(stored_bytes(bytes_of_user), {"user_id": caller.user_id}) or 0)
    for one in exported:
        name = f"the artifact {one.name}"
        new = [_new_version(one, version, base) for base, version in enumerate(one.versions)]
        if one.left_out:
            yield f"{one.left_out} older versions of {name} were left out: the export was too large"
        if not new:
            continue
        size = sum(len(text.encode()) for text in one.parts)
        if storage_mb and used + size > storage_mb * MIB:
            yield f"{name} was left out: the user may store {storage_mb} MiB (limits.storage_mb_per_user)"
            continue
        try:
            for version in new:
                limits.check(version.pages)
        except TooLarge as error:
            yield f"{name} was left out: {error.message}"
            continue
        used += size
        _add_one(connection, caller, ids, one, new)


def _new_version(one: ExportedArtifact, version: ExportedVersion, base: int) -> NewVersion:
    """Raises InvalidInput or MsgspecError for pages that no version of this type has."""
    if any(page.part >= len(one.parts) for page in version.pages):
        raise InvalidInput(f"a page of {one.name} has no text")
    paths = [page.path if one.type == ArtifactType.CODE else "" for page in version.pages]
    given = [SourcePage(one.parts[page.part], path) for page, path in zip(version.pages, paths, strict=True)]
    return NewVersion(
        base=base,
        pages=split(one.type, join(one.type, given)),
        settings=ArtifactSettings(
            theme=version.theme,
            language=version.language,
            sources=[
                CitedSource(number=source.number, address=clean(source.address), title=clean(source.title))
                for source in version.sources
            ],
        ),
        author=VersionAuthorRow(kind=version.author_kind, name=clean(version.author_name)),
        problems=[
            ArtifactProblem(page=found.page, kind=clean(found.kind), text=clean(found.text))
            for found in version.problems
        ],
        note=clean(version.note),
        is_tainted=True,
    )


def _add_one(
    connection: Connection, caller: Caller, ids: ImportedIds, one: ExportedArtifact, new: list[NewVersion]
) -> None:
    artifact_id = new_id()
    columns: dict[str, object] = {
        "id": artifact_id, "tenant_id": caller.tenant_id, "user_id": caller.user_id, "type": one.type.value,
        "name": one.name, "conversation_id": ids.conversations.get(one.conversation or ""),
    }  # fmt: skip
    for version in new:
        if version.base == 0:
            add_artifact(connection, columns, version)
        else:
            add_version(connection, artifact_id, one.type, version, most=len(new))
    is_it = versions.c.artifact_id == artifact_id
    for number, version in enumerate(one.versions, 1):
        made = update(versions).where(is_it, versions.c.number == number)
        connection.execute(made.values(created_at=version.created_at))
    times = {"created_at": one.created_at, "updated_at": one.updated_at}
    connection.execute(update(artifacts).where(artifacts.c.id == artifact_id).values(times))
