"""Changes of one page of an artifact as models ask for them. Pure."""

from enum import StrEnum

import msgspec

from luxx.errors import ToolFailed
from luxx.features.artifacts.rows import Version, changed_pages, page_not_found, with_ids
from luxx.features.artifacts.source import PAGED, SourcePage, join, normalised, pages_of_page
from luxx.features.artifacts.views import ArtifactSettings, AuthorKind
from luxx.wire.artifacts import ArtifactType

MAX_SHOWN = 6_000
"""Characters of a text that a refusal shows to the model."""


class EditPosition(StrEnum):
    """Where `content` goes: in the place of a page, before or after it; or the page is deleted."""

    REPLACE = "replace"
    BEFORE = "before"
    AFTER = "after"
    DELETE = "delete"


class PageEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one page, as a call asks for it."""

    page: int | None
    old_string: str | None
    new_string: str | None
    content: str | None
    position: EditPosition


def changed_text(type_: ArtifactType, head: Version, page: int | None, *, is_newer: bool) -> str:
    """Why a change of an older version is refused, with the text as it is now. `is_newer`: a person
    wrote it."""
    text = join(type_, head.pages)
    if page is not None and page <= len(head.pages):
        text = head.pages[page - 1].text
    more = "" if len(text) <= MAX_SHOWN else "\n(cut; read_artifact has all of it)"
    who = f"{head.author_name} (a person) has changed it" if is_newer else "it was changed"
    return (
        f"nothing was changed: {who}, and version {head.number} is the newest. Keep these changes, and call "
        f"again with base_version {head.number}. It is now:\n{text[:MAX_SHOWN]}{more}"
    )


def edited_pages(type_: ArtifactType, head: Version, edit: PageEdit) -> list[SourcePage]:
    """The pages after a change of one page. Raises ToolFailed, or InvalidInput for what is no source."""
    pages = head.pages
    if edit.old_string is not None or edit.new_string is not None:
        return _replaced_text(type_, pages, edit)
    page = edit.page if edit.page is not None or type_ in PAGED else 1
    if page is None:
        raise ToolFailed(f"name the page to change: the pages are 1 to {len(pages)}")
    if page > len(pages):
        raise page_not_found(page, len(pages))
    index = page - 1
    if edit.position == EditPosition.DELETE:
        return normalised(type_, [*pages[:index], *pages[index + 1 :]])
    if edit.content is None:
        raise ToolFailed("give content, or old_string and new_string")
    if type_ not in PAGED and edit.position != EditPosition.REPLACE:
        raise ToolFailed(f"an artifact of the type {type_.value} has one page; replace it")
    if type_ == ArtifactType.CODE and edit.position != EditPosition.REPLACE:
        raise ToolFailed("a file is added to a program by making the artifact again with all files")
    new = pages_of_page(type_, edit.content, pages[index].path)
    start = index + 1 if edit.position == EditPosition.AFTER else index
    end = page if edit.position == EditPosition.REPLACE else start
    return normalised(type_, [*pages[:start], *new, *pages[end:]])


def _replaced_text(type_: ArtifactType, pages: list[SourcePage], edit: PageEdit) -> list[SourcePage]:
    old, new = edit.old_string, edit.new_string
    if not old or new is None:
        raise ToolFailed("old_string and new_string belong together, and old_string is not empty")
    places = range(len(pages)) if edit.page is None else range(edit.page - 1, min(edit.page, len(pages)))
    counts = {index: pages[index].text.count(old) for index in places if old in pages[index].text}
    if sum(counts.values()) != 1:
        found = (
            "does not occur" if not counts else f"occurs {sum(counts.values())} times; give more of the text"
        )
        raise ToolFailed(f"nothing was changed: old_string {found}. Read the page for its exact text.")
    (index,) = counts
    text = pages[index].text.replace(old, new)
    changed = pages_of_page(type_, text, pages[index].path)
    return normalised(type_, [*pages[:index], *changed, *pages[index + 1 :]])


def draft_of(
    artifact_id: str,
    number: int,
    settings: ArtifactSettings,
    pages: list[SourcePage],
    before: Version | None = None,
) -> Version:
    """A version that is not stored yet."""
    old = [] if before is None else before.entries
    entries = with_ids(old, pages)
    return Version(
        artifact_id=artifact_id,
        number=number,
        settings=settings,
        entries=entries,
        pages=pages,
        problems=[],
        pages_changed=changed_pages(old, entries),
        author_kind=AuthorKind.MODEL.value,
        author_name="",
    )
