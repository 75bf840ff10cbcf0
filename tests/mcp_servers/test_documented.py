"""The example in docs/agents/mcp.md works as written, and its table of keys is complete."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from luxx.domain.mcp.server import ServerState
from luxx.errors import ConfigError
from luxx.infra.config.file import load_config
from luxx.infra.config.schema import McpServerConfig
from mcp_servers.harness import open_harness

PAGE = (Path(__file__).parents[2] / "docs/agents/mcp.md").read_text("utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def documented_block(kind: str) -> str:
    """The first code block of this kind: that of the example."""
    return next(body for name, body in FENCE.findall(PAGE) if name == kind)


@pytest.fixture
def opt() -> Iterator[Path]:
    """A directory that every user may read, like /opt."""
    folder = Path(tempfile.mkdtemp(prefix="luxx-mcp-documented-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


async def test_the_example_of_the_documentation_works(opt: Path) -> None:
    (opt / "server.py").write_text(documented_block("python"), "utf-8")
    (opt / "config.yaml").write_text(documented_block("yaml").replace("/opt/notes", str(opt)), "utf-8")
    config = load_config(opt / "config.yaml", {"NOTES_AUTHOR": "carol"}, {})

    async with open_harness([msgspec.to_builtins(server) for server in config.mcp.servers]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        assert (
            await harness.call("keep_note", name="milk", text="two bottles")
        ).result.data == "kept as milk"
        assert (await harness.call("read_note", name="milk")).result.data == "two bottles\n-- carol"


def test_every_key_of_a_server_is_documented_with_its_default() -> None:
    section = PAGE.partition("\n## Configuration\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", section, re.MULTILINE))
    real = {
        field.name: "needed" if field.required else msgspec.json.encode(field.default).decode()
        for field in msgspec.structs.fields(McpServerConfig)
        if field.default_factory is msgspec.NODEFAULT
    }
    real |= {
        field.name: "[]"
        for field in msgspec.structs.fields(McpServerConfig)
        if field.default_factory is not msgspec.NODEFAULT
    }
    assert rows == real


WRONG: dict[str, tuple[str, int, str]] = {
    "a name with a space": ("mcp:\n  servers:\n    - name: my notes\n      command: [x]\n", 3, "name"),
    "no command": ("mcp:\n  servers:\n    - name: notes\n      command: []\n", 3, "command"),
    "a variable without a name": (
        "mcp:\n  servers:\n    - name: notes\n      command: [x]\n      env: [sk-secret]\n",
        5,
        "env",
    ),
    "a variable that is not set": (
        "mcp:\n  servers:\n    - name: notes\n      command: [x]\n      env: ['A=${NOT_SET}']\n",
        5,
        "NOT_SET",
    ),
    "a name twice": (
        "mcp:\n  servers:\n    - {name: notes, command: [x]}\n    - {name: notes, command: [y]}\n",
        4,
        "this name",
    ),
    "an unknown key": ("mcp:\n  servers:\n    - name: notes\n      comand: [x]\n", 4, "command"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_server_stops_the_start_with_its_line(tmp_path: Path, what: str) -> None:
    text, line, said = WRONG[what]
    file = tmp_path / "config.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as refused:
        load_config(file, {}, {})
    assert refused.value.message.startswith(f"{file}:{line}: ")
    assert said in refused.value.message
    assert "sk-secret" not in refused.value.message


def test_the_environment_of_a_server_is_not_in_its_repr() -> None:
    server = McpServerConfig(name="notes", command=["x", "--key=sk-secret"], env=["KEY=sk-secret"])
    assert "sk-secret" not in repr(server)
