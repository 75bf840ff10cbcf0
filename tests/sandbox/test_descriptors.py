"""Descriptors that the server inherited reach no process that the server starts."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop
from files.sample_files import pdf_of

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.secrets import SECRET_FILE
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.service import Sandbox
from sandbox.attacked_server import Attacker, Child, Json, attacked_server, children_once, in_force

TRIES = f"""
import json, os, stat
found, stolen = [], []
for fd in range(1024):
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        continue
    found.append(fd)
    if fd > 2 and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        for read in (lambda: os.read(fd, 64), lambda: os.read(os.open({SECRET_FILE!r}, 0, dir_fd=fd), 64)):
            try:
                stolen.append(repr(read()))
            except OSError:
                continue
print(json.dumps([found, stolen]))
"""
TRIES_IN_SHELL = f"""
for fd in $(seq 3 255); do
    if (eval "exec 0<&$fd") 2>/dev/null; then echo "open $fd"; cat /proc/self/fd/$fd/{SECRET_FILE}; fi
done
echo done
"""
SLOW_PAGE = "<p><b>word</b> <i>word</i>" * 12_000
SLOW_PDF = pdf_of(*[b"1 0 0 1 5 5 Tm (a) Tj " * 5_000] * 3)
BIG_IMPORT = json.dumps(
    [
        {"name": f"chat {n}", "chat_messages": [{"sender": "human", "text": f"{m} word"} for m in range(100)]}
        for n in range(500)
    ]
).encode()
MCP = """
tools: {sandbox: BACKEND}
mcp: {servers: [{name: silent, command: [sleep, "1000"]}]}
"""
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@contextmanager
def inheritable_descriptors(data_dir: Path) -> Iterator[list[int]]:
    """Inheritable descriptors of a data directory and of a secret file in it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / SECRET_FILE).write_text("0123456789abcdef" * 4)
    (data_dir / SECRET_FILE).chmod(0o600)
    open_files = [os.open(path, os.O_RDONLY) for path in (data_dir, data_dir / SECRET_FILE)]
    for fd in open_files:
        os.set_inheritable(fd, True)
    try:
        yield open_files
    finally:
        for fd in open_files:
            os.close(fd)


@pytest.fixture
def attacker(tmp_path: Path, backend: str) -> Iterator[Attacker]:
    data_dir = tmp_path / "data"
    with (
        inheritable_descriptors(data_dir) as open_files,
        attacked_server(tmp_path, {}, open_files, MCP.replace("BACKEND", backend)) as attacked,
    ):
        if in_force(attacked) != backend:
            pytest.skip(f"{backend} does not work here")
        # Otherwise there would be nothing to inherit.
        assert str(data_dir) in Child(attacked.server.pid).descriptors.values()
        yield attacked


def test_a_program_inherits_nothing_of_the_servers_parent(attacker: Attacker) -> None:
    result = attacker.execute("python_execute", code=TRIES)
    open_fds, stolen = json.loads(result["data"]["stdout"])
    assert stolen == []
    assert open_fds == [0, 1, 2]
    output = attacker.execute("shell_execute", command=TRIES_IN_SHELL)
    assert output["data"]["stdout"] == "done\n"


@pytest.mark.parametrize("loop", LOOPS)
def test_a_program_inherits_nothing_on_either_loop(backend: str, loop: str, tmp_path: Path) -> None:
    async def work() -> None:
        sandbox = Sandbox(ToolsConfig(sandbox=backend), tmp_path / "data", tmp_path / "workspaces")  # type: ignore[arg-type]
        await sandbox.open()
        try:
            if sandbox.interpreter is None:
                pytest.skip(f"{backend} does not work here")
            # A library may open a file without O_CLOEXEC while the server runs.
            with inheritable_descriptors(tmp_path / "data"):
                argv = (sandbox.interpreter.program, "-I", "-S", "-c", TRIES)
                ran = await sandbox.run_sandboxed(argv, None, ProgramLimits())
            assert json.loads(ran.stdout) == [[0, 1, 2], []]
        finally:
            await sandbox.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(work())


@pytest.mark.heavy
def test_no_process_of_the_server_inherits_descriptors_of_its_parent(attacker: Attacker) -> None:
    data_dir = attacker.server.data_dir
    open_files = {str(data_dir), str(data_dir / SECRET_FILE)}
    reads: dict[str, Callable[[], Json]] = {
        "sleep 1000": dict,
        "luxx.infra.documents.page_text": lambda: attacker.read(SLOW_PAGE, "text/html"),
        "luxx.infra.documents.pdf_text": lambda: attacker.read(SLOW_PDF, "application/pdf"),
        "luxx.domain.transfer.child": lambda: attacker.import_data(BIG_IMPORT),
    }
    for name, work in reads.items():
        with attacker.meanwhile(work) as answers:
            processes = children_once(attacker.server, name)
        assert {process.command: set(process.descriptors.values()) & open_files for process in processes} == {
            process.command: set() for process in processes
        }
        assert answers[0].get("error") is None
