"""A server without its log: the reader ended, reads nothing, or the disk is full. Nothing else is lost."""

import fcntl
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO, cast

import httpx
import pytest
from api.server_process import LISTENS
from forked_luxx import ForkedProcess
from migrated_databases import prepare
from process_environment import plain_environ, scripted_models

from luxx.infra.observe import OutputStream, configure_logging
from luxx.providers.scripted import Rule, Script, Text

pytestmark = pytest.mark.heavy

PASSWORD = "an-operators-password-1"
STOP_SECONDS = 30.0
SCRIPT = Script(rules=[Rule(reply=[Text(text="Still here.")])])


@contextmanager
def started_server(folder: Path, model_url: str, stderr: IO[bytes] | None) -> Iterator[ForkedProcess]:
    prepare(folder / "data")
    environ = plain_environ(
        LUXX_ADMIN_PASSWORD=PASSWORD,
        LUXX_AUTH__PASSWORD_COST="10",
        LUXX_LLM__API_URL=f"{model_url}/v1",
        LUXX_LLM__MODEL="scripted",
        LUXX_LOCAL__ENABLED="false",
        LUXX_LOGGING__LEVEL="DEBUG",
    )
    process = ForkedProcess(["serve", "--port", "0"], cwd=folder, env=environ, stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def address_of(process: ForkedProcess) -> str:
    """Reads what the server prints until it listens."""
    lines: list[str] = []
    for line in process.stdout:
        if found := LISTENS.search(line):
            return found[1]
        lines.append(line)
    raise AssertionError("".join(lines))


def send_message(url: str) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        body = {"username": "admin", "password": PASSWORD}
        tokens = client.post("/auth/login", json=body).raise_for_status().json()["data"]
        client.headers["Authorization"] = f"Bearer {tokens['access_token']}"
        conversation = client.post("/conversations", json={}).raise_for_status().json()["data"]["id"]
        message = {"conversation_id": conversation, "content": "hello", "tools": False}
        answer = client.post("/messages", json=message).raise_for_status().json()["data"]
        assert (answer["text"], answer["status"]) == ("Still here.", "complete")


def close_pipe(process: ForkedProcess) -> None:
    process.stdout.close()


def fill_pipe(process: ForkedProcess) -> None:
    """Leaves no space in the pipe, and reads nothing more."""
    writing = os.open(f"/proc/self/fd/{process.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(writing, b"x")
    except BlockingIOError:
        pass
    finally:
        os.close(writing)


@pytest.mark.skipif(sys.platform != "linux", reason="opens the other end of a pipe through /proc")
@pytest.mark.parametrize("lose", [close_pipe, fill_pipe])
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.heavy)])
def test_a_server_whose_output_nobody_reads_serves_and_stops_on_the_first_signal(
    lose: Callable[[ForkedProcess], None], number: signal.Signals, tmp_path: Path
) -> None:
    with scripted_models(SCRIPT) as model, started_server(tmp_path, model.url, None) as process:
        url = address_of(process)
        lose(process)
        send_message(url)
        process.send_signal(number)
        assert process.wait(STOP_SECONDS) == (130 if number is signal.SIGINT else -signal.SIGTERM)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_server_whose_log_is_on_a_full_disk_serves_and_stops_on_the_first_signal(tmp_path: Path) -> None:
    with (
        open("/dev/full", "wb", buffering=0) as full,
        scripted_models(SCRIPT) as model,
        started_server(tmp_path, model.url, full) as process,
    ):
        send_message(address_of(process))
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_SECONDS) == 130


def test_a_server_whose_output_is_closed_from_the_beginning_starts(tmp_path: Path) -> None:
    with scripted_models(SCRIPT) as model:
        reading, writing = os.pipe()
        os.close(reading)
        with (
            open(writing, "wb", buffering=0) as closed,
            started_server(tmp_path, model.url, closed) as process,
        ):
            send_message(address_of(process))
            process.terminate()
            assert process.wait(STOP_SECONDS) == -signal.SIGTERM


def test_lines_that_nobody_reads_are_counted_and_a_cut_line_ends() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open(reading, "rb", buffering=0) as reader, open(writing, "w", encoding="utf-8") as writer:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4 * select.PIPE_BUF)
        log = cast("TextIO", OutputStream(writer))
        configure_logging("INFO", stream=log, is_console=False)
        for number in range(20):
            log.write(f"{number}" + "x" * 9000 + "\n")
        *whole, cut = reader.read().decode().splitlines()
        log.write("back\n")
        back, entry = reader.read().decode().splitlines()[-2:]
    assert [len(line) for line in whole] == [9001] * len(whole)
    assert 0 < len(cut) < 9001
    assert back == "back"
    lost = json.loads(entry)
    assert (lost["event"], lost["count"]) == ("log_lines_lost", 20 - len(whole))
