"""What an iteration works with, and what a completion left behind: the words of `iteration.py`."""

from collections.abc import Callable

import msgspec
from sqlalchemy import Connection

from luxx.errors import LuxxError, ProviderError
from luxx.providers.adapter import Target
from luxx.providers.catalog import ModelCard
from luxx.runs.events import Entry
from luxx.tools.core import ToolContext
from luxx.usage.ledger import UsageEntry
from luxx.wire.tool import ToolSpec


class Cut(Exception):
    """A completion ended before its end: its open steps, closed with what they had, and what it used."""

    def __init__(self, completed: "Completed", because: ProviderError | None) -> None:
        super().__init__()
        self.completed = completed
        self.because = because


class Completed(msgspec.Struct, frozen=True):
    """A completion that is not yet in the log: its closing entries, and its line of the ledger if a provider
    may bill it."""

    entries: list[Entry]
    usage: UsageEntry | None


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """Who a run works with. `context` is what the user might do as the drive began; `context_in` reads that
    anew, rules too, so that a demotion counts at once. `skills` is what the model is told of them."""

    target: Target
    card: ModelCard
    tools: list[ToolSpec]
    skills: str
    context: ToolContext
    context_in: Callable[[Connection], ToolContext | LuxxError]
