"""The part of a server's list that models get: bounded in total, and without the server's secrets."""

from pathlib import Path
from typing import Any

import pytest

from luxx.domain.mcp.call import McpCall
from luxx.domain.mcp.inbox import Secrets
from luxx.domain.mcp.offering import MOST_REASONS, OfferedTools, build_offered_tools
from luxx.domain.mcp.sdk import ListedTool
from luxx.domain.mcp.server import MIB, Backoff, McpDirectory
from luxx.errors import ToolFailed
from luxx.infra.config.schema import McpServerConfig
from luxx.tools.hooks import store_no_images
from luxx.wire.tool import ToolResult

SECRET = "sk-a-key-that-nobody-may-see"
CONFIG = McpServerConfig(name="notes", command=["notes"], env=[f"KEY={SECRET}", "DEBUG=1"])


async def call(call: McpCall) -> ToolResult:
    raise ToolFailed("is not there")


def offer_tools(*tools: ListedTool) -> OfferedTools:
    return build_offered_tools(CONFIG, "mcp__default_notes__", tools, call, store_no_images)


def listed_tool(name: str, description: str = "Does it.", **properties: Any) -> ListedTool:
    schema = {"type": "object", "properties": properties}
    return ListedTool(name=name, description=description, parameters=schema, is_read_only=True)


def test_all_tools_of_a_server_together_are_bounded() -> None:
    large = {f"p{n}": {"description": "x" * 900} for n in range(30)}
    offer = offer_tools(*(listed_tool(f"large-{n}", **large) for n in range(10)), listed_tool("small"))
    assert [tool.name.rpartition("__")[2] for tool in offer.tools.list_all()] == [
        *(f"large-{n}" for n in range(4)),
        "small",
    ]
    assert offer.left_out[0] == "large-4: all tools together take more than 128 KiB"


def test_reasons_are_bounded() -> None:
    offer = offer_tools(*(listed_tool(f"t{n}", **{"a b": {}}) for n in range(200)))
    assert len(offer.left_out) == MOST_REASONS + 1
    assert offer.left_out[-1] == f"{200 - MOST_REASONS} more"


def test_secrets_of_a_server_are_not_in_the_descriptions_of_its_tools() -> None:
    padding = "x" * (2_000 - len(SECRET) // 2)
    offer = offer_tools(
        listed_tool("told", description=padding + SECRET),
        listed_tool(f"{'n' * 90}{SECRET}", **{"a b": {}}),
        listed_tool("value", a={"enum": [SECRET]}),
        listed_tool("argument", **{f"{'a' * 60} {SECRET}": {}}),
    )
    (tool,) = offer.tools.list_all()
    assert tool.description == padding + "…"
    assert "sk-a" not in str(offer.left_out)
    assert "value: it contains a value of the server's env" in offer.left_out


def test_secrets_are_taken_out_of_data_wherever_they_are() -> None:
    secrets = Secrets(CONFIG.env)
    clean = {"a": [1, None, "1"], "b": {"c": True}}
    assert secrets.hidden_in(clean) is clean
    assert secrets.hidden_in({SECRET: [{"a": f"401 for {SECRET}"}]}) == {"…": [{"a": "401 for …"}]}


def test_a_server_whose_directory_is_full_after_restarts_is_not_started(tmp_path: Path) -> None:
    own = McpDirectory(tmp_path / "own", 1, is_own=True)
    own.make()
    (tmp_path / "own/file").write_bytes(b"x" * (2 * MIB))
    own.make()
    (tmp_path / "own/more").write_bytes(b"x")
    with pytest.raises(ToolFailed, match="holds 2 MiB by now; delete some of it"):
        own.make()
    theirs = McpDirectory(tmp_path / "own", 1, is_own=False)
    theirs.make()
    (tmp_path / "own/most").write_bytes(b"x" * (2 * MIB + 1))
    with pytest.raises(ToolFailed, match="is not started"):
        theirs.make()


def test_repeated_requests_are_served_less_and_less_often() -> None:
    now = 0.0
    pace = Backoff(lambda: now, 1.0, 300.0, 60.0)
    waits: list[float] = []
    for _ in range(11):
        waits.append(pace.seconds_to_wait)
        now += pace.seconds_to_wait
        pace.done()
    assert waits == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    now += 360
    pace.done()
    assert pace.seconds_to_wait == 1
