"""The error of a server that cannot start, and the answer to waiting clients when it stops."""

import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx

from api.client import ApiClient
from api.conftest import connect
from api.server_process import ServerProcess, environment, luxx_command
from api.streams import stream_run
from luxx.providers.scripted import Finish, Gate, Rule, Script, ScriptedProvider, Text

REPLY = [Text(text="I am"), Gate(name="waiting"), Text(text=" back."), Finish()]


def test_a_port_that_is_taken_is_refused_with_a_sentence_before_anything_is_opened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        finished = subprocess.run(
            luxx_command("serve", "--port", port, "--data-dir", str(tmp_path / "data")),
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith(f"luxx: cannot listen on 127.0.0.1 port {port}: ")
    assert "Traceback" not in finished.stderr
    assert "database_migrated" not in finished.stderr


def begun_run(person: ApiClient, conversation_id: str) -> str:
    """The run of a message that another thread is sending."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        run_id = person.good("GET", f"/conversations/{conversation_id}")["run_id"]
        if run_id is not None:
            return run_id
    raise AssertionError("no run began")


def test_waiting_clients_are_referred_to_the_run_when_the_server_stops(tmp_path: Path) -> None:
    with ScriptedProvider(Script(rules=[Rule(reply=REPLY)])) as upstream:
        allowed = {"LUXX_PROVIDERS__ALLOW_PRIVATE": upstream.url.removeprefix("http://")}
        with ServerProcess(tmp_path, **allowed) as server, ApiClient(server, None).register("ann") as ann:
            connect(ann, upstream)
            conversation_id = ann.good("POST", "/conversations", json={})["id"]
            answers: list[httpx.Response] = []

            def ask() -> None:
                body = {"conversation_id": conversation_id, "content": "hello"}
                answers.append(ann.http.post("/messages", json=body))

            asking = threading.Thread(target=ask)
            asking.start()
            with stream_run(ann, begun_run(ann, conversation_id)) as stream:
                stream.until("process_step")
            server.process.send_signal(signal.SIGTERM)
            asking.join(timeout=20)
    (answer,) = answers
    assert answer.status_code == 503
    failure = answer.json()
    assert failure["success"] is False
    assert failure["detail"]["run_id"]
    assert failure["detail"]["message_id"]
