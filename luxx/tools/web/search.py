"""Searches of the web: engines asked one after the other until one answers, results once each."""

import re
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from luxx.errors import LuxxError, ToolFailed
from luxx.tools.outcome import describe
from luxx.tools.web.visitors import Visitor
from luxx.wire.source import Source, citable

_TRACKING = re.compile(r"utm_\w+|fbclid|gclid|msclkid|mc_[ce]id")


class SearchEngine(Protocol):
    """`name` is what a person calls it."""

    name: str

    async def search(self, query: str, visitor: Visitor) -> list[Source]:
        """What it finds, best first. Raises LuxxError with the reason where it does not answer."""
        ...


class SearchResults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`sources` are the results, best first."""

    query: str
    engine: str
    sources: list[Source]
    note: str = ""


class WebSearch:
    """One per server. The first engine is asked first; the others only where it fails or finds nothing."""

    def __init__(self, engines: Sequence[SearchEngine]) -> None:
        self.engines = engines

    async def search(self, query: str, most: int, visitor: Visitor) -> SearchResults:
        """At most so many results. Raises ToolFailed where no engine answers."""
        async with visitor.turn():
            return await self._search(query, most, visitor)

    async def _search(self, query: str, most: int, visitor: Visitor) -> SearchResults:
        problems: list[str] = []
        answered = ""
        for engine in self.engines:
            try:
                found = once_each(await engine.search(query, visitor))
            except LuxxError as error:
                problems.append(f"{engine.name}: {error.message}")
                continue
            except Exception as error:
                # Whatever one engine's page brings about, there are others.
                problems.append(f"{engine.name}: {describe(error)}")
                continue
            if found:
                return SearchResults(query=query, engine=engine.name, sources=found[:most])
            answered = answered or engine.name
        if answered:
            return SearchResults(query=query, engine=answered, sources=[], note="Nothing was found.")
        raise ToolFailed(f"no search engine answers just now; try later ({'; '.join(problems)})")


def once_each(found: Sequence[Source]) -> list[Source]:
    """Without what is no web address and without repetitions of the same page."""
    kept: dict[str, Source] = {}
    for source in citable(*found):
        if source.title:
            kept.setdefault(_same(source.url), source)
    return list(kept.values())


def _same(url: str) -> str:
    """One spelling for addresses that lead to the same page."""
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True)
             if not _TRACKING.fullmatch(name)]  # fmt: skip
    host = parts.netloc.lower().removeprefix("www.")
    return f"{host}{parts.path.rstrip('/')}?{urlencode(query)}"
