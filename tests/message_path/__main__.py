"""Counts the files and functions of `luxx/` that run for one message, from the request to its `done` event.

A real server in its own process answers with the scripted provider. Every function call in any of its threads
is recorded during a message. `-v` lists the files.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When

ROOT = Path(__file__).parent.parent.parent
PASSWORD = "a password for counting 1"
WAIT_SECONDS = 30.0
LIMITS = {"no tools": 60, "one tool call": 85}
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
    is_over = False
    for name, functions in measured.items():
        files = Counter(file for file, _ in functions)
        limit = LIMITS[name]
        print(f"{name}: {len(files)} files (limit {limit}), {len(functions)} functions")
        is_over |= len(files) > limit
        if options.verbose:
            for file, count in sorted(files.items()):
                print(f"  {count:4} {file}")
    return 1 if is_over else 0


def measure(folder: Path, model_url: str) -> dict[str, set[tuple[str, str]]]:
    """The functions of each kind of message, as (file, name)."""
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


def _send_messages(server: subprocess.Popen[str], output: Path) -> dict[str, set[tuple[str, str]]]:
    assert server.stdout is not None
    url = next(line.split()[-1] for line in server.stdout if "listens on" in line)
    with httpx.Client(base_url=url, timeout=WAIT_SECONDS) as client:
        signed_in = client.post("/auth/login", json={"username": "admin", "password": PASSWORD})
        client.headers["Authorization"] = f"Bearer {_data(signed_in)['access_token']}"
        functions = {}
        for name, text, tools in (("no tools", "hello", False), ("one tool call", "use a tool", True)):
            conversation = _data(client.post("/conversations", json={}))["id"]
            body = {"conversation_id": conversation, "content": text, "tools": tools}
            # The first message loads modules that are loaded once.
            for _ in range(2):
                output.unlink(missing_ok=True)
                server.send_signal(signal.SIGUSR1)
                _stream(client, body)
                server.send_signal(signal.SIGUSR1)
                _wait_for(output)
            calls = msgspec.json.decode(output.read_bytes(), type=list[tuple[str, str]])
            functions[name] = set(calls)
    return functions


def _stream(client: httpx.Client, body: dict[str, Any]) -> None:
    with client.stream("POST", "/messages/stream", json=body) as answer:
        answer.raise_for_status()
        assert "event: done" in "".join(answer.iter_text())


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
