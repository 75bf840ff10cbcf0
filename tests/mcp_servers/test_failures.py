"""Why a server could not be started: a sentence that says what to do, and what the server printed."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from luxx.domain.mcp.results import reason_of_end
from luxx.domain.mcp.server import ServerState
from luxx.domain.mcp.service import BUILT_IN_LIMITS, limits_of_servers
from luxx.infra.config.schema import ToolLimits, ToolsConfig
from luxx.tools.core import CallPermissions, CommandPermission, ToolCaller, ToolContext, ToolDefinition
from luxx.tools.permissions.judge import Judge
from luxx.tools.sandbox.process import ProgramResult
from mcp_servers import hostile
from mcp_servers.harness import open_harness, readable, script

AT_THE_START: dict[str, tuple[str, str]] = {
    "a module is missing": (
        "import nothing_here",
        "has ended: the module nothing_here is not installed, or the server may not read it; install it, and "
        "name its directory in `reads`, or put it below the server's `workspace`: "
        "ModuleNotFoundError: No module named 'nothing_here'",
    ),
    "it needs the network": (
        "import socket\nsocket.create_connection(('example.org', 80))",
        "has ended: it needs the network, which MCP servers do not have: ",
    ),
    "it opens too many files": (
        "held = [open('/dev/null') for _ in range(200)]",
        "has ended: it opened more than 100 files; raise open_files of mcp in tools.limits: OSError: ",
    ),
    "it needs too much memory": (
        "held = bytearray(400 << 20)",
        "has ended: it needed more than 300 MiB of memory; raise memory_mb of mcp in tools.limits: "
        "MemoryError",
    ),
    "a file cannot be read": (
        "open('/root/.ssh/id_rsa')",
        "has ended: a file is missing, or the server has no access to it; name its directory in `reads`",
    ),
}
LIMITS = [{"tool": "mcp", "open_files": 100, "memory_mb": 300}]


async def test_the_reason_names_the_cause_and_the_output_is_kept(backend: str) -> None:
    servers = [script(f"s{number}", text) for number, (text, _) in enumerate(AT_THE_START.values())]
    async with open_harness(servers, backend, limits=LIMITS) as harness:
        if harness is None:
            return
        for number, (what, (_, reason)) in enumerate(AT_THE_START.items()):
            status = await harness.wait_for_state(ServerState.FAILED, number)
            assert status.reason.startswith(reason), (what, status.reason)
            assert status.output.startswith("Traceback"), what
            assert status.since is not None


async def test_a_server_that_would_be_downloaded_is_named_as_such() -> None:
    program = readable("notes.py").parent / "npx"
    program.write_text("#!/bin/sh\necho waiting >&2\nexec sleep 3600\n", "utf-8")
    os.chmod(program, 0o755)
    server = {"name": "npx", "command": [str(program), "-y", "x"], "reads": [str(program.parent)]}
    async with open_harness([{**server, "start_seconds": 1}]) as harness:
        if harness is None:
            return
        status = await harness.wait_for_state(ServerState.FAILED)
        assert status.reason == (
            "was not ready within 1 seconds: npx downloads what it starts, and MCP servers have no network; "
            "install the server first, and name its program in `command`: waiting"
        )
        assert status.output == "waiting"


async def test_a_part_of_a_secret_is_not_shown_where_long_output_is_cut() -> None:
    text = "import os, sys\nsys.exit((os.environ['TOKEN'] * 2000)[7:] + '\\nbad')"
    async with open_harness([script("bad", text, env=["TOKEN=sk-a-secret"])]) as harness:
        if harness is None:
            return
        status = await harness.wait_for_state(ServerState.FAILED)
        assert (status.reason, status.output) == ("has ended: the program ended with exit code 1: bad", "bad")


PRINTED_BY_NODE: dict[str, tuple[int, str, str]] = {
    "files": (
        1,
        "node:fs:573\n  return binding.open(\n\nError: EMFILE: too many open files, open '/x/index.js'\n"
        "    at Object.openSync (node:fs:573:18) {\n  errno: -24,\n  code: 'EMFILE'\n}\n\nNode.js v20.20.2",
        "it opened more than 4,096 files; raise open_files of mcp in tools.limits: "
        "Error: EMFILE: too many open files, open '/x/index.js'",
    ),
    "module": (
        1,
        "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from /x/index.js\n\n"
        "Node.js v20.20.2",
        "the module zod is not installed, or the server may not read it; install it, and name its directory "
        "in `reads`, or put it below the server's `workspace`: "
        "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from /x/index.js",
    ),
    "network": (
        1,
        "npm error code EAI_AGAIN\nnpm error syscall getaddrinfo\nnpm error errno EAI_AGAIN\n"
        "npm error request failed, reason: getaddrinfo EAI_AGAIN example.org\n"
        "npm error A complete log of this run can be found in: /workspace/.npm/_logs/x.log",
        "npx downloads what it starts, and MCP servers have no network; install the server first, and name "
        "its program in `command`: npm error request failed, reason: getaddrinfo EAI_AGAIN example.org",
    ),
    "memory": (
        134,
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n 1: 0xb7a [node]",
        "it needed more than 1024 MiB of memory; raise memory_mb of mcp in tools.limits: "
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
    ),
    "killed": (137, "", "it was killed, probably because the machine had no memory left"),
    "nothing known": (3, "Usage: server DIR\n\n", "the program ended with exit code 3: Usage: server DIR"),
}


@pytest.mark.parametrize("what", PRINTED_BY_NODE)
def test_what_node_prints_becomes_a_sentence(what: str) -> None:
    code, stderr, reason = PRINTED_BY_NODE[what]
    ended = ProgramResult(
        exit_code=code,
        stdout=b"",
        stderr=stderr.encode(),
        is_truncated=False,
        exceeded_limit=None,
        seconds=1,
        cpu_seconds=1,
        memory=1,
    )
    assert reason_of_end(ended, stderr, BUILT_IN_LIMITS, ["npx", "-y", "x"]) == reason


def test_the_limits_of_servers_are_their_own_unless_configured() -> None:
    assert limits_of_servers([]) == BUILT_IN_LIMITS
    assert (BUILT_IN_LIMITS.open_files, BUILT_IN_LIMITS.memory_mb, BUILT_IN_LIMITS.processes) == (
        4096,
        1024,
        128,
    )
    changed = limits_of_servers([ToolLimits(tool="mcp", open_files=200), ToolLimits(cpu_seconds=5)])
    assert changed == msgspec.structs.replace(BUILT_IN_LIMITS, open_files=200)


@pytest.mark.parametrize("trusted", [True, False])
async def test_reading_calls_of_a_trusted_server_do_not_ask_in_a_tainted_run(
    tmp_path: Path, trusted: bool
) -> None:
    writes: dict[str, Any] = {"name": "write", "inputSchema": {"type": "object"}}
    text = hostile.SPEAKS + f"serve(lambda message: text(message, 'well'), [*TOOLS, {writes}])"
    async with open_harness([script("notes", text, trusted=trusted)]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        judge = Judge(ToolsConfig(), is_sandboxed=lambda: True)
        context = ToolContext(
            caller=ToolCaller(
                user_id=1, username="ann", permission_level=CommandPermission.EXECUTE, tenant_id=1
            ),
            permissions=CallPermissions(tainted_by="web_fetch"),
        )

        def decided(tool: ToolDefinition) -> tuple[str, str]:
            verdict = judge.verdict(tool, {}, context)
            return verdict.action, verdict.decided_by

        assert decided(harness.tool("act")) == (("allow", "risk") if trusted else ("ask", "taint"))
        assert decided(harness.tool("write")) == ("ask", "taint")
