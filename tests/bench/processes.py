"""The measured servers: started on a core of their own; their CPU time is read from the system's clocks."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

ROOT = Path(__file__).parent.parent.parent
PASSWORD = "a password for measuring 1"
START_SECONDS = 60.0

LUXX_SETTINGS = {
    "LUXX_LOCAL__ENABLED": "false",
    "LUXX_LIMITS__REQUESTS_PER_MINUTE": "0",
    "LUXX_LIMITS__LOGINS_PER_MINUTE": "0",
    "LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": "0",
    "LUXX_LIMITS__CONCURRENT_RUNS": "0",
    "LUXX_LIMITS__STREAMS_PER_USER": "0",
    "LUXX_TOOLS__MODULES": "tests.bench.trivial_tools",
    "LUXX_TOOLS__MAX_ITERATIONS": "1000",
    "LUXX_TOOLS__ENABLE_CACHE": "false",
    "LUXX_LOGGING__LEVEL": "WARNING",
    "LUXX_ADMIN_PASSWORD": PASSWORD,
}


def pin_tools() -> bool:
    """Pins this process to the last core it may use, so that the first is the server's. False if it
    cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return False
    os.sched_setaffinity(0, {cores[-1]})
    return True


def server_core() -> int | None:
    """The core of the measured servers."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    cores = range(os.cpu_count() or 1)
    mine = os.sched_getaffinity(0)
    return next((core for core in cores if core not in mine), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class MeasuredServer:
    """A measured process with all its children."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process = process
        self.port = port

    def cpu(self) -> float:
        """CPU seconds so far of the process tree."""
        parent = psutil.Process(self.process.pid)
        return sum(_cpu_of(each) for each in (parent, *parent.children(recursive=True)))

    def cpu_with_ended(self) -> float:
        """CPU seconds so far of the process tree, and of those of its processes that have ended."""
        parent = psutil.Process(self.process.pid)
        times = [each.cpu_times() for each in (parent, *parent.children(recursive=True))]
        return self.cpu() + sum(each.children_user + each.children_system for each in times)

    def threads_cpu(self) -> float:
        """CPU seconds of all threads but the main one: in Luxx, the database's and the tools'."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        if not tasks.is_dir():
            threads = psutil.Process(self.process.pid).threads()
            return sum(t.user_time + t.system_time for t in threads if t.id != self.process.pid)
        return sum(
            int((task / "schedstat").read_text().split()[0]) / 1e9
            for task in tasks.iterdir()
            if task.name != str(self.process.pid)
        )

    def memory(self) -> int:
        """Resident bytes of the process tree."""
        parent = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in (parent, *parent.children(recursive=True)))


def _cpu_of(process: psutil.Process) -> float:
    if sys.platform == "linux":
        # The CPU clock of another process, in ns, ended threads included; psutil counts in 10 ms ticks.
        return time.clock_gettime((~process.pid << 3) | 2)
    times = process.cpu_times()
    return times.user + times.system


@contextlib.contextmanager
def started(
    command: list[str], port: int, environ: Mapping[str, str] = os.environ
) -> Iterator[MeasuredServer]:
    """Runs a server until the block ends; it is up when its port answers."""
    core = server_core()
    process = subprocess.Popen(command, cwd=ROOT, env=dict(environ), stdout=subprocess.DEVNULL)
    if core is not None:
        os.sched_setaffinity(process.pid, {core})
    try:
        _wait_for_port(process, port)
        yield MeasuredServer(process, port)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(process: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"a server under measure ended at once (status {process.returncode})")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    raise RuntimeError("a server under measure did not come up")


class Api:
    """Luxx's API for preparations that are not measured."""

    def __init__(self, port: int) -> None:
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        signed_in = self._post("/auth/login", {"username": "admin", "password": PASSWORD})
        self.token: str = signed_in["access_token"]
        self._http.headers["authorization"] = f"Bearer {self.token}"

    def close(self) -> None:
        self._http.close()

    def connect_upstream(
        self, port: int, provider_type: str = "openai_compatible", model: str = "bench-model"
    ) -> str:
        """Makes the fake model server a provider of the user, with chat completions the default one; returns
        its id."""
        is_default = provider_type == "openai_compatible"
        provider = {
            "name": provider_type,
            "provider_type": provider_type,
            "base_url": f"http://127.0.0.1:{port}/v1",
            "default_model": model,
            "is_default": is_default,
        }
        return self._post("/providers", provider)["id"]

    def new_conversations(self, count: int, provider_id: str | None = None) -> list[str]:
        body = {} if provider_id is None else {"provider_id": provider_id}
        return [self._post("/conversations", body)["id"] for _ in range(count)]

    def new_room(self, names: tuple[str, ...], rounds: int, marker: str) -> str:
        """A room with seats of these names, whose models answer as the marker says. Returns its id."""
        seats = [
            {"name": name, "role": f"the {name}", "system_prompt": marker, "tools": []} for name in names
        ]
        body = {"title": "Bench", "task": "Discuss what this costs.", "agents": seats, "max_rounds": rounds}
        return self._post("/chat-rooms", body)["id"]

    def new_task(self, steps: list[dict[str, object]], concurrent: int, marker: str) -> str:
        """A task with these steps, whose models answer as the marker says. Returns its id."""
        body = {"name": "Bench", "goal": marker, "steps": steps, "max_concurrent_steps": concurrent}
        return self._post("/tasks", body)["id"]

    def new_base(self) -> str:
        return self._post("/knowledge", {"name": "Bench", "description": "", "scope": "user"})["id"]

    def add_document(self, base: str, name: str, data: bytes) -> str:
        """Adds a document to a knowledge base. Returns its id."""
        answer = self._http.post(f"/knowledge/{base}/documents", files=[("file", (name, data))])
        if answer.is_error:
            raise RuntimeError(f"{name}: {answer.status_code} {answer.text[:500]}")
        return answer.json()["data"]["items"][0]["id"]

    def document(self, base: str, document: str) -> dict[str, Any]:
        return self._http.get(f"/knowledge/{base}/documents/{document}").json()["data"]

    def begin_waiting(self, conversation: str) -> None:
        """Starts a run that waits for an approval: its model calls a tool of high risk."""
        body = {"conversation_id": conversation, "content": "[[loop=1 tools=bench_risky]]", "tools": True}
        answer = self._http.post("/messages", json=body)
        if answer.status_code != 409 or b"run_waiting" not in answer.content:
            raise RuntimeError(f"the run does not wait: {answer.status_code} {answer.text[:500]}")

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The data of any other request."""
        answer = self._http.request(method, path, json=body)
        if answer.is_error:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()["data"]

    def _post(self, path: str, body: object) -> dict[str, str]:
        answer = self._http.post(path, json=body)
        if answer.is_error:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")
        return msgspec.json.decode(answer.content)["data"]


@contextlib.contextmanager
def luxx_server(
    extra: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()
) -> Iterator[MeasuredServer]:
    """`luxx serve` with a data directory that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="luxx-bench-") as data_dir:
        port = free_port()
        environ = {**os.environ, **LUXX_SETTINGS, **(extra or {})}
        environ["LUXX_WORKSPACE__ROOT"] = f"{data_dir}/workspaces"
        environ["PYTHONPATH"] = str(ROOT)
        command = [
            *prefix, sys.executable, "-m", "tests.bench.serve", "serve",
            "--port", str(port), "--data-dir", data_dir,
        ]  # fmt: skip
        with started(command, port, environ) as server:
            yield server
