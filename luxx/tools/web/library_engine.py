"""One engine of the library `ddgs`, in a process of its own, with its network taken away.

Its search is run with a stand-in for its connection: the first time this notes what would be sent, the
second time it hands over the page that was fetched for it.
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
    """The engine is about to send something."""


class _Page:
    """The answer to the engine's one request."""

    def __init__(self, text: str) -> None:
        self.status_code = 200
        self.text = text
        self.content = text.encode()


class _Connection:
    """Stands in for the library's connection; without a `page` it notes the request and ends the search."""

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
    """Cookies and headers that an engine sets are not sent."""

    def set_cookies(self, *_ignored: Any) -> None:
        """Forgotten."""

    def headers_update(self, *_ignored: Any) -> None:
        """Forgotten."""


def main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineRequest)
    engines: Any = importlib.import_module("ddgs.engines")
    limit(int(sys.argv[1]), int(sys.argv[2]))
    answer = run_engine(engines.ENGINES["text"], question, sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.buffer.flush()


def run_engine(engines: dict[str, Any], question: EngineRequest, page: bytes) -> EngineResponse:
    """What is to be sent, or what the page holds."""
    engine_class = engines.get(question.engine)
    if engine_class is None:
        return EngineResponse(problem="the library does not know it any more")
    engine = engine_class.__new__(engine_class)
    connection = _Connection(storable(decode(page, "utf-8").text) if question.is_answered else None)
    engine.http_client = connection
    try:
        results: list[Any] = engine.search(question.query, region="us-en", safesearch="moderate") or []
    except _RequestCaptured:
        return connection.captured
    except Exception as error:
        return EngineResponse(problem=f"its page cannot be read ({type(error).__name__})")
    sources = [source_of(str(one.href), str(one.title), str(one.body)) for one in results[:MAX_RESULTS]]
    return EngineResponse(sources=sources)


if __name__ == "__main__":
    main()
