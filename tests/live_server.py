"""A real server in a process of its own, on a free port, with the scripted provider as its only model."""

import os
import random
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from typing import NamedTuple

from forked_luxx import ForkedProcess

from luxx.providers.scripted import Script, ScriptedProvider

ROOT = Path(__file__).parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 15.0
USER_FILES = TemporaryDirectory(prefix="luxx-user-files-")
"""Where commands keep files of their user."""

LISTENS = re.compile(r"Luxx listens on (http://\S+)")
PORTS = [port for port in range(20_000, 32_000) if "80" not in str(port)]
"""Below the ports that systems choose for outgoing connections, which could take a free one at any moment.
None contains a documented port (8000, 8001, 8099), because tests replace those in scripts."""


class LiveServer(NamedTuple):
    """`home` is the directory it was started in, `environ` what it was started with."""

    url: str
    folder: Path
    environ: dict[str, str]


def free_port() -> int:
    """A port for a server that cannot be asked which port it has."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def plain_environ(**more: str) -> dict[str, str]:
    """This process's environment without keys, settings, sign-ins and proxies of the machine it runs on."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not re.search(r"_API_KEY$|_BASE_URL$|^LUXX_|_proxy$|_PROXY$", name)
    }
    kept |= {"XDG_CONFIG_HOME": USER_FILES.name, "XDG_STATE_HOME": USER_FILES.name}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"} | more


@contextmanager
def scripted_models(script: Script) -> Iterator[ScriptedProvider]:
    """Serves a script without asking that all of it be used: each test of a module uses its part."""
    provider = ScriptedProvider(script)
    provider.__enter__()
    try:
        yield provider
    finally:
        provider.__exit__(GeneratorExit, GeneratorExit(), None)


@contextmanager
def live_server(folder: Path, model_url: str, **more: str) -> Iterator[LiveServer]:
    """Starts in `home`; `model_url` is an OpenAI-compatible server that has the model `scripted`."""
    environ = plain_environ(
        LUXX_APP__PORT="0",
        LUXX_LLM__PROVIDER="openai_compatible",
        LUXX_LLM__API_URL=f"{model_url}/v1",
        LUXX_LLM__MODEL="scripted",
        LUXX_LOCAL__ENABLED="false",
        LUXX_AUTH__PASSWORD_COST="10",
        **more,
    )
    with (folder / "server.log").open("ab") as log:
        process = ForkedProcess(["serve"], cwd=folder, env=environ, stderr=log)
    try:
        yield LiveServer(_address(process, folder), folder, environ)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _address(process: ForkedProcess, folder: Path) -> str:
    """The address in the line that the server prints once it accepts connections."""
    lines: Queue[str] = Queue()

    def read() -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    try:
        while line := lines.get(timeout=START_SECONDS):
            if match := LISTENS.search(line):
                return match[1]
    except Empty:
        pass
    raise AssertionError("the server did not start:\n" + (folder / "server.log").read_text("utf-8")[-3000:])
