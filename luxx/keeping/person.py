"""What a user's file says of the user, as it travels. Words only; conversations are `transfer/document.py`'s.

No password, no key and no id of the server it came from.
"""

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from luxx.tools.compositions.rows import MOST_COMPOSITIONS
from luxx.wire.composition import Composition

FORMAT = "luxx.user"
VERSION = 1
PERSON = "person.json"
CONVERSATIONS = "conversations.json"
"""The name under which an import of conversations looks for them in any ZIP file."""

USAGE = "usage.jsonl"
FILES = "files.tar"
MOST_PERSON = 256 * 1024 * 1024


class ToldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A user's defaults, without the provider: it belongs to its server."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    thinking_enabled: bool | None = None
    system_prompt: Annotated[str, Meta(max_length=100_000)] | None = None


class ToldProject(msgspec.Struct, frozen=True, kw_only=True):
    """`conversations` are the ids that they have in this file."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: Annotated[str, Meta(max_length=10_000)] = ""
    conversations: list[str] = []
    created_at: datetime
    updated_at: datetime


class Person(msgspec.Struct, frozen=True, kw_only=True):
    username: str
    email: str | None
    permission_level: int
    created_at: datetime
    settings: ToldSettings = ToldSettings()
    projects: list[ToldProject] = []
    compositions: Annotated[list[Composition], Meta(max_length=MOST_COMPOSITIONS)] = []


class ToldUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, for the user to keep: it is not imported, what was spent was spent elsewhere."""

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
