"""What requests say about artifacts and what the API shows of them: structs only."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from luxx.features.artifacts.citations import CitedSource
from luxx.features.artifacts.models import NAME_LENGTH
from luxx.features.artifacts.source import SourceFile
from luxx.infra.documents.render.themes import THEMES
from luxx.infra.strict_json import IN_NAME, NAME
from luxx.wire.artifacts import ArtifactProblem, ArtifactType

MAX_NUMBER = 2**31 - 1
MAX_TEXT = 10 * 1024 * 1024
MAX_INSTRUCTIONS = 10_000

ArtifactName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH, pattern=NAME, description=IN_NAME)]
ThemeName = Literal["", "clear", "forest", "night", "paper"]
assert set(get_args(ThemeName)) == {"", *THEMES}
LanguageTag = Annotated[
    str,
    Meta(
        max_length=35,
        pattern=r"^([A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*)?$(?!\n)",
        description="a language such as de or zh-CN, or empty",
    ),
]
SubjectId = Annotated[str, Meta(min_length=1, max_length=36)]
VersionNumber = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
PageIndex = Annotated[int, Meta(ge=1, le=10_000)]
SourceText = Annotated[str, Meta(max_length=MAX_TEXT)]


class NewArtifact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An artifact to create: `content`, or for code also `files`; at most one of the three ids."""

    type: ArtifactType
    name: ArtifactName
    content: SourceText | None = None
    files: Annotated[list[SourceFile], Meta(max_length=1_000)] | None = None
    theme: ThemeName = ""
    language: LanguageTag = ""
    conversation_id: SubjectId | None = None
    room_id: SubjectId | None = None
    task_id: SubjectId | None = None


class ArtifactChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change. Another theme or language makes a new version."""

    name: ArtifactName | UnsetType = UNSET
    theme: ThemeName | UnsetType = UNSET
    language: LanguageTag | UnsetType = UNSET


class NewContent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New text of a page, or of the whole artifact; `base_version` is the version that was read."""

    page: PageIndex | None = None
    content: SourceText
    base_version: VersionNumber


class RegenerateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page that a model writes anew, and what it should do."""

    page_index: PageIndex
    instructions: Annotated[str, Meta(min_length=1, max_length=MAX_INSTRUCTIONS)]


class ArtifactSubject(StrEnum):
    """Where an artifact was made."""

    CONVERSATION = "conversation"
    ROOM = "room"
    TASK = "task"


class ArtifactRight(StrEnum):
    """The caller's right to an artifact. Each includes the ones before it."""

    READ = "read"
    EDIT = "edit"
    OWNER = "owner"


class ArtifactView(Struct, frozen=True, kw_only=True):
    """An artifact; `head` is its newest version, `pages` and `problems` are those of that version."""

    id: str
    user_id: int
    type: ArtifactType
    name: str
    subject_kind: ArtifactSubject | None
    subject_id: str | None
    step_id: str | None
    head: int
    pages: int
    problems: list[ArtifactProblem]
    theme: str
    language: str
    formats: list[str]
    right: ArtifactRight
    run_id: str | None
    download_url: str
    preview_url: str
    created_at: datetime
    updated_at: datetime


class ArtifactPage(Struct, frozen=True, kw_only=True):
    """The text of a page. `id` stays the same when the text changes. `path`: of a file of code."""

    index: int
    id: str
    content: str
    path: str | None = None


class ArtifactContent(Struct, frozen=True, kw_only=True):
    """The source of a version: all of it, and its pages; or one page."""

    version: int
    content: str
    pages: list[ArtifactPage]


class SavedContent(Struct, frozen=True, kw_only=True):
    """The version that was saved; the one before if nothing changed."""

    version: int
    pages: int
    pages_changed: list[int]
    problems: list[ArtifactProblem]


class AuthorKind(StrEnum):
    """Who made a version."""

    PERSON = "person"
    MODEL = "model"


class VersionAuthor(Struct, frozen=True, kw_only=True):
    """`name`: the user, or the agent or model."""

    kind: AuthorKind
    name: str


class VersionView(Struct, frozen=True, kw_only=True):
    """A version, with the tool call's run if one made it."""

    version: int
    author: VersionAuthor
    note: str
    run_id: str | None
    pages: int
    pages_changed: list[int]
    problems: list[ArtifactProblem]
    created_at: datetime


class PageChange(StrEnum):
    """What became of a page from one version to another."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class PageDiff(Struct, frozen=True, kw_only=True):
    """The change of a page; `index` is its place in the newer version, or in the older one if it was removed.
    `diff` is a unified diff."""

    index: int
    change: PageChange
    diff: str


class ArtifactDiff(Struct, frozen=True, kw_only=True):
    """The pages that differ, in their order."""

    pages: list[PageDiff]


class PreviewPage(Struct, frozen=True, kw_only=True):
    """A page of the file, or of the source where there is no file to show. `source_page` is the page of the
    source that it comes from. `thumbnail_url`: its picture; null where the page is shown from `content`."""

    index: int
    source_page: int
    id: str
    sha256: str
    thumbnail_url: str | None
    content: str
    path: str | None = None
    problems: list[ArtifactProblem]


class ArtifactPreview(Struct, frozen=True, kw_only=True):
    """What is shown of a version. `rendered_by`: what made the file; null where none was made. `problem`: why
    there are no pictures."""

    type: ArtifactType
    version: int
    rendered_by: str | None
    pages: list[PreviewPage]
    problem: str | None = None


class PageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a version as its row names it: the text is the part with this hash."""

    id: str
    sha256: str
    path: str = ""


class ArtifactSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is made with besides the pages. `sources`: those that a report may cite."""

    theme: str = ""
    language: str = ""
    sources: list[CitedSource] = []


class VersionAuthorRow(msgspec.Struct, frozen=True, kw_only=True):
    """The author of a new version, with the tool call that makes it."""

    kind: AuthorKind
    name: str
    user_id: int | None = None
    run_id: str | None = None
    call_id: str | None = None
