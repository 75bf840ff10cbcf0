"""The row of lists: 20 conversations, and a history of 1,000 messages read page by page, over HTTP."""

import asyncio
import contextlib
import http.client
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
from sqlalchemy.engine import make_url

from luxx.infra.store.engine import open_engine
from tests.bench.figures import Figures
from tests.bench.load import Broken
from tests.bench.processes import Api, MeasuredServer, free_port, luxx_server, started
from tests.bench.upstream import Upstream
from tests.seeding import TextGenerator, seed

CONVERSATIONS = 200
MESSAGES = 1000
PAGE = 100
LISTINGS = 200
HISTORIES = 10
LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"
"""An id greater than all others."""


class _ListedRow(msgspec.Struct):
    id: str


class _ListedRows(msgspec.Struct):
    items: list[_ListedRow]


class _Answer(msgspec.Struct):
    data: _ListedRows


class Reader:
    """Reads lists of a server over one connection; `headers` are empty for the baseline."""

    def __init__(self, server: MeasuredServer, headers: dict[str, str], user: str) -> None:
        self._server = server
        self._headers = headers
        self._user = user
        self._http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)

    def conversations(self) -> float:
        """CPU ms of one list of 20."""
        path = f"/conversations?page_size=20{self._user}"
        begin = self._server.cpu()
        for _ in range(LISTINGS):
            if len(self._ids(path)) != 20:
                raise Broken("a list is not of 20 conversations")
        return (self._server.cpu() - begin) / LISTINGS * 1e3

    def history(self, conversation_id: str) -> float:
        """CPU ms of all messages of a conversation."""
        begin = self._server.cpu()
        for _ in range(HISTORIES):
            if len(list(self._path(conversation_id))) != MESSAGES:
                raise Broken(f"a history is not of {MESSAGES} messages")
        return (self._server.cpu() - begin) / HISTORIES * 1e3

    def _path(self, conversation_id: str) -> Iterator[str]:
        before = LAST
        while ids := self._ids(f"/messages?conversation_id={conversation_id}&limit={PAGE}&before={before}"):
            yield from ids
            before = ids[-1]
            if len(ids) < PAGE:
                return

    def _ids(self, path: str) -> list[str]:
        self._http.request("GET", path, headers=self._headers)
        answer = self._http.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise Broken(f"{path}: {answer.status} {content[:300]!r}")
        return [line.id for line in msgspec.json.decode(content, type=_Answer).data.items]

    def close(self) -> None:
        self._http.close()


async def lists_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """The requests of a starting client, against uvicorn with one Core query and msgspec."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-lists-")))
        url = f"sqlite:///{folder}/lists.db"
        luxx = stack.enter_context(luxx_server({"LUXX_DATABASE__URL": url}))
        api = await asyncio.to_thread(Api, luxx.port)
        conversation_id = await asyncio.to_thread(_fill, url)
        port = free_port()
        command = [sys.executable, "-m", "tests.bench.baseline_lists", str(port), url]
        baseline = stack.enter_context(started(command, port))
        readers = [
            Reader(luxx, {"authorization": f"Bearer {api.token}"}, ""),
            Reader(baseline, {}, "&user_id=1"),
        ]
        for number in range(rounds + 1):
            listed = [await asyncio.to_thread(reader.conversations) for reader in readers]
            read = [await asyncio.to_thread(reader.history, conversation_id) for reader in readers]
            if number > 0:  # the first round warms up
                report_lists(figures, listed, read)
                yield
        for reader in readers:
            reader.close()


def _fill(url: str) -> str:
    """Adds the first user's conversations. Returns the id of the long one, which is the newest."""
    engine = open_engine(make_url(url))
    with engine.begin() as connection:
        ids = seed(connection, TextGenerator(), [*[4] * CONVERSATIONS, MESSAGES])
    engine.dispose()
    return ids[-1]


def report_lists(figures: Figures, listed: list[float], read: list[float]) -> None:
    (mine, baseline), (whole, bare) = listed, read
    figures.add("lists", "20 conversations, Core and msgspec", baseline, "ms")
    figures.add("lists", "20 conversations, luxx", mine, "ms")
    figures.add("lists", "20 conversations, luxx / baseline", mine / baseline, "×", at_most=2)
    figures.add("lists", f"{MESSAGES} messages in pages, Core and msgspec", bare, "ms")
    figures.add("lists", f"{MESSAGES} messages in pages, luxx", whole, "ms")
    figures.add("lists", f"{MESSAGES} messages in pages, luxx / baseline", whole / bare, "×", at_most=2.5)
