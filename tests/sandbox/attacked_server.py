"""A real server for attacks, and its child processes as another process of the machine sees them."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from api.server_process import ADMIN_PASSWORD, ServerProcess
from web.site import Site, page, site

PATIENCE = 60.0
Json = dict[str, Any]


class Child:
    """One descendant process of the server at one moment."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.command = " ".join(psutil.Process(pid).cmdline())
        self.status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        self.descriptors: dict[int, str] = {}
        for directory in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                self.descriptors[int(directory.name)] = os.readlink(directory)
        self.namespaces = {name: os.readlink(f"/proc/{self.pid}/ns/{name}") for name in ("mnt", "net", "pid")}


def children(server: ServerProcess) -> list[Child]:
    """All descendants of the server that can be read in `/proc`."""
    children_found: list[Child] = []
    for process in psutil.Process(server.pid).children(recursive=True):
        with suppress(psutil.Error, OSError):
            children_found.append(Child(process.pid))
    return children_found


def children_once(
    server: ServerProcess, name: str, *, more: Callable[[Child], bool] = lambda _: True
) -> list[Child]:
    """`children`, as soon as one of them has `name` in its command line and `more` accepts it."""
    wait_until = time.monotonic() + PATIENCE
    while time.monotonic() < wait_until:
        processes = children(server)
        if any(name in process.command and more(process) for process in processes):
            return processes
    raise AssertionError(
        f"there was no process named {name}: {[process.command[:80] for process in processes]}"
    )


class Attacker:
    """The administrator of a server, by HTTP, and a web site that the server may read."""

    def __init__(self, server: ServerProcess, pages: Site) -> None:
        self.server = server
        self._pages = pages
        self._client = httpx.Client(base_url=server.url, timeout=PATIENCE)
        answer = self._client.post("/auth/login", json={"username": "admin", "password": ADMIN_PASSWORD})
        token = answer.json()["data"]["access_token"]
        self._client.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        self._client.close()

    def execute(self, tool: str, **arguments: Any) -> Json:
        answer = self._client.post(f"/tools/{tool}/execute", json={"arguments": arguments})
        result: Json = answer.json()["data"]
        return result

    def read(self, body: str | bytes, kind: str) -> Json:
        """The result of `web_fetch` for a page with this body."""
        path = f"/{len(self._pages.routes)}"
        self._pages.routes[path] = page(body, kind)
        return self.execute("web_fetch", url=f"http://127.0.0.1:{self._pages.port}{path}")

    def import_data(self, content: bytes) -> Json:
        """The answer to the import of a file."""
        answer = self._client.post("/conversations/import", files={"file": ("a.json", content)})
        report: Json = answer.json()
        return report

    @contextmanager
    def meanwhile(self, work: Callable[[], Json]) -> Iterator[list[Json]]:
        """Runs `work` in a thread; its answer is in the list after the block."""
        answers: list[Json] = []
        thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
        thread.start()
        yield answers
        thread.join(PATIENCE)
        assert answers


@contextmanager
def attacked_server(
    folder: Path, environment: Mapping[str, str], inherited: Sequence[int] = (), config: str = ""
) -> Iterator[Attacker]:
    """A server that inherits the descriptors `inherited`; `config` is its configuration file."""
    if config:
        (folder / "config.yaml").write_text(config)
    with site() as pages:
        allowed = {"LUXX_TOOLS__WEB_ALLOW_PRIVATE": f"127.0.0.1:{pages.port}"}
        with ServerProcess(folder, inherited=inherited, **environment, **allowed) as server:
            attacker = Attacker(server, pages)
            try:
                yield attacker
            finally:
                attacker.close()


def in_force(attacker: Attacker) -> str:
    match = re.search(r'"sandbox":\s*"(\w+)"', httpx.get(f"{attacker.server.url}/health").text)
    assert match is not None
    return match[1]
