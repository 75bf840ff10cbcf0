"""What is said between the server and the processes that read pages of search engines."""

import msgspec

from luxx.wire.step import Source

SEARCH_URL = "https://html.duckduckgo.com/html/"
MAX_ANSWER = 1_000_000
"""Bytes that such a process may answer."""


class NoRequest(msgspec.Struct, frozen=True):
    """The reader is told nothing but the page."""


class ResultPage(msgspec.Struct, frozen=True, kw_only=True):
    """`is_empty`: it says that there are no results. Neither that nor results: it is another page."""

    sources: list[Source] = []
    is_empty: bool = False


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`is_answered`: the page on stdin is the answer to what was asked before."""

    engine: str
    query: str
    is_answered: bool = False


class EngineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What to send (a `form` by POST), or what was found; `problem` where the library fails."""

    url: str = ""
    parameters: dict[str, str] = {}
    form: dict[str, str] | None = None
    sources: list[Source] = []
    problem: str = ""
