"""python_execute and shell_execute in real sandboxes: their reports, their limits and their clean-up.

The client is None where this machine does not offer the sandbox backend; then the test has nothing to check.
"""

import asyncio
import os
import time
import uuid

import pytest

from luxx.tools.history import CallStatus
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.wire.tool import CommandPermission, Risk
from sandbox.client import OpenSandboxClient, processes_with, wait_until

THREE_DETACHED_CHILDREN = """
import subprocess, sys, time
for _ in range(3):
    command = [sys.executable, '-c', 'import time; time.sleep(600)', '{token}']
    subprocess.Popen(command, start_new_session=True)
"""


async def test_a_program_reports_how_it_ended_and_what_it_changed(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        (client.workspace() / "old.txt").write_text("old")
        (client.workspace() / "gone.txt").write_text("gone")
        executed = await client.python(
            "import os, sys\nprint(open('old.txt').read())\nopen('old.txt', 'a').write('er')\n"
            "os.mkdir('new')\nopen('new/one.txt', 'w').write('1')\nos.unlink('gone.txt')\n"
            "print('a warning', file=sys.stderr)"
        )
        data = executed.result.data
        assert (executed.result.success, data["exit_code"], data["limit"]) == (True, 0, None)
        assert (data["stdout"], data["stderr"], data["truncated"]) == ("old\n", "a warning\n", False)
        assert data["files"] == {
            "created": ["new/one.txt"],
            "modified": ["old.txt"],
            "deleted": ["gone.txt"],
            "is_complete": True,
        }
        assert (client.workspace() / "new/one.txt").read_text() == "1"
        appended = await client.shell("cat new/one.txt old.txt; exit 3")
        assert appended.result.data["stdout"] == "1older"
        assert appended.result.data["exit_code"] == 3
        assert appended.result.error == "the program ended with exit code 3"


async def test_a_traceback_shows_the_programs_own_lines(open_sandbox_client: OpenSandboxClient) -> None:
    async with open_sandbox_client() as client:
        if client is None:
            return
        executed = await client.python("def f():\n    return 1 / 0\n\nf()\n")
        assert (
            executed.result.error == "the program ended with exit code 1: ZeroDivisionError: division by zero"
        )
        stderr = executed.result.data["stderr"]
        assert 'File "main.py", line 4, in <module>' in stderr
        assert "return 1 / 0" in stderr
        # One line for `<module>` and one for `f`; none for the code that runs main.py.
        assert stderr.count("File ") == 2
        unparsable = await client.python("print('never'\n")
        assert "SyntaxError" in unparsable.result.error
        assert "never" not in unparsable.result.data["stdout"]
        assert (await client.python("import sys; sys.exit(7)")).result.data["exit_code"] == 7
        assert (await client.python("quit()")).result.success


async def test_open_figures_are_saved_and_named(open_sandbox_client: OpenSandboxClient) -> None:
    async with open_sandbox_client("bubblewrap") as client:
        if client is None:
            return
        fake_matplotlib = client.root_dir / "data/packages/matplotlib"
        fake_matplotlib.mkdir(parents=True)
        (fake_matplotlib / "__init__.py").write_text("")
        (fake_matplotlib / "pyplot.py").write_text(
            "class Figure:\n"
            "    def savefig(self, name): open(name, 'wb').write(b'\\x89PNG')\n"
            "def get_fignums(): return [1, 2]\n"
            "def figure(number): return Figure()\n"
        )
        (client.root_dir / "data").chmod(0o755)
        executed = await client.python("import matplotlib.pyplot\nprint('drawn')")
        assert executed.result.data["stdout"] == "drawn\n", executed.result
        figures = executed.result.data["figures"]
        assert len(figures) == 2
        for name in figures:
            assert (client.workspace() / name).read_bytes() == b"\x89PNG"


@pytest.mark.parametrize("tool", ["python_execute", "shell_execute"])
async def test_a_program_is_ended_in_time_and_what_it_printed_is_kept(
    open_sandbox_client: OpenSandboxClient, tool: str
) -> None:
    programs = {
        "python_execute": {"code": "import time\nprint('begun')\ntime.sleep(600)"},
        "shell_execute": {"command": "echo begun; sleep 600"},
    }

    async with open_sandbox_client() as client:
        if client is None:
            return
        executed = await client.call(tool, **programs[tool], timeout=1)
        assert executed.result.data["limit"] == "time"
        assert executed.result.data["stdout"] == "begun\n"
        assert executed.result.error == "the program was ended: it took longer than 1 seconds"


async def test_a_call_gets_no_more_time_than_its_level_allows(open_sandbox_client: OpenSandboxClient) -> None:
    async with open_sandbox_client(limits=[{"level": 3, "seconds": 1}]) as client:
        if client is None:
            return
        executed = await client.shell("sleep 600", timeout=3600)
        assert executed.result.error == "the program was ended: it took longer than 1 seconds"


async def test_limits_are_set_by_tool_and_level(open_sandbox_client: OpenSandboxClient) -> None:
    entries = [
        {"memory_mb": 300},
        {"tool": "shell_execute", "level": 3, "seconds": 5},
        {"level": 4, "memory_mb": 400},
    ]
    async with open_sandbox_client(limits=entries) as client:
        if client is None:
            return

        limits_for = client.sandbox.limits_for
        level_3, level_4 = CommandPermission.EXECUTE, CommandPermission.ADMIN
        assert limits_for("shell_execute", level_3) == ProgramLimits(memory_mb=300, seconds=5)
        assert limits_for("python_execute", level_3) == ProgramLimits(memory_mb=300)
        assert limits_for("python_execute", level_4).memory_mb == 400
        # No entry sets it, so this is the default.
        assert limits_for("python_execute", level_4).seconds == 600


async def test_output_past_the_limit_is_dropped_and_reported(
    open_sandbox_client: OpenSandboxClient,
) -> None:
    async with open_sandbox_client(limits=[{"output_kb": 1}]) as client:
        if client is None:
            return
        executed = await client.python("print('x' * 2000)\n" * 3)
        data = executed.result.data
        assert (data["truncated"], data["limit"], data["exit_code"]) == (True, None, 0)
        assert len(data["stdout"]) == 1024
        endless = await client.python("while True: print('x' * 10000)")
        assert endless.result.data["limit"] == "output"
        assert "printed far more than 1 KiB" in (endless.result.error or "")


async def test_output_is_reported_as_it_arrives(open_sandbox_client: OpenSandboxClient, backend: str) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        workspace = client.workspace()
        output_pieces: list[tuple[str, bytes]] = []
        running = asyncio.create_task(
            client.sandbox.run_sandboxed(
                ["/bin/sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two >&2"],
                workspace,
                ProgramLimits(),
                on_output=lambda name, piece: output_pieces.append((name, piece)),
            )
        )
        await wait_until(lambda: output_pieces == [("stdout", b"one\n")])
        assert not running.done()
        (workspace / "go").touch()
        program = await running
        assert output_pieces == [("stdout", b"one\n"), ("stderr", b"two\n")]
        assert (program.stdout, program.stderr, program.exit_code) == (b"one\n", b"two\n", 0)


@pytest.mark.parametrize("tool", ["python_execute", "shell_execute"])
async def test_cancelling_ends_the_whole_tree_within_a_second(
    open_sandbox_client: OpenSandboxClient, backend: str, tool: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        token = f"luxx-{uuid.uuid4().hex}"
        code = THREE_DETACHED_CHILDREN.replace("{token}", token) + "time.sleep(600)"
        arguments = (
            {"code": code} if tool == "python_execute" else {"command": f"python3 - {token} <<'E'\n{code}\nE"}
        )
        running = asyncio.create_task(client.call(tool, **arguments))
        await wait_until(lambda: len(processes_with(token)) >= 3)
        began = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert processes_with(token) == []
        assert time.monotonic() - began < 1.0


async def test_processes_that_a_program_leaves_behind_end_with_it(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        token = f"luxx-{uuid.uuid4().hex}"
        executed = await client.python(THREE_DETACHED_CHILDREN.replace("{token}", token) + "print('started')")
        assert executed.result.data["stdout"] == "started\n"
        assert processes_with(token) == []


async def test_a_misbehaving_program_affects_no_other_program(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    misbehaving = {
        "hangs": "import time; time.sleep(600)",
        "floods": "while True: print('x' * 100000)",
        "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "dies": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    }

    async with open_sandbox_client(backend, limits=[{"processes": 20, "output_kb": 64}]) as client:
        if client is None:
            return
        calls = [client.python(code, user_id=2, timeout=2) for code in misbehaving.values()]
        *failed, good = await asyncio.gather(*calls, client.python("print(6 * 7)", user_id=1))
        assert good.result.data["stdout"] == "42\n"
        assert [executed.result.success for executed in failed] == [False] * 4
        assert [executed.result.data["limit"] for executed in failed] == ["time", "output", "processes", None]
        assert "SIGKILL" in (failed[3].result.error or "")
        # The user of the failed programs can run further ones.
        assert (await client.shell("echo on", user_id=2)).result.data["stdout"] == "on\n"


async def test_unprintable_text_and_invalid_arguments_give_a_result(
    open_sandbox_client: OpenSandboxClient,
) -> None:
    async with open_sandbox_client() as client:
        if client is None:
            return
        surrogate = await client.python("print('\\ud800'.encode('utf-8', 'surrogatepass'))")
        assert surrogate.result.success
        raw = await client.shell("printf '\\377\\000x'")
        assert raw.result.data["stdout"] == "�\0x"
        nul = await client.python("print('a\0b')")
        assert nul.status == CallStatus.FAILED
        assert (await client.shell("echo 'a\0b'")).status == CallStatus.FAILED
        for arguments in (
            {},
            {"code": ""},
            {"code": 1},
            {"code": "1", "timeout": 0},
            {"code": "1", "more": 1},
        ):
            assert (await client.call("python_execute", **arguments)).status == CallStatus.INVALID


async def test_programs_need_level_three(open_sandbox_client: OpenSandboxClient) -> None:
    async with open_sandbox_client() as client:
        if client is None:
            return
        for tool, arguments in (("python_execute", {"code": "1"}), ("shell_execute", {"command": "true"})):
            assert (await client.call(tool, level=2, **arguments)).status == CallStatus.DENIED
            definition = client.executor.registry.get(tool)
            assert definition is not None
            assert definition.risk == (Risk.MEDIUM if tool == "python_execute" else Risk.HIGH)


async def test_files_that_the_server_writes_between_calls_are_usable(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        for count in range(3):
            path = client.workspace() / f"deep/er/{count}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(count))
            os.chmod(path, 0o600)
            executed = await client.python(
                f"path = 'deep/er/{count}.txt'\nprint(open(path).read())\nopen(path, 'a').write('!')"
            )
            assert executed.result.data["stdout"] == f"{count}\n", executed.result
            assert path.read_text() == f"{count}!"
