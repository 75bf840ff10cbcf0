"""A long conversation is forked and deleted: others can write, and a killed server leaves all of it
or nothing.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api.client import PASSWORD, ApiClient
from api.server_process import ServerProcess

from transfer.imports import all_conversation_ids, import_data, path_of
from transfer.test_killing import TEXT, WAIT_SECONDS, Database

pytestmark = pytest.mark.heavy

LONG = 6_000
SHORT = 30


def one_conversation(messages: int, text: str = TEXT) -> bytes:
    said = [{"sender": ("human", "assistant")[n % 2], "text": f"{n} {text}"} for n in range(messages)]
    return json.dumps([{"name": "the long one", "chat_messages": said}]).encode()


class BackgroundRequest(threading.Thread):
    """One request in a thread; `status` stays 0 if the connection breaks."""

    def __init__(self, person: ApiClient, method: str, path: str) -> None:
        super().__init__(daemon=True)
        self._asked = (person, method, path)
        self.status = 0
        self.data: Any = None
        self.start()

    def run(self) -> None:
        person, method, path = self._asked
        try:
            answer = person.http.request(method, path, timeout=WAIT_SECONDS)
            self.status, self.data = answer.status_code, answer.json().get("data")
        except httpx.TransportError:
            pass

    def end(self) -> int:
        self.join(WAIT_SECONDS)
        return self.status


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as running:
        yield running


@pytest.fixture
def ann(server: ServerProcess) -> Iterator[ApiClient]:
    with ApiClient(server, None).register("ann") as ann:
        yield ann


def import_conversation(person: ApiClient, messages: int) -> str:
    (conversation_id,) = import_data(person, one_conversation(messages))["conversation_ids"]
    return str(conversation_id)


def test_a_long_fork_is_hidden_until_it_is_complete(server: ServerProcess, ann: ApiClient) -> None:
    source, database = import_conversation(ann, LONG), Database(server)
    with ApiClient(server, None, ann.token) as twin:
        request = BackgroundRequest(ann, "POST", f"/conversations/{source}/fork")
        database.wait_for_messages(LONG + 1)
        written = 0
        while database.count("conversations", "import_id IS NOT NULL"):
            visible = all_conversation_ids(twin)
            hits = twin.good("GET", "/search?q=word3&kind=message")
            if not database.count("conversations", "import_id IS NOT NULL"):
                break
            assert visible == [source]
            assert {hit["conversation_id"] for hit in hits["items"]} <= {source}
            twin.good("POST", "/projects", json={"name": "others write"})
            written += 1
        assert request.end() == 201
        assert written > 1, "one transaction would have let nobody write before its end"
    fork = request.data["id"]
    assert set(all_conversation_ids(ann)) == {source, fork}
    assert [said["text"] for said in path_of(ann, fork)] == [said["text"] for said in path_of(ann, source)]


def test_a_kill_in_the_middle_of_a_fork_leaves_nothing_of_it(server: ServerProcess, ann: ApiClient) -> None:
    source, database = import_conversation(ann, LONG), Database(server)
    request = BackgroundRequest(ann, "POST", f"/conversations/{source}/fork")
    messages = database.wait_for_messages(LONG + 1)
    server.kill()
    assert (request.end(), messages < 2 * LONG) == (0, True)
    with ServerProcess(server.folder) as again, ApiClient(again, None).sign_in("ann", PASSWORD) as ann:
        assert all_conversation_ids(ann) == [source]
        assert (database.count("messages"), database.count("search_texts")) == (LONG, LONG + 1)
        assert database.problems() == []


def test_a_conversation_deleted_during_its_fork_is_not_forked(server: ServerProcess, ann: ApiClient) -> None:
    source, database = import_conversation(ann, LONG), Database(server)
    leaf = ann.good("GET", f"/conversations/{source}")["selected_leaf_id"]
    with ApiClient(server, None, ann.token) as twin:
        request = BackgroundRequest(ann, "POST", f"/conversations/{source}/fork")
        database.wait_for_messages(LONG + 1)
        twin.good("DELETE", f"/messages/{leaf}")
    assert request.end() == 409
    assert all_conversation_ids(ann) == [source]
    assert database.count("messages") == LONG - 1


def test_a_long_conversation_is_hidden_at_once_and_deleted_before_the_answer(
    server: ServerProcess, ann: ApiClient
) -> None:
    source, other, database = (
        import_conversation(ann, LONG),
        import_conversation(ann, SHORT),
        Database(server),
    )
    with ApiClient(server, None, ann.token) as twin:
        request = BackgroundRequest(ann, "DELETE", f"/conversations/{source}")
        while not database.count("conversations", "import_id IS NOT NULL"):
            assert request.is_alive(), "it was deleted in one transaction"
        hits = twin.good("GET", "/search?q=word3&kind=message")
        assert hits["total"] == SHORT
        assert {hit["conversation_id"] for hit in hits["items"]} == {other}
        assert all_conversation_ids(twin) == [other]
        twin.bad("GET", f"/conversations/{source}", 404)
        twin.bad("GET", f"/messages?conversation_id={source}", 404)
        twin.bad("DELETE", f"/conversations/{source}", 404)
        twin.bad("POST", f"/conversations/{source}/fork", 404)
        assert request.end() == 200
    assert (database.count("conversations"), database.count("messages")) == (1, SHORT)
    assert database.problems() == []


def test_a_kill_in_the_middle_of_deleting_is_finished_at_the_next_start(
    server: ServerProcess, ann: ApiClient
) -> None:
    source, other, database = (
        import_conversation(ann, LONG),
        import_conversation(ann, SHORT),
        Database(server),
    )
    request = BackgroundRequest(ann, "DELETE", f"/conversations/{source}")
    while not database.count("conversations", "import_id IS NOT NULL"):
        assert request.is_alive(), "it was deleted in one transaction"
    server.kill()
    assert request.end() == 0
    with ServerProcess(server.folder) as again, ApiClient(again, None).sign_in("ann", PASSWORD) as ann:
        assert all_conversation_ids(ann) == [other]
        assert (database.count("messages"), database.count("search_texts")) == (SHORT, SHORT + 1)


def test_forks_and_edits_past_the_quota_are_refused(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, LUXX_FILES__QUOTA_MB="1") as server,
        ApiClient(server, None).register("cat") as cat,
    ):
        report = import_data(cat, one_conversation(30, "word " * 4_000))
        (source,) = report["conversation_ids"]
        asked = path_of(cat, source)[0]["id"]
        for method, path, body in (
            ("POST", f"/conversations/{source}/fork", {}),
            ("PUT", f"/messages/{asked}", {"content": "word " * 100_000}),
        ):
            failure = cat.bad(method, path, 413, json=body)
            assert failure["detail"]["kind"] == "quota_exceeded"
            assert "files.quota_mb" in failure["error"]
        assert all_conversation_ids(cat) == [source]
        assert Database(server).count("messages") == 30
        cat.good("PUT", f"/messages/{asked}", json={"content": "a short one"})
        cat.good("POST", f"/conversations/{source}/fork", json={})
