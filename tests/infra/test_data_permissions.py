"""Other Unix users cannot read what a server stores, while the server and its programs can."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from api.server_process import ServerProcess, model_settings
from process_environment import scripted_models

from luxx.providers.scripted import Rule, Script, Text

SCRIPT = Script(rules=[Rule(name="any", reply=[Text(text="noted")])])
OTHER_USER = 65534
STRANGER = 'for path; do if [ -r "$path" ]; then echo "$path"; fi; done'
PASSWORD = "a-new-password-1"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that other users can reach, unlike those of pytest."""
    directory = Path(tempfile.mkdtemp(prefix="luxx-test-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def stored(folder: Path) -> list[Path]:
    """Everything in the data directory, in the workspaces, and the backups."""
    roots = [folder / "data", folder / "workspaces", *folder.glob("*.backup")]
    return [path for root in roots for path in (root, *root.rglob("*"))]


def readable_by_others(folder: Path) -> set[str]:
    """Relative paths. As root, another user really tries to read them; otherwise the modes decide."""
    paths = stored(folder)
    if os.geteuid() != 0:
        return {str(path.relative_to(folder)) for path in paths if _is_open(folder, path)}
    tried = subprocess.run(
        ["/bin/sh", "-c", STRANGER, "sh", *map(str, paths)],
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return {str(Path(line).relative_to(folder)) for line in tried.stdout.splitlines()}


def _is_open(folder: Path, path: Path) -> bool:
    above = [each for each in path.parents if each.is_relative_to(folder)]
    return all(each.stat().st_mode & stat.S_IXOTH for each in above) and bool(
        path.stat().st_mode & stat.S_IROTH
    )


def use(server: ServerProcess) -> None:
    """Stores a message, a file, and the output of a program."""
    with httpx.Client(base_url=server.url, timeout=60) as client:

        def done(answer: httpx.Response) -> dict[str, object]:
            assert answer.is_success, answer.text
            return answer.json()["data"]

        signed_in = done(client.post("/auth/login", json={"username": "admin", "password": PASSWORD}))
        client.headers["Authorization"] = f"Bearer {signed_in['access_token']}"
        conversation = done(client.post("/conversations", json={"title": "private"}))
        message = {"conversation_id": conversation["id"], "content": "for my eyes only"}
        assert done(client.post("/messages", json=message))["text"] == "noted"
        done(client.post("/files", files={"file": ("notes.txt", b"mine")}))
        command = {"arguments": {"command": "cat notes.txt && mkdir -p deep && echo made > deep/made.txt"}}
        ran = done(client.post("/tools/shell_execute/execute", json=command))
        assert ran["success"], ran
        assert "mine" in str(ran["data"])
        read = done(client.post("/tools/file_read/execute", json={"arguments": {"path": "deep/made.txt"}}))
        assert "made" in str(read["data"])


def luxx(server: ServerProcess, *arguments: str) -> None:
    subprocess.run(
        ["luxx", *arguments],
        cwd=server.folder,
        env=server.environ,
        check=True,
        capture_output=True,
        timeout=60,
    )


def open_up(folder: Path) -> None:
    """Sets the modes that an older version used."""
    for path in stored(folder):
        if path.name not in ("secret_key", "first.backup"):
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.heavy
@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_no_other_user_reads_what_a_server_stores(folder: Path, sandbox: str) -> None:
    settings = {
        "LUXX_TOOLS__SANDBOX": sandbox,
        "LUXX_ADMIN_PASSWORD": PASSWORD,
    }
    with scripted_models(SCRIPT) as model:
        with ServerProcess(folder, is_prepared=False, **model_settings(model.url), **settings) as server:
            use(server)
            luxx(server, "backup", "first.backup")
            assert readable_by_others(folder) == set()
        open_up(folder)
        assert "data/luxx.db" in readable_by_others(folder)
        with ServerProcess(folder, is_prepared=False, **model_settings(model.url), **settings) as server:
            assert readable_by_others(folder) == set()
            use(server)
            assert readable_by_others(folder) == set()
        assert "data_permissions_tightened" in server.output
        luxx(server, "restore", "first.backup", "--replace", "--yes")
        assert readable_by_others(folder) == set()
        with ServerProcess(folder, is_prepared=False, **model_settings(model.url), **settings) as server:
            use(server)
