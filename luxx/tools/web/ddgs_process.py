"""Runs one search engine of the library `ddgs`, in a separate process without network access.

The engine gets a replacement for its HTTP client. In the first run it captures the request that the server
has to send; in the second run it returns the page that the server fetched.
"""

import importlib
import sys
from typing import Any

import msgspec

from luxx.infra.documents.bounds import limit, storable
from luxx.infra.documents.charset import decode
from luxx.tools.web.search_pages import EngineRequest, EngineResponse
from luxx.wire.step import source_of

MAX_RESULTS = 50


class _RequestCaptured(Exception):
    """Ends a search as soon as the engine sends its request."""


class _Page:
    """The response to the engine's request."""

    def __init__(self, text: str) -> None:
        self.status_code = 200
        self.text = text
        self.content = text.encode()


class _Connection:
    """Replaces the library's HTTP client. Without a `page` it captures the request and ends the search."""

    def __init__(self, page: str | None) -> None:
        self.client = _NullClient()
        self.captured = EngineResponse()
        self._page = page

    def request(self, method: str, url: str, **options: dict[str, str] | None) -> _Page:
        if self._page is not None:
            return _Page(self._page)
        form = _texts(options.get("data")) if method == "POST" else None
        self.captured = EngineResponse(url=url, parameters=_texts(options.get("params")), form=form)
        raise _RequestCaptured


def _texts(fields: dict[str, str] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in (fields or {}).items()}


class _NullClient:
    """Ignores the cookies and headers that an engine sets."""

    def set_cookies(self, *_ignored: Any) -> None: ...

    def headers_update(self, *_ignored: Any) -> None: ...


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineRequest)
    engines: Any = importlib.import_module("ddgs.engines")
    limit(int(sys.argv[1]), int(sys.argv[2]))
    response = run_engine(engines.ENGINES["text"], request, sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(response))
    sys.stdout.buffer.flush()


def run_engine(engines: dict[str, Any], request: EngineRequest, page: bytes) -> EngineResponse:
    """The request that the server has to send, or the results of the page."""
    engine_class = engines.get(request.engine)
    if engine_class is None:
        return EngineResponse(problem="the ddgs library no longer has this engine")
    engine = engine_class.__new__(engine_class)
    connection = _Connection(storable(decode(page, "utf-8").text) if request.is_answered else None)
    engine.http_client = connection
    try:
        results: list[Any] = engine.search(request.query, region="us-en", safesearch="moderate") or []
    except _RequestCaptured:
        return connection.captured
    except Exception as error:
        return EngineResponse(problem=f"its page cannot be read ({type(error).__name__})")
    sources = [source_of(str(one.href), str(one.title), str(one.body)) for one in results[:MAX_RESULTS]]
    return EngineResponse(sources=sources)


if __name__ == "__main__":
    main()
