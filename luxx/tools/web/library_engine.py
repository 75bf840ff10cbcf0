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
from luxx.tools.web.search_pages import EngineAnswer, EngineQuestion
from luxx.wire.step import source_of

MOST = 50


class _Noted(Exception):
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
        self.client = _Jar()
        self.wanted = EngineAnswer()
        self._page = page

    def request(self, method: str, url: str, **told: dict[str, str] | None) -> _Page:
        if self._page is not None:
            return _Page(self._page)
        form = _texts(told.get("data")) if method == "POST" else None
        self.wanted = EngineAnswer(url=url, parameters=_texts(told.get("params")), form=form)
        raise _Noted


def _texts(fields: dict[str, str] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in (fields or {}).items()}


class _Jar:
    """Cookies and headers that an engine sets are not sent."""

    def set_cookies(self, *_told: Any) -> None:
        """Forgotten."""

    def headers_update(self, *_told: Any) -> None:
        """Forgotten."""


def main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineQuestion)
    engines: Any = importlib.import_module("ddgs.engines")
    limit(int(sys.argv[1]), int(sys.argv[2]))
    answer = answered(engines.ENGINES["text"], question, sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.buffer.flush()


def answered(engines: dict[str, Any], question: EngineQuestion, page: bytes) -> EngineAnswer:
    """What is to be sent, or what the page holds."""
    kind = engines.get(question.engine)
    if kind is None:
        return EngineAnswer(problem="the library does not know it any more")
    engine = kind.__new__(kind)
    connection = _Connection(storable(decode(page, "utf-8").text) if question.is_answered else None)
    engine.http_client = connection
    try:
        found: list[Any] = engine.search(question.query, region="us-en", safesearch="moderate") or []
    except _Noted:
        return connection.wanted
    except Exception as error:
        return EngineAnswer(problem=f"its page cannot be read ({type(error).__name__})")
    sources = [source_of(str(one.href), str(one.title), str(one.body)) for one in found[:MOST]]
    return EngineAnswer(sources=sources)


if __name__ == "__main__":
    main()
