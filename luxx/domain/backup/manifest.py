"""The manifests of a backup and of a user export, and the records of a user export.

Increase a version when current readers could misread the new format.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from luxx.tools.compositions.rows import MAX_COMPOSITIONS
from luxx.wire.composition import Composition

Size = Annotated[int, Meta(ge=0, le=2**62)]
Identifier = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,62}$(?!\n)")]


class ColumnKind(StrEnum):
    """How a row's JSON encodes a column's values: bytes as base64, times as ISO 8601 in UTC."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    BYTES = "bytes"
    TIME = "time"
    JSON = "json"


class ArchiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """One file in the archive."""

    name: Annotated[str, Meta(max_length=200)]
    size: Size
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


class Column(msgspec.Struct, frozen=True, kw_only=True):
    name: Identifier
    kind: ColumnKind


class TablePart(msgspec.Struct, frozen=True, kw_only=True):
    """A table: one row per line, as an array with a value for each column."""

    name: Identifier
    columns: list[Column]
    rows: Size
    member: ArchiveMember


class WorkspacePart(msgspec.Struct, frozen=True, kw_only=True):
    """A user's files as a tar file."""

    user_id: int
    files: Size
    member: ArchiveMember


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a backup. `step` is the database's migration step; `sequences` the last id of each
    table that never reuses one. `left_out`: sentences about files and keys that are missing or changed."""

    format: Literal["luxx.backup"]
    version: Annotated[int, Meta(ge=1)]
    luxx: str
    step: Annotated[str, Meta(max_length=32)]
    database: str
    made_at: datetime
    tables: list[TablePart]
    sequences: dict[Identifier, Size]
    workspaces: list[WorkspacePart]
    secret: ArchiveMember
    left_out: list[str]

    @property
    def members(self) -> list[ArchiveMember]:
        parts = [*self.tables, *self.workspaces]
        return [self.secret, *(part.member for part in parts)]


class UserManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a user export."""

    format: Literal["luxx.user"]
    version: Annotated[int, Meta(ge=1)]
    luxx: str
    made_at: datetime
    person: ArchiveMember
    conversations: ArchiveMember
    usage: ArchiveMember
    files: ArchiveMember
    file_count: Size
    left_out: list[str]

    @property
    def members(self) -> list[ArchiveMember]:
        return [self.person, self.conversations, self.usage, self.files]


FORMAT = "luxx.user"
VERSION = 1
PROFILE_FILE = "person.json"
CONVERSATIONS = "conversations.json"
"""The name under which an import looks for conversations in any ZIP file."""

USAGE = "usage.jsonl"
FILES = "files.tar"
MAX_PROFILE_BYTES = 256 * 1024 * 1024


class ExportedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A user's defaults, without the provider, which belongs to its server."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    thinking_enabled: bool | None = None
    system_prompt: Annotated[str, Meta(max_length=100_000)] | None = None


class ExportedProject(msgspec.Struct, frozen=True, kw_only=True):
    """`conversations` are their ids in this file."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: Annotated[str, Meta(max_length=10_000)] = ""
    conversations: list[str] = []
    created_at: datetime
    updated_at: datetime


class UserProfile(msgspec.Struct, frozen=True, kw_only=True):
    username: str
    email: str | None
    permission_level: int
    created_at: datetime
    settings: ExportedSettings = ExportedSettings()
    projects: list[ExportedProject] = []
    compositions: Annotated[list[Composition], Meta(max_length=MAX_COMPOSITIONS)] = []


class ExportedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, for the user's information; it is not imported, because its cost belongs to the other
    server."""

    at: datetime
    model: str
    conversation: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float | None
    is_estimated: bool
