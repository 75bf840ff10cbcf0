"""Messages between the server and the processes that parse pages of search engines."""

import msgspec

from luxx.wire.step import Source

SEARCH_URL = "https://html.duckduckgo.com/html/"
MAX_ANSWER = 1_000_000
"""Limit in bytes for the output of such a process."""


class NoRequest(msgspec.Struct, frozen=True):
    """The process gets no input but the page."""


class ResultPage(msgspec.Struct, frozen=True, kw_only=True):
    """`is_empty`: the page says that there are no results. Without results and this it is another page."""

    sources: list[Source] = []
    is_empty: bool = False


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`is_answered`: the page on stdin is the response to the captured request."""

    engine: str
    query: str
    is_answered: bool = False


class EngineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The request to send (with a `form`: by POST), or the results; `problem`: an error of the library."""

    url: str = ""
    parameters: dict[str, str] = {}
    form: dict[str, str] | None = None
    sources: list[Source] = []
    problem: str = ""
