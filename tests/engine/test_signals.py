"""Real processes under kill -9, SIGTERM, SIGSTOP and a second signal."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from api.client import ApiClient
from api.conftest import connect
from api.server_process import ServerProcess, WorkerProcess, environment, luxx_command

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text

pytestmark = pytest.mark.heavy

LEASE_SECONDS = 2.0
SECRET = "a secret that all processes of one database share"
REPLY = [Text(text="I am"), Gate(name="gate"), Text(text=" here.")]
SOON_SECONDS = 15.0
POLL_SECONDS = 0.05


def until(look: Callable[[], Any], seconds: float = SOON_SECONDS) -> Any:
    """Waits until `look` returns something, and returns it."""
    end = time.monotonic() + seconds
    while not (result := look()):
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(POLL_SECONDS)
    return result


def model() -> ScriptedProvider:
    return ScriptedProvider(Script(rules=[Rule(reply=REPLY)]))


def gated_run(add_user: ApiClient, upstream: ScriptedProvider, calls: int = 1) -> dict[str, Any]:
    """A run whose model has begun to answer."""
    conversation_id = add_user.good("POST", "/conversations", json={})["id"]
    answer = add_user.http.post(
        "/messages/stream",
        json={"conversation_id": conversation_id, "content": "hello"},
        headers={"accept": "application/json"},
    )
    assert answer.status_code == 202, answer.text
    until(lambda: len(upstream.requests) >= calls)
    run: dict[str, Any] = answer.json()["data"]
    return run


def wait_for_end(add_user: ApiClient, run_id: str, seconds: float = SOON_SECONDS) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        run: dict[str, Any] = add_user.good("GET", f"/runs/{run_id}")
        return run if run["status"] in ("completed", "failed", "cancelled") else None

    run: dict[str, Any] = until(look, seconds)
    return run


def answer_of(add_user: ApiClient, run: dict[str, Any]) -> str:
    path = f"/messages?conversation_id={run['subject_id']}"
    newest, _question = add_user.good("GET", path)["items"]
    assert newest["role"] == "assistant"
    text: str = newest["text"]
    return text


def settings_for(database_url: str, model_url: str, **more: str) -> dict[str, str]:
    """The environment of all processes of one database."""
    return {
        "LUXX_DATABASE__URL": database_url,
        "LUXX_APP__SECRET_KEY": SECRET,
        "LUXX_RUNS__LEASE_SECONDS": str(LEASE_SECONDS),
        "LUXX_PROVIDERS__ALLOW_PRIVATE": model_url.removeprefix("http://"),
        **more,
    }


Started = TypeVar("Started", bound=ServerProcess)


def started(
    stack: ExitStack, folder: Path, settings: dict[str, str], kind: type[Started] = ServerProcess
) -> Started:
    """A process that is killed at the end, also if it is frozen."""
    process = stack.enter_context(kind(folder, **settings))
    stack.callback(process.kill)
    return process


def user_at(server: ServerProcess) -> ApiClient:
    return ApiClient(server, None)


def switch_server(server: ServerProcess, add_user: ApiClient) -> ApiClient:
    """The same user at another server."""
    add_user.http.base_url = httpx.URL(server.url)
    return add_user


def alive_kinds(admin: ApiClient) -> set[tuple[str, bool]]:
    """The kinds of the processes that an operator sees, and whether they are alive."""
    return {(each["kind"], each["is_alive"]) for each in admin.good("GET", "/admin/processes")["items"]}


def test_after_kill_9_of_a_server_a_worker_continues_the_run_and_another_server_streams_it(
    shared_url: str, tmp_path: Path
) -> None:
    with model() as upstream, ExitStack() as stack:
        settings = settings_for(shared_url, upstream.url)
        first = started(stack, tmp_path / "first", settings)
        worker = started(stack, tmp_path / "worker", settings, WorkerProcess)
        second = started(stack, tmp_path / "second", settings)
        assert httpx.get(f"{worker.health}/ready").json()["data"]["checks"]["engine"] == "ok"
        assert httpx.get(f"{worker.health}/metrics").status_code == 200
        assert httpx.get(f"{worker.health}/conversations").status_code == 404
        ann = stack.enter_context(user_at(first).register("ann"))
        connect(ann, upstream)
        run = gated_run(ann, upstream)
        first.kill()
        until(lambda: len(upstream.requests) == 2, LEASE_SECONDS + 2)
        upstream.release("gate")
        elsewhere = switch_server(second, ann)
        assert wait_for_end(elsewhere, run["id"])["status"] == "completed"
        assert answer_of(elsewhere, run) == "I am here."
        with user_at(second).sign_in() as admin:
            # The processes that are alive delete the row of the killed one with their next heartbeat.
            until(lambda: alive_kinds(admin) == {("serve", True), ("worker", True)})


def test_a_frozen_server_that_wakes_writes_nothing_to_runs_that_it_lost(
    shared_url: str, tmp_path: Path
) -> None:
    with model() as upstream, ExitStack() as stack:
        settings = settings_for(shared_url, upstream.url)
        first = started(stack, tmp_path / "first", settings)
        second = started(stack, tmp_path / "second", settings)
        ann = stack.enter_context(user_at(first).register("ann"))
        connect(ann, upstream)
        run = gated_run(ann, upstream)
        first.process.send_signal(signal.SIGSTOP)
        until(lambda: len(upstream.requests) == 2)
        first.process.send_signal(signal.SIGCONT)
        until(lambda: upstream.requests[0].closed_at is not None)
        upstream.release("gate")
        elsewhere = switch_server(second, ann)
        assert wait_for_end(elsewhere, run["id"])["status"] == "completed"
        assert answer_of(elsewhere, run) == "I am here."
        log = elsewhere.good("GET", f"/runs/{run['id']}/events", headers={"accept": "application/json"})
        assert [event["seq"] for event in log["events"]] == list(range(1, len(log["events"]) + 1))
        # The server counts as alive again and continues to serve.
        assert (
            wait_for_end(switch_server(first, ann), gated_run(ann, upstream, 3)["id"])["status"]
            == "completed"
        )
        assert len(upstream.requests) == 3


def test_sigterm_ends_streams_with_a_retry_refuses_sends_and_hands_over_what_does_not_end(
    shared_url: str, tmp_path: Path
) -> None:
    with model() as upstream, ExitStack() as stack:
        settings = settings_for(shared_url, upstream.url, LUXX_RUNS__GRACE_SECONDS="4")
        first = started(stack, tmp_path / "first", settings)
        second = started(stack, tmp_path / "second", settings)
        ann = stack.enter_context(user_at(first).register("ann"))
        connect(ann, upstream)
        run = gated_run(ann, upstream)
        with ann.http.stream("GET", f"/runs/{run['id']}/events") as stream:
            chunks = stream.iter_raw()
            received = next(chunks)
            first.process.send_signal(signal.SIGTERM)
            received += b"".join(chunks)
        assert received.endswith(b"retry: 1000\n\n")
        assert ann.http.get("/ready").status_code == 503
        conversation_id = run["subject_id"]
        refused = ann.http.post("/messages", json={"conversation_id": conversation_id, "content": "more"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["detail"]["kind"] == "stopping"
        assert len(upstream.requests) == 1
        first.wait()
        assert not first.lines_with("Traceback")
        until(lambda: len(upstream.requests) == 2, LEASE_SECONDS)
        upstream.release("gate")
        assert (
            answer_of(switch_server(second, ann), wait_for_end(switch_server(second, ann), run["id"]))
            == "I am here."
        )


def test_a_run_that_ends_within_the_grace_is_not_handed_over(tmp_path: Path) -> None:
    """With one process on SQLite: the answer exists at the next start, and the model was called once."""
    with model() as upstream, ExitStack() as stack:
        settings = settings_for(f"sqlite:///{tmp_path}/t.db", upstream.url, LUXX_RUNS__GRACE_SECONDS="30")
        first = started(stack, tmp_path / "one", settings)
        ann = stack.enter_context(user_at(first).register("ann"))
        connect(ann, upstream)
        run = gated_run(ann, upstream)
        first.process.send_signal(signal.SIGTERM)
        until(lambda: ann.http.get("/ready").status_code == 503)
        upstream.release("gate")
        first.wait()
        again = started(stack, tmp_path / "one", settings)
        assert answer_of(switch_server(again, ann), run) == "I am here."
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_second_signal_ends_a_process_at_once(shared_url: str, tmp_path: Path, command: str) -> None:
    with model() as upstream, ExitStack() as stack:
        settings = settings_for(shared_url, upstream.url, LUXX_RUNS__GRACE_SECONDS="60")
        server = started(stack, tmp_path / "first", settings)
        ann = stack.enter_context(user_at(server).register("ann"))
        connect(ann, upstream)
        run = gated_run(ann, upstream)
        stopping = server
        if command == "worker":
            stopping = started(stack, tmp_path / "worker", settings, WorkerProcess)
            server.kill()
            until(lambda: len(upstream.requests) == 2)
        stopping.process.send_signal(signal.SIGTERM)
        until(lambda: stopping.lines_with("stopping"))
        stopping.process.send_signal(signal.SIGTERM)
        begun_at = time.monotonic()
        stopping.wait()
        assert time.monotonic() - begun_at < 5
        with ServerProcess(tmp_path / "next", **settings) as following:
            upstream.release("gate")
            assert wait_for_end(switch_server(following, ann), run["id"])["status"] == "completed"


def test_a_worker_stopped_hands_its_runs_over_and_ends(shared_url: str, tmp_path: Path) -> None:
    with model() as upstream, ExitStack() as stack:
        settings = settings_for(shared_url, upstream.url, LUXX_RUNS__GRACE_SECONDS="0")
        server = started(stack, tmp_path / "first", settings)
        ann = stack.enter_context(user_at(server).register("ann"))
        connect(ann, upstream)
        run = gated_run(ann, upstream)
        worker = started(stack, tmp_path / "worker", settings, WorkerProcess)
        server.kill()
        until(lambda: len(upstream.requests) == 2)
        second = started(stack, tmp_path / "second", settings)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert not worker.lines_with("Traceback")
        until(lambda: len(upstream.requests) == 3, LEASE_SECONDS)
        upstream.release("gate")
        assert wait_for_end(switch_server(second, ann), run["id"])["status"] == "completed"


def test_a_worker_on_sqlite_is_refused_with_a_sentence(tmp_path: Path) -> None:
    finished = subprocess.run(
        luxx_command("worker", "--data-dir", str(tmp_path / "data")),
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert finished.returncode == 1
    assert "PostgreSQL" in finished.stderr
    assert "luxx serve" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("port", ["70000", "x"])
def test_a_wrong_health_port_is_refused(tmp_path: Path, port: str) -> None:
    finished = subprocess.run(
        luxx_command("worker", "--health-port", port),
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert finished.returncode == 2
    assert "--health-port" in finished.stderr
    assert os.listdir(tmp_path) == []
