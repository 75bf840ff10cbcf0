"""Counts the files and functions of `luxx/` that run for one message, from the request to the last event.

A real server in its own process answers with the scripted provider. Every function call in any of its threads
is recorded during a message in a chat, without and with a tool call, and during a room with one turn. `-v`
lists the files.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When

ROOT = Path(__file__).parent.parent.parent
PASSWORD = "a password for counting 1"
WAIT_SECONDS = 60.0
RECORDINGS = 3
"""Of these the one with the fewest files counts: the heartbeat of the server runs during some messages."""

NO_TOOLS, ONE_CALL, ROOM = "no tools", "one tool call", "a room turn"
LIMITS = {NO_TOOLS: 60, ONE_CALL: 89}
MORE_FILES_OF_ROOM = 15
"""How many files a turn of a room may run through beyond those of a message without tools."""

Functions = set[tuple[str, str]]
"""Functions, as (file, name)."""

SCRIPT = Script(
    rules=[
        Rule(
            name="call",
            when=When(user="use a tool", has_tool_result=False),
            reply=[Call(name="file_exists", arguments={"path": "a.txt"})],
        ),
        Rule(name="answer", reply=[Text(text="Forty-two.")]),
    ]
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.message_path", description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="list the files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ScriptedProvider(SCRIPT) as model:
        measured = measure(Path(folder), model.url)
    limits = LIMITS | {ROOM: len(_files(measured[NO_TOOLS])) + MORE_FILES_OF_ROOM}
    is_over = False
    for name, functions in measured.items():
        files, limit = _files(functions), limits[name]
        print(f"{name}: {len(files)} files (limit {limit}), {len(functions)} functions")
        is_over |= len(files) > limit
        if options.verbose:
            for file, count in sorted(files.items()):
                print(f"  {count:4} {file}")
    return 1 if is_over else 0


def _files(functions: Functions) -> Counter[str]:
    """How many of the functions each file has."""
    return Counter(file for file, _ in functions)


def measure(folder: Path, model_url: str) -> dict[str, Functions]:
    """The functions of each kind of message."""
    output = folder / "calls.json"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LUXX_")} | {
        "LUXX_APP__PORT": "0",
        "LUXX_LLM__PROVIDER": "openai_compatible",
        "LUXX_LLM__API_URL": f"{model_url}/v1",
        "LUXX_LLM__MODEL": "scripted",
        "LUXX_LOCAL__ENABLED": "false",
        "LUXX_ADMIN_PASSWORD": PASSWORD,
        "MESSAGE_PATH_OUTPUT": str(output),
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.message_path.server", "--data-dir", str(folder / "data")],
        cwd=ROOT, env=environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        return _send_messages(server, output)
    finally:
        server.terminate()
        server.wait(WAIT_SECONDS)


def _send_messages(server: subprocess.Popen[str], output: Path) -> dict[str, Functions]:
    assert server.stdout is not None
    url = next(line.split()[-1] for line in server.stdout if "listens on" in line)
    with httpx.Client(base_url=url, timeout=WAIT_SECONDS) as client:
        signed_in = client.post("/auth/login", json={"username": "admin", "password": PASSWORD})
        client.headers["Authorization"] = f"Bearer {_data(signed_in)['access_token']}"

        def in_chat(text: str, *, tools: bool) -> Callable[[], Functions]:
            conversation = _data(client.post("/conversations", json={}))["id"]
            body = {"conversation_id": conversation, "content": text, "tools": tools}
            return lambda: _record(server, output, client, "/messages/stream", body, "done")

        def in_room() -> Functions:
            seat = {"name": "Writer", "system_prompt": "Answer briefly.", "tools": []}
            room = {"title": "Room", "task": "hello", "max_rounds": 1, "agents": [seat]}
            path = f"/chat-rooms/{_data(client.post('/chat-rooms', json=room))['id']}/start"
            return _record(server, output, client, path, {}, "room_completed")

        kinds = {
            NO_TOOLS: in_chat("hello", tools=False),
            ONE_CALL: in_chat("use a tool", tools=True),
            ROOM: in_room,
        }
        return {name: _fewest(record) for name, record in kinds.items()}


def _fewest(record: Callable[[], Functions]) -> Functions:
    record()  # The first message loads modules that are loaded once.
    return min((record() for _ in range(RECORDINGS)), key=lambda functions: len(_files(functions)))


def _record(
    server: subprocess.Popen[str],
    output: Path,
    client: httpx.Client,
    path: str,
    body: dict[str, Any],
    last_event: str,
) -> Functions:
    output.unlink(missing_ok=True)
    server.send_signal(signal.SIGUSR1)
    with client.stream("POST", path, json=body) as answer:
        answer.raise_for_status()
        assert f"event: {last_event}" in "".join(answer.iter_text())
    server.send_signal(signal.SIGUSR1)
    _wait_for(output)
    return set(msgspec.json.decode(output.read_bytes(), type=list[tuple[str, str]]))


def _data(answer: httpx.Response) -> Any:
    answer.raise_for_status()
    return answer.json()["data"]


def _wait_for(output: Path) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not output.exists():
        if time.monotonic() > until:
            raise TimeoutError("the server wrote no calls")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
