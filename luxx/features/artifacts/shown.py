"""Artifacts and versions as the API shows them, from their rows."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.features.artifacts.access import ArtifactRecord, right_to
from luxx.features.artifacts.downloads import FORMATS
from luxx.features.artifacts.rows import (
    Version,
    artifacts,
    entries_decoder,
    numbers_decoder,
    problems_decoder,
    settings_decoder,
    versions,
)
from luxx.features.artifacts.views import (
    ArtifactSubject,
    ArtifactView,
    AuthorKind,
    SavedContent,
    VersionAuthor,
    VersionView,
)
from luxx.wire.artifacts import ArtifactType


def saved_content(version: Version) -> SavedContent:
    """A version that was saved."""
    return SavedContent(
        version=version.number,
        pages=len(version.pages),
        pages_changed=version.pages_changed,
        problems=version.problems,
    )


def version_view(row: Any) -> VersionView:
    """A version as the API shows it."""
    return VersionView(
        version=row.number,
        author=VersionAuthor(kind=AuthorKind(row.author_kind), name=row.author_name),
        note=row.note,
        run_id=row.run_id,
        pages=len(entries_decoder.decode(row.pages)),
        pages_changed=numbers_decoder.decode(row.pages_changed),
        problems=problems_decoder.decode(row.problems),
        created_at=row.created_at,
    )


def view_of(session: Session, caller: Caller, row: ArtifactRecord) -> ArtifactView:
    """An artifact as the API shows it."""
    return views_of(session, caller, [row])[0]


def views_of(session: Session, caller: Caller, rows: Sequence[ArtifactRecord]) -> list[ArtifactView]:
    """Artifacts as the API shows them, each with its newest version."""
    heads = select(versions).join(
        artifacts, (artifacts.c.id == versions.c.artifact_id) & (artifacts.c.head == versions.c.number)
    )
    found = session.connection().execute(heads.where(artifacts.c.id.in_([row.id for row in rows])))
    by_id = {one.artifact_id: one for one in found}
    return [_view(session, caller, row, by_id[row.id]) for row in rows]


def _view(session: Session, caller: Caller, row: Any, head: Any) -> ArtifactView:
    settings = settings_decoder.decode(head.settings)
    kind, subject_id = next(
        (
            (kind, value)
            for kind in ArtifactSubject
            if (value := getattr(row, f"{kind.value}_id")) is not None
        ),
        (None, None),
    )
    type_ = ArtifactType(row.type)
    return ArtifactView(
        id=row.id,
        user_id=row.user_id,
        type=type_,
        name=row.name,
        subject_kind=kind,
        subject_id=subject_id,
        step_id=row.step_id,
        head=row.head,
        pages=len(entries_decoder.decode(head.pages)),
        problems=problems_decoder.decode(head.problems),
        theme=settings.theme,
        language=settings.language,
        formats=list(FORMATS[type_]),
        right=right_to(session, caller, row),
        run_id=row.run_id,
        download_url=f"/artifacts/{row.id}/download",
        preview_url=f"/artifacts/{row.id}/preview",
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
