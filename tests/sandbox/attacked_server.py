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
from scenarios.server import LuxxServer
from web.site import Site, page, site

PATIENCE = 60.0
Json = dict[str, Any]


class Child:
    """One process below the server at one moment."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.command = " ".join(psutil.Process(pid).cmdline())
        self.status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        self.descriptors: dict[int, str] = {}
        for one in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                self.descriptors[int(one.name)] = os.readlink(one)
        self.namespaces = {name: os.readlink(f"/proc/{self.pid}/ns/{name}") for name in ("mnt", "net", "pid")}


def children(server: LuxxServer) -> list[Child]:
    """All processes below the server that could be looked at."""
    found: list[Child] = []
    for one in psutil.Process(server.pid).children(recursive=True):
        with suppress(psutil.Error, OSError):
            found.append(Child(one.pid))
    return found


def children_once(
    server: LuxxServer, name: str, *, more: Callable[[Child], bool] = lambda _: True
) -> list[Child]:
    """`children` as soon as one of them has `name` in its command line and fits."""
    wait_until = time.monotonic() + PATIENCE
    while time.monotonic() < wait_until:
        found = children(server)
        if any(name in one.command and more(one) for one in found):
            return found
    raise AssertionError(f"there was no process named {name}: {[one.command[:80] for one in found]}")


class Attacker:
    """The administrator of a server, by HTTP, and a web site that the server may read."""

    def __init__(self, server: LuxxServer, pages: Site) -> None:
        self.server = server
        self._pages = pages
        self._client = httpx.Client(base_url=server.url, timeout=PATIENCE)
        answer = self._client.post("/auth/login", json={"username": "admin", "password": "admin123"})
        token = answer.json()["data"]["access_token"]
        self._client.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        self._client.close()

    def execute(self, tool: str, **arguments: Any) -> Json:
        answer = self._client.post(f"/tools/{tool}/execute", json={"arguments": arguments})
        result: Json = answer.json()["data"]
        return result

    def read(self, body: str | bytes, kind: str) -> Json:
        """What `web_fetch` makes of a page."""
        path = f"/{len(self._pages.routes)}"
        self._pages.routes[path] = page(body, kind)
        return self.execute("web_fetch", url=f"http://127.0.0.1:{self._pages.port}{path}")

    def import_data(self, content: bytes) -> Json:
        """What the import of a file answers."""
        answer = self._client.post("/conversations/import", files={"file": ("a.json", content)})
        found: Json = answer.json()
        return found

    @contextmanager
    def meanwhile(self, work: Callable[[], Json]) -> Iterator[list[Json]]:
        """`work` goes on beside; its answer is in the list afterwards."""
        answers: list[Json] = []
        thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
        thread.start()
        yield answers
        thread.join(PATIENCE)
        assert answers


@contextmanager
def attacked_server(
    data_dir: Path, environment: Mapping[str, str], inherited: Sequence[int] = (), config: str = ""
) -> Iterator[Attacker]:
    """A server whose parent leaves it `inherited`; `config` is its configuration file."""
    if config:
        data_dir.mkdir(parents=True, exist_ok=True)
        (data_dir / "config.yaml").write_text(config)
    with site() as pages:
        allowed = {"LUXX_TOOLS__WEB_ALLOW_PRIVATE": f"127.0.0.1:{pages.port}"}
        with LuxxServer(data_dir, {**environment, **allowed}, inherited) as server:
            attacker = Attacker(server, pages)
            try:
                yield attacker
            finally:
                attacker.close()


def in_force(attacker: Attacker) -> str:
    found = re.search(r'"sandbox":\s*"(\w+)"', httpx.get(f"{attacker.server.url}/health").text)
    assert found is not None
    return found[1]
