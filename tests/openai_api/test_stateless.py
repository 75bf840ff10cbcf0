"""A call of `/v1` leaves nothing of its content in the database, however it ends."""

import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import openai
import pytest
from api.client import PASSWORD, ApiClient
from api.server_process import ServerProcess

from luxx.providers.scripted import ScriptedProvider
from openai_api.conftest import Person, new_person
from openai_api.test_chat import MODEL

SECONDS = 20.0
GIVEN = "swordfish"
"""A word of each message of the client."""

CONTENT = (GIVEN, "Hello there", "Let me see", "One")
"""That word, and texts of the model."""


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


def content_in(data_dir: Path, content: Sequence[str] = CONTENT) -> list[str]:
    """The lines of a dump of the database, which has binary values as hexadecimal digits, that have something
    of a call."""
    # As words, because a sealed value or a hash may have the letters of a short one.
    words = "|".join(re.escape(text) for text in content)
    found = re.compile(rf"\b(?:{words})\b|{'|'.join(text.encode().hex().upper() for text in content)}")
    with closing(sqlite3.connect(data_dir / "luxx.db")) as database:
        return [line for line in database.iterdump() if found.search(line)]


def runs_in(data_dir: Path) -> list[str]:
    with closing(sqlite3.connect(data_dir / "luxx.db")) as database:
        return [run_id for (run_id,) in database.execute("SELECT id FROM runs ORDER BY id DESC")]


def log_texts(data_dir: Path) -> list[str]:
    """The events of all runs."""
    with closing(sqlite3.connect(data_dir / "luxx.db")) as database:
        return [data.decode() for (data,) in database.execute("SELECT data FROM run_events")]


def newest_run(person: Person) -> dict[str, Any]:
    return person.api.good("GET", "/runs?page_size=1")["items"][0]


def await_status(person: Person, run_id: str, status: str) -> dict[str, Any]:
    until = time.monotonic() + SECONDS
    while (run := person.api.good("GET", f"/runs/{run_id}"))["status"] != status:
        assert time.monotonic() < until, run
    return run


def await_nothing(data_dir: Path) -> None:
    until = time.monotonic() + SECONDS
    while found := content_in(data_dir):
        assert time.monotonic() < until, found


def body(text: str, model: str = MODEL, **more: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": f"Never say {GIVEN}."},
        {"role": "user", "content": f"{text} {GIVEN}"},
    ]
    return {"model": model, "messages": messages, **more}


@pytest.fixture(scope="module")
def clerk(ann: Person) -> str:
    """A model that runs a tool before it answers."""
    ann.api.good("POST", "/agents", json={"name": "Filing", "tools": ["file_list"]})
    return "agent/Filing"


@pytest.mark.parametrize(
    ("text", "stream", "status"),
    [
        ("Say hello.", False, "completed"),
        ("Say hello.", True, "completed"),
        ("list my files", False, "completed"),
        ("refuse this", False, "failed"),
        ("break off", True, "failed"),
    ],
)
def test_ended_call_leaves_nothing(
    ann: Person, upstream: ScriptedProvider, clerk: str, text: str, stream: bool, status: str
) -> None:
    before = ann.api.good("GET", "/conversations")["total"]
    model = clerk if "files" in text else MODEL
    with ann.api.http.stream("POST", "/v1/chat/completions", json=body(text, model, stream=stream)) as sent:
        for _ in sent.iter_lines():
            upstream.release("broken")
    run = await_status(ann, newest_run(ann)["id"], status)
    await_nothing(ann.api.server.data_dir)
    assert (run["message_id"], bool(run["error"])) == (None, status == "failed")
    assert ann.api.good("GET", "/conversations")["total"] == before
    log = ann.api.http.get(f"/runs/{run['id']}/events", headers={"accept": "application/json"})
    assert log.status_code == 410 or status == "failed"
    assert {event["type"] for event in log.json().get("data", {}).get("events", [])} <= {"error", "done"}
    assert ann.api.good("GET", f"/search?q={GIVEN}")["total"] == 0


def test_cancelled_call_leaves_nothing(ann: Person, upstream: ScriptedProvider, clerk: str) -> None:
    with ann.sdk(timeout=1.0) as impatient, pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(**body("list my files, then wait", clerk))
    upstream.wait_closed(upstream.requests[-1], 10)
    await_status(ann, newest_run(ann)["id"], "cancelled")
    await_nothing(ann.api.server.data_dir)


@pytest.mark.heavy
def test_calls_of_a_killed_server_leave_nothing_and_are_not_made_again(
    tmp_path: Path, upstream: ScriptedProvider
) -> None:
    with ServerProcess(tmp_path) as killed:
        with ApiClient(killed, None).sign_in() as admin:
            hosts = [upstream.url.removeprefix("http://")]
            admin.good("PUT", "/admin/allowed-hosts", json={"hosts": hosts})
        person = new_person(killed, "ann", upstream)
        person.api.good("POST", "/agents", json={"name": "Filing", "tools": ["file_list"]})
        room = {"title": "Pair", "task": "Decide.", "agents": [{"name": "Hill"}, {"name": "Thinker"}]}
        person.api.good("POST", "/chat-rooms", json=room)
        with ExitStack() as streams:
            for model, text in (("agent/Filing", "list my files, then wait"), ("room/Pair", "Why?")):
                request = body(text, model, stream=True)
                stream = person.api.http.stream("POST", "/v1/chat/completions", json=request)
                lines = streams.enter_context(stream).iter_lines()
                begun = "Let" if "agent" in model else ' am"'
                assert any(begun in line for line in lines), text
                streams.callback(lines.close)  # Until then the connection stays open.
            until = time.monotonic() + SECONDS
            while not any('"tool"' in one.body.decode() for one in upstream.requests[-3:]):
                assert time.monotonic() < until, "the model was not called with the result"
            calls = len(upstream.requests)
            assert any("Hills" in line for line in log_texts(killed.data_dir))
            killed.kill()
        run_ids = runs_in(killed.data_dir)
        assert len(run_ids) == 2
    with ServerProcess(tmp_path) as restarted:
        with ApiClient(restarted, None).sign_in("ann", PASSWORD) as api:
            for run_id in run_ids:
                await_status(person._replace(api=api), run_id, "cancelled")
        await_nothing(restarted.data_dir)
        assert not [line for line in log_texts(restarted.data_dir) if "Hills" in line]
        assert len(upstream.requests) == calls
