"""Real servers: backed up by the command line under load, and continued from the restored data."""

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from api.client import PASSWORD, ApiClient
from api.conftest import connect
from api.server_process import ServerProcess, environment
from api.streams import stream_message, stream_run
from forked_luxx import run_luxx
from migrated_databases import POSTGRESQL_HEAVY
from store.conftest import numbers
from store.databases import new_database
from transfer.imports import tree

from luxx.providers.scripted import Counts, Finish, Gate, Rule, Script, ScriptedProvider, Text, When

pytestmark = pytest.mark.heavy


SECRET = "a secret that all servers of one database share, long enough"
TALKERS = 4
BEFORE = 8
"""Answers that each of them has before the backup begins."""

WAIT_SECONDS = 60.0


@pytest.fixture
def upstream() -> Iterator[ScriptedProvider]:
    waits = [Text(text="I am"), Gate(name="waiting"), Text(text=" back."), Finish()]
    rules = [
        Rule(when=When(user="wait here"), reply=waits),
        Rule(reply=[Text(text="Said and done."), Counts(completion=3), Finish()]),
    ]
    with ScriptedProvider(Script(rules=rules)) as provider:
        yield provider


@pytest.fixture(params=POSTGRESQL_HEAVY)
def settings(request: pytest.FixtureRequest, upstream: ScriptedProvider) -> dict[str, str]:
    """Settings of the server that is backed up."""
    given = {"LUXX_PROVIDERS__ALLOW_PRIVATE": upstream.url.removeprefix("http://")}
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("postgresql"), f"served{next(numbers)}")
        given |= {"LUXX_DATABASE__URL": url, "LUXX_APP__SECRET_KEY": SECRET}
    return given


def check_key(server: ServerProcess, key: str) -> None:
    """The API key signs in and gets a ticket for a socket."""
    with ApiClient(server, None, key) as keyed:
        assert keyed.good("GET", "/auth/me")["username"] == "ann"
        assert keyed.good("POST", "/auth/ticket")["ticket"]


def luxx(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = (*arguments, "--data-dir", str(folder / "data"))
    return run_luxx(*command, cwd=folder, env=environment(folder, **settings), timeout=90)


class Talker:
    """Sends one message after another and records what was acknowledged."""

    def __init__(self, person: ApiClient) -> None:
        self.http = httpx.Client(base_url=person.server.url, timeout=60, headers=person.http.headers)
        self.conversation_id = str(person.good("POST", "/conversations", json={})["id"])
        self.acknowledged: list[dict[str, Any]] = []
        self.has_many = threading.Event()
        self.is_over = False

    def talk(self) -> None:
        with self.http as http:
            while not self.is_over:
                body = {"conversation_id": self.conversation_id, "content": f"{len(self.acknowledged)} ☃"}
                answer = http.post("/messages", json=body)
                assert answer.status_code == 200, answer.text
                self.acknowledged.append(answer.json()["data"])
                if len(self.acknowledged) == BEFORE:
                    self.has_many.set()


def test_everything_acknowledged_before_a_backup_under_load_is_restored_and_continues(
    tmp_path: Path, settings: dict[str, str], upstream: ScriptedProvider
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    host = {"LUXX_PROVIDERS__ALLOW_PRIVATE": settings["LUXX_PROVIDERS__ALLOW_PRIVATE"]}
    with ServerProcess(here, **settings) as server, ApiClient(server, None).register("ann") as ann:
        connect(ann, upstream)
        key = ann.good("POST", "/keys", json={"name": "k", "scopes": ["read"]})["key"]
        check_key(server, key)
        uploaded = ann.good("POST", "/files", files={"file": ("notes.txt", b"my notes")})
        waiting = ann.good("POST", "/conversations", json={})["id"]
        with stream_message(ann, waiting, "wait here") as stream, ThreadPoolExecutor(TALKERS) as threads:
            run_id = next(stream.frames())["run_id"]
            stream.until("process_step")
            talkers = [Talker(ann) for _ in range(TALKERS)]
            talks = [threads.submit(talker.talk) for talker in talkers]
            assert all(talker.has_many.wait(WAIT_SECONDS) for talker in talkers)
            before = {talker.conversation_id: list(talker.acknowledged) for talker in talkers}
            backup = luxx(here, "backup", str(tmp_path / "backup.zip"), **settings)
            for talker in talkers:
                talker.is_over = True
            assert backup.returncode == 0, backup.stderr
            for talk in talks:
                talk.result(WAIT_SECONDS)
    restored = luxx(there, "restore", str(tmp_path / "backup.zip"), **host)
    assert restored.returncode == 0, restored.stderr
    upstream.release("waiting")
    with ServerProcess(there, **host) as server, ApiClient(server, None).sign_in("ann", PASSWORD) as ann:
        check_key(server, key)
        for conversation_id, acknowledged in before.items():
            there_now = {message["id"]: message for message in tree(ann, conversation_id)}
            assert [there_now.get(message["id"]) for message in acknowledged] == acknowledged
        with stream_run(ann, run_id) as stream:
            assert stream.read_to_end()[-1]["type"] == "done"
        assert ann.good("GET", f"/messages?conversation_id={waiting}")["items"][0]["text"] == "I am back."
        content = ann.http.get(f"/files/{uploaded['id']}").content
        assert content == b"my notes"
        body = {"conversation_id": waiting, "content": "and here?"}
        assert ann.good("POST", "/messages", json=body)["text"] == "Said and done."
        hits = ann.good("GET", "/search?q=back")["items"]
        assert [each["conversation_id"] for each in hits] == [waiting]


def test_the_data_of_a_running_server_is_not_replaced(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, ApiClient(server, None).register("ann") as ann:
        backup = luxx(tmp_path, "backup", "backup.zip")
        assert backup.returncode == 0, backup.stderr
        assert "rows at revision" in backup.stdout
        for more in ([], ["--replace", "--yes"]):
            refused = luxx(tmp_path, "restore", "backup.zip", *more)
            assert refused.returncode == 1
            assert "another Luxx server is using" in refused.stderr
        ann.good("GET", "/auth/me")
    unasked = luxx(tmp_path, "restore", "backup.zip", "--replace")
    assert "--yes" in unasked.stderr
    replaced = luxx(tmp_path, "restore", "backup.zip", "--replace", "--yes")
    assert replaced.returncode == 0, replaced.stderr
    with ServerProcess(tmp_path) as server, ApiClient(server, None).sign_in("ann", PASSWORD) as ann:
        ann.good("GET", "/auth/me")
