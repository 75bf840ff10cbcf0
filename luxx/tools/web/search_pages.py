"""Messages between the server and the process that parses pages of search engines."""

import msgspec

from luxx.wire.source import Source

DUCKDUCKGO = "DuckDuckGo"
SEARCH_URL = "https://html.duckduckgo.com/html/"
MAX_ANSWER = 1_000_000
"""Limit in bytes for the output of the process."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`engine`: DUCKDUCKGO or an engine of the library `ddgs`. `is_answered`: a page to parse follows.

    Otherwise the process captures the request that the library's engine sends.
    """

    engine: str
    query: str
    is_answered: bool = False


class EngineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The request to send (with a `form`: by POST), or the results; `problem`: why there is neither."""

    url: str = ""
    parameters: dict[str, str] = {}
    form: dict[str, str] | None = None
    sources: list[Source] = []
    problem: str = ""
