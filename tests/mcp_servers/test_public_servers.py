"""Six public servers, three of Node.js and three of Python, used in a chat in each sandbox backend.

The first five run with the configuration of docs/agents/mcp.md. `make test-heavy` installs them.
"""

import asyncio
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import asks, set_rules

from luxx.providers.scripted import Call, ScriptedProvider
from mcp_servers.test_documented import FENCE, PAGE

INSTALLED = Path(__file__).parents[2] / ".venv/mcp-servers"
START_SECONDS = 90.0
SQLITE = {
    "name": "sqlite",
    "command": [
        "python3",
        "-c",
        "import mcp_server_sqlite; mcp_server_sqlite.main()",
        "--db-path",
        "data.db",
    ],
    "env": ["PYTHONPATH=/opt/mcp/sqlite"],
    "reads": ["/opt/mcp/sqlite"],
}

pytestmark = pytest.mark.heavy


def documented() -> list[dict[str, Any]]:
    """The servers of the documentation's section on public servers."""
    blocks = [yaml.safe_load(body) for kind, body in FENCE.findall(PAGE) if kind == "yaml"]
    (servers,) = [
        block["mcp"]["servers"] for block in blocks if "mcp" in block and len(block["mcp"]["servers"]) > 1
    ]
    return servers


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A directory that every user may read, with a copy of the installed servers as `opt`."""
    assert INSTALLED.is_dir(), "run make .venv/.installed-mcp-servers"
    with tempfile.TemporaryDirectory(prefix="luxx-public-mcp-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(INSTALLED, folder / "opt", symlinks=True)
        yield folder


@pytest.fixture(params=["bubblewrap", "landlock"], scope="module")
def server(request: pytest.FixtureRequest, root: Path) -> Iterator[ServerProcess]:
    data_dir = root / request.param / "data"
    data_dir.mkdir(parents=True)
    (data_dir / "packages").symlink_to(root / "opt/python")
    repository = data_dir.parent / "workspaces/mcp/default_git"
    repository.mkdir(parents=True)
    for arguments in (
        ["init", "-q"],
        ["config", "user.name", "Ann"],
        ["config", "user.email", "ann@example.org"],
    ):
        subprocess.run(["git", *arguments], cwd=repository, check=True)
    (repository / "a.txt").write_text("first\n", "utf-8")
    servers = json.dumps([*documented(), SQLITE]).replace("/opt/mcp", str(root / "opt"))
    settings = {
        "LUXX_MCP__SERVERS": servers,
        "LUXX_TOOLS__SANDBOX": request.param,
        "LUXX_TOOLS__MAX_ITERATIONS": "4",
    }
    with ServerProcess(data_dir.parent, **settings) as started_server:
        yield started_server


async def all_running(ann: AsyncApiClient) -> dict[str, Json]:
    """The listed servers by name, as soon as all of them run."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            listed = (await ann.get("/mcp/servers"))["items"]
            if all(one["status"] == "ready" for one in listed):
                return {one["name"]: one for one in listed}
            failed = [one["problem"] for one in listed if one["status"] == "failed"]
            assert not failed
            await asyncio.sleep(0.2)


async def chat(ann: AsyncApiClient, *calls: tuple[str, Json]) -> list[Any]:
    """The results of these calls, made at once by a model in a new chat."""
    made = [
        Call(name=f"mcp__default_{name}", arguments=arguments, id=f"call-{number}")
        for number, (name, arguments) in enumerate(calls)
    ]
    async with ScriptedProvider(asks(*made)) as model:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        await ann.wait_for_end(run["id"])
        steps = (await ann.messages(conversation))[-1]["steps"]
        by_call = {
            step["id_ref"]: json.loads(step["content"]) for step in steps if step["type"] == "tool_result"
        }
        return [by_call[call.id] for call in made]


def text_of(result: Json) -> str:
    assert result["success"], result
    return json.dumps(result["data"])


async def test_six_public_servers_are_used_in_a_chat(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        by_name = await all_running(ann)
        assert len(by_name) == 6
        assert all(one["tools"] and not one["left_out"] for one in by_name.values())
        await set_rules(ann, "allow mcp__default_*(*)")
        entity = {"name": "Ann", "entityType": "person", "observations": ["likes pears"]}
        written = await chat(
            ann,
            ("files__write_file", {"path": "note.txt", "content": "two pears"}),
            ("memory__create_entities", {"entities": [entity]}),
            (
                "thinking__sequentialthinking",
                {"thought": "One.", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
            ),
            (
                "time__convert_time",
                {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
            ),
            ("git__git_add", {"repo_path": ".", "files": ["a.txt"]}),
            ("sqlite__create_table", {"query": "CREATE TABLE fruit (name TEXT)"}),
        )
        assert [result["success"] for result in written] == [True] * 6, written
        assert "thoughtHistoryLength" in text_of(written[2])
        assert "21:00" in text_of(written[3])
        await chat(
            ann,
            ("git__git_commit", {"repo_path": ".", "message": "Begin with a note"}),
            ("sqlite__write_query", {"query": "INSERT INTO fruit VALUES ('pear')"}),
        )
        read = await chat(
            ann,
            ("files__read_text_file", {"path": "note.txt"}),
            ("memory__search_nodes", {"query": "pears"}),
            ("git__git_log", {"repo_path": "."}),
            ("sqlite__read_query", {"query": "SELECT name FROM fruit"}),
        )
        for result, part in zip(read, ("two pears", "likes pears", "Begin with a note", "pear"), strict=True):
            assert part in text_of(result)
