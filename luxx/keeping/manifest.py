"""What is in a backup and in a user's file, as their manifests say it. Words only.

A version grows when a reader of today could misread what is written.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Size = Annotated[int, Meta(ge=0, le=2**62)]
Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,62}$(?!\n)")]


class Kind(StrEnum):
    """How a column's values stand in a row's JSON: bytes as base64, times as ISO 8601 in UTC."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    BYTES = "bytes"
    TIME = "time"
    JSON = "json"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One file in the archive."""

    name: Annotated[str, Meta(max_length=200)]
    size: Size
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


class Column(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    kind: Kind


class TablePart(msgspec.Struct, frozen=True, kw_only=True):
    """A table: one row a line, an array with a value for each column."""

    name: Name
    columns: list[Column]
    rows: Size
    member: Member


class WorkspacePart(msgspec.Struct, frozen=True, kw_only=True):
    """A user's files as a tar file."""

    user_id: int
    files: Size
    member: Member


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Of a backup. `step` is the database's; `sequences` the last id that a table gave, where it never gives
    one twice. `left_out` names files that could not be taken as they are.
    """

    format: Literal["luxx.backup"]
    version: Annotated[int, Meta(ge=1)]
    luxx: str
    step: Annotated[str, Meta(max_length=32)]
    database: str
    made_at: datetime
    tables: list[TablePart]
    sequences: dict[Name, Size]
    workspaces: list[WorkspacePart]
    secret: Member
    left_out: list[str]

    @property
    def members(self) -> list[Member]:
        parts = [*self.tables, *self.workspaces]
        return [self.secret, *(part.member for part in parts)]


class PersonManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Of a user's file."""

    format: Literal["luxx.user"]
    version: Annotated[int, Meta(ge=1)]
    luxx: str
    made_at: datetime
    person: Member
    conversations: Member
    usage: Member
    files: Member
    file_count: Size
    left_out: list[str]

    @property
    def members(self) -> list[Member]:
        return [self.person, self.conversations, self.usage, self.files]
