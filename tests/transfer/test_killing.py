"""The server is killed during an import: after the next start all of it exists, or nothing."""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from api.client import PASSWORD, ApiClient
from api.server_process import ServerProcess

from transfer.imports import IMPORT, all_conversation_ids, import_data, tree

pytestmark = pytest.mark.heavy

CONVERSATIONS, TURNS = 200, 50
WAIT_SECONDS = 60.0
TEXT = " ".join(f"word{number}" for number in range(100))


def big_file() -> bytes:
    """About eight megabytes: enough for many transactions."""
    messages = [{"sender": ("human", "assistant")[n % 2], "text": f"{n} {TEXT}"} for n in range(TURNS)]
    return json.dumps(
        [{"name": f"chat {n}", "chat_messages": messages} for n in range(CONVERSATIONS)]
    ).encode()


class Database:
    """The server's database file, read from outside."""

    def __init__(self, server: ServerProcess) -> None:
        self._path = server.data_dir / "luxx.db"

    def count(self, table: str, where: str = "1") -> int:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=10)) as connection:
            return int(connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()[0])

    def wait_for_messages(self, at_least: int) -> int:
        """Waits until there are this many messages. Returns their number."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (count := self.count("messages")) < at_least:
            assert time.monotonic() < deadline, f"only {count} messages came"
        return count

    def problems(self) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as connection:
            return connection.execute("PRAGMA foreign_key_check").fetchall()


class Importing(threading.Thread):
    """One import in a thread; `report` stays None if the connection breaks or the server stops."""

    def __init__(self, person: ApiClient, content: bytes) -> None:
        super().__init__(daemon=True)
        self._person = person
        self._content = content
        self.status = 0
        self.report: dict[str, Any] | None = None

    def run(self) -> None:
        try:
            answer = self._person.http.post(IMPORT, content=self._content, timeout=WAIT_SECONDS)
            self.status = answer.status_code
            self.report = answer.json()["data"] if answer.is_success else None
        except httpx.TransportError:
            pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as running:
        yield running


@pytest.mark.parametrize("at_least", [1, 5_000])
def test_a_kill_in_the_middle_leaves_nothing_of_the_import(server: ServerProcess, at_least: int) -> None:
    database = Database(server)
    with ApiClient(server, None).register("dora") as dora:
        earlier_import = import_data(
            dora, [{"name": "kept", "chat_messages": [{"sender": "human", "text": "stay"}]}]
        )
        importing = Importing(dora, big_file())
        importing.start()
        messages = database.wait_for_messages(1 + at_least)
        before = all_conversation_ids(dora)
        server.kill()
        importing.join(WAIT_SECONDS)
    assert importing.report is None, "the import had ended before the kill"
    assert before == earlier_import["conversation_ids"], "hidden conversations were listed"
    assert messages < 1 + CONVERSATIONS * TURNS
    with ServerProcess(server.folder) as again, ApiClient(again, None).sign_in("dora", PASSWORD) as dora:
        assert all_conversation_ids(dora) == earlier_import["conversation_ids"]
        assert [message["text"] for message in tree(dora, before[0])] == ["stay"]
        assert (database.count("conversations"), database.count("messages")) == (1, 1)
        assert database.problems() == []
        assert import_data(dora, big_file())["messages"] == CONVERSATIONS * TURNS
        assert database.count("conversations", "import_id IS NOT NULL") == 0
    left = {file.name for file in server.data_dir.iterdir()}
    assert not [name for name in left if name.startswith("tmp")], left


def test_a_stop_in_the_middle_leaves_all_or_nothing(server: ServerProcess) -> None:
    with ApiClient(server, None).register("emil") as emil:
        importing = Importing(emil, big_file())
        importing.start()
        Database(server).wait_for_messages(1000)
        server.stop()
        importing.join(WAIT_SECONDS)
        assert importing.status in (0, 200, 503)
    with ServerProcess(server.folder) as again, ApiClient(again, None).sign_in("emil", PASSWORD) as emil:
        there = len(all_conversation_ids(emil))
        assert there in ((CONVERSATIONS,) if importing.report else (0, CONVERSATIONS))
        assert Database(server).count("messages") == there * TURNS


def test_others_read_and_write_during_a_big_import(server: ServerProcess) -> None:
    with ApiClient(server, None).register("fay") as fay, ApiClient(server, None).register("gus") as gus:
        importing = Importing(fay, big_file())
        importing.start()
        slowest, asked = 0.0, 0
        while importing.is_alive():
            started = time.monotonic()
            gus.good("POST", "/conversations", json={})
            slowest, asked = max(slowest, time.monotonic() - started), asked + 1
        assert importing.report is not None
        assert importing.report["conversations"] == CONVERSATIONS
        assert asked > 10
        assert slowest < 2.0, "one transaction for all of it would have taken as long as the import"
        second = gus.http.post(IMPORT, content=b"[]")
        assert second.status_code == 200


def test_a_second_import_of_the_same_user_waits(server: ServerProcess) -> None:
    with ApiClient(server, None).register("hal") as hal, ApiClient(server, None, hal.token) as twin:
        importing = Importing(hal, big_file())
        importing.start()
        Database(server).wait_for_messages(1)
        failure = twin.bad("POST", IMPORT, 429, content=b"[]")
        assert failure["detail"]["kind"] == "import_active"
        importing.join(WAIT_SECONDS)
        assert importing.report is not None
        assert import_data(twin, [])["conversations"] == 0


def test_a_broken_connection_leaves_nothing(server: ServerProcess) -> None:
    """A client that sends half of its file and disconnects."""
    with ApiClient(server, None).register("ida") as ida:
        content = big_file()

        def half() -> Iterator[bytes]:
            yield content[: len(content) // 2]
            raise ConnectionAbortedError

        with pytest.raises(ConnectionAbortedError):
            ida.http.post(IMPORT, content=half())
        assert all_conversation_ids(ida) == []
        deadline = time.monotonic() + WAIT_SECONDS
        while ida.http.post(IMPORT, content=b"[]").status_code == 429:
            assert time.monotonic() < deadline, "the interrupted import still holds its import slot"
        assert Database(server).count("messages") == 0
    assert "request_failed" not in server.output
