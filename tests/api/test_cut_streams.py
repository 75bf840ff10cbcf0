"""Event streams end when their user is signed out; the run that they watched continues."""

import time
from collections.abc import Iterator

import pytest

from api.client import PASSWORD, ApiClient
from api.conftest import connect
from api.schema import Document
from api.server_process import ServerProcess
from api.streams import stream_message, stream_run
from luxx.providers.scripted import ScriptedProvider

CUT_SECONDS = 5.0
NEW_PASSWORD = PASSWORD + "-new"
count = iter(range(1000))


@pytest.fixture
def watcher(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"watcher{next(count)}") as person:
        connect(person, upstream)
        yield person


def waiting_run(person: ApiClient) -> tuple[str, str]:
    """A conversation and its run, which continues until the gate is opened."""
    conversation_id = person.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation_id, "content": "wait here"}
    run = person.good("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
    return conversation_id, run["id"]


@pytest.mark.parametrize("how", ["signs out", "changes the password elsewhere", "is disabled", "is demoted"])
def test_open_streams_end_within_5_seconds_when_the_user(
    how: str, watcher: ApiClient, admin: ApiClient, anna: ApiClient, server: ServerProcess, document: Document
) -> None:
    if how == "is demoted":
        admin.good("PUT", f"/auth/users/{watcher.user['id']}", json={"permission_level": 2})
        watcher.sign_in(watcher.user["username"], PASSWORD)
    _conversation, run_id = waiting_run(watcher)
    _others, run_of_anna = waiting_run(anna)
    with stream_run(watcher, run_id) as stream, stream_run(anna, run_of_anna) as control:
        assert next(stream.frames())["type"] == "run"
        assert next(control.frames())["type"] == "run"
        with ApiClient(server, document).sign_in(watcher.user["username"], PASSWORD) as elsewhere:
            match how:
                case "signs out":
                    watcher.good("POST", "/auth/logout")
                case "changes the password elsewhere":
                    body = {"current_password": PASSWORD, "new_password": NEW_PASSWORD}
                    elsewhere.good("POST", "/auth/password", json=body)
                case "is disabled":
                    admin.good("PUT", f"/auth/users/{watcher.user['id']}", json={"is_active": False})
                case _:
                    admin.good("PUT", f"/auth/users/{watcher.user['id']}", json={"permission_level": 1})
        started = time.monotonic()
        rest = stream.read_to_end()
        assert time.monotonic() - started < CUT_SECONDS
        assert not [frame for frame in rest if frame["type"] == "done"]
        anna.cancel(run_of_anna)
        assert control.until("done")["status"] == "stopped"


def test_signing_out_leaves_the_streams_of_other_sign_ins_open_and_the_run_going(
    watcher: ApiClient, server: ServerProcess, document: Document, upstream: ScriptedProvider
) -> None:
    conversation_id = watcher.good("POST", "/conversations", json={})["id"]
    with ApiClient(server, document).sign_in(watcher.user["username"], PASSWORD) as elsewhere:
        with stream_message(watcher, conversation_id, "wait here") as stream:
            run_id = next(stream.frames())["run_id"]
            with stream_run(elsewhere, run_id) as other:
                next(other.frames())
                watcher.good("POST", "/auth/logout")
                stream.read_to_end()
                upstream.release("waiting")
                done = other.until("done")
        assert done["status"] == "completed"
        messages = elsewhere.good("GET", f"/messages?conversation_id={conversation_id}")["items"]
        assert messages[0]["id"] == done["message_id"]
        assert messages[0]["text"] == "I am back."
        watcher.bad("GET", f"/runs/{run_id}", 401)
