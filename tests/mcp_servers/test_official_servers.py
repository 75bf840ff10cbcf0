"""An MCP server made with the official SDK: its tools for users of its tenant, through the executor.

The harness is None where this machine does not offer the sandbox backend; then the test has nothing to check.
"""

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from luxx.domain.mcp.server import ServerState
from luxx.tools.core import CommandPermission, Risk
from luxx.tools.history import CallStatus
from mcp_servers import hostile
from mcp_servers.harness import open_harness, sample_server, script, until

PROC = Path("/proc")
TOOLS_OF_NOTES = 11
"""The tools in `samples/notes.py` at its start."""
NOTES = sample_server("notes", "notes.py", env=["NOTES_TOKEN=top secret 'x'"])


async def test_tools_of_a_server_are_called_like_any_other(backend: str) -> None:
    async with open_harness([NOTES], backend) as harness:
        if harness is None:
            return
        status = await harness.wait_for_state(ServerState.RUNNING)
        assert (status.tools, status.left_out) == (TOOLS_OF_NOTES, [])
        assert (await harness.call("add", a=1, b=2)).result.data == 3
        assert (await harness.call("count_words", text="a b a")).result.data == {"a": 2, "b": 1}
        told = "[image: image/png, 70 bytes, not shown: no files are stored here]"
        assert (await harness.call("draw")).result.data == told
        failed = await harness.call("fail")
        assert (failed.status, failed.result.error) == (CallStatus.FAILED, "Error executing tool fail")
        invalid = await harness.call("add", a="no number", b=2)
        assert (invalid.status, list(invalid.problems)) == (CallStatus.INVALID, ["arguments.a"])


async def test_a_server_sees_its_own_directory_and_its_variables_and_nothing_of_the_host(
    backend: str,
) -> None:
    async with open_harness([NOTES], backend) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        assert (await harness.call("variable", name="NOTES_TOKEN")).result.data == "top secret 'x'"
        assert (await harness.call("variable", name="LUXX_SECRET")).result.data == ""
        note_result = await harness.call("write_note", name="milk", text="two bottles")
        assert note_result.result.data == "kept milk beside ['milk']"
        assert (harness.workspace() / "milk").read_text("utf-8") == "two bottles"
        surroundings = (await harness.call("world")).result.data
        assert surroundings["uid"] != 0
        assert "top secret" not in arguments_of_all_processes()


def arguments_of_all_processes() -> str:
    command_lines: list[str] = []
    for directory in PROC.iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                command_lines.append((directory / "cmdline").read_text("utf-8", "replace"))
    return "\n".join(command_lines)


@pytest.mark.heavy
def test_the_sdk_is_not_loaded_until_a_server_is_started() -> None:
    program = (
        "import sys, luxx.app.application; print(sorted({'mcp', 'mcp_types', 'pydantic'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


async def test_hints_of_a_server_decide_the_risk_and_all_its_content_is_untrusted() -> None:
    async with open_harness([NOTES]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        # The sample server says of `add` that it only reads.
        add, write_note = harness.tool("add"), harness.tool("write_note")
        assert (add.risk, write_note.risk) == (Risk.LOW, Risk.HIGH)
        for tool in (add, write_note):
            assert tool.category == "mcp"
            assert tool.required_permission == CommandPermission.EXECUTE
            assert (tool.brings_untrusted, tool.is_egress, tool.starts_programs) == (True, True, True)
        assert (await harness.call("add", a=1, b=2)).is_untrusted


async def test_a_server_is_available_to_its_tenant_and_level_only() -> None:
    async with open_harness([NOTES]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        foreign = await harness.call("add", tenant_id=2, a=1, b=2)
        unknown = await harness.call("nothing", tenant_id=2)
        assert (foreign.status, unknown.status) == (CallStatus.UNKNOWN, CallStatus.UNKNOWN)
        # The error names the called tool; the tools that it lists after `;` have none of the other tenant.
        assert "mcp__" not in str(foreign.result.error).partition(";")[2]
        assert (await harness.call("add", level=2, a=1, b=2)).status == CallStatus.DENIED
        for tenant_id, tool_count in ((1, TOOLS_OF_NOTES), (2, 0), (3, 0)):
            tools = harness.servers.tools_for(tenant_id).available_to(CommandPermission.ADMIN)
            assert len(tools) == tool_count


async def test_calls_of_one_server_run_at_the_same_time() -> None:
    async with open_harness([NOTES]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        # Each call of `meet` returns only when the other one has begun.
        meetings = await asyncio.gather(
            harness.call("meet", name="ann", other="bob"), harness.call("meet", name="bob", other="ann")
        )
        assert [executed.result.data for executed in meetings] == ["ann met bob", "bob met ann"]


async def test_a_cancelled_call_is_cancelled_at_the_server_within_a_second(backend: str) -> None:
    async with open_harness([NOTES], backend) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        call = asyncio.create_task(harness.call("wait", name="long"))
        await until((harness.workspace() / "long.began").exists, bool)
        began = time.monotonic()
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        await until((harness.workspace() / "long.cancelled").exists, bool)
        assert time.monotonic() - began < 1
        assert (await harness.call("add", a=1, b=2)).result.data == 3


async def test_a_tool_added_later_is_offered() -> None:
    async with open_harness([NOTES]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        assert harness.tools.lookup("mcp__default_notes__grown") is None
        assert (await harness.call("grow")).result.data == "more"
        await until(lambda: harness.tools.lookup("mcp__default_notes__grown"), lambda tool: tool is not None)
        assert (await harness.call("grown")).result.data == "here"


async def test_long_results_are_cut_and_stored_completely() -> None:
    async with open_harness([NOTES]) as harness:
        if harness is None:
            return
        await harness.wait_for_state(ServerState.RUNNING)
        executed = await harness.call("long_text", lines=20_000)
        assert "output cut" in executed.result.data
        assert executed.full_output is not None
        assert executed.full_output.endswith("line 19999")


async def test_without_a_sandbox_no_server_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a machine with none of the programs that make a sandbox, and a kernel without Landlock.
    monkeypatch.setattr("luxx.tools.sandbox.choosing.find_programs", list)
    monkeypatch.setattr("luxx.tools.sandbox.choosing.landlock_abi", lambda: 0)

    async with open_harness([script("well", hostile.WELL)]) as harness:
        if harness is None:
            return
        assert harness.sandbox.backend_name == "none"
        status = await harness.wait_for_state(ServerState.FAILED)
        assert status.reason.startswith("could not be started: programs are not started,")
        assert harness.tools.list_all() == []


async def test_a_server_without_a_tenant_or_program_reports_it() -> None:
    no_program = {"name": "nothing", "command": ["no-such-program"]}
    async with open_harness([script("well", hostile.WELL, tenant="nobody"), no_program]) as harness:
        if harness is None:
            return
        without_tenant = await harness.wait_for_state(ServerState.FAILED, server=0)
        without_program = await harness.wait_for_state(ServerState.FAILED, server=1)
        assert without_tenant.reason == "is not started: there is no tenant named 'nobody'"
        assert "there is no program named 'no-such-program'" in without_program.reason
