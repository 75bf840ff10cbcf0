"""Which backend is chosen, what `doctor` reports of it, and that no program starts without a sandbox."""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from luxx.app.cli.doctor.machine import examine_sandbox
from luxx.app.container import Services
from luxx.errors import ConfigError
from luxx.infra.config.schema import Config, ToolsConfig, WorkspaceConfig
from luxx.tools.sandbox.choosing import BackendStatus, forbid_unprotected_root
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.processes import children
from sandbox.client import OpenSandboxClient, processes_with, wait_until
from sandbox.test_escapes import ORDINARY, environ, python_of_everybody

PROBE = Path(__file__).with_name("probe.py")


def run_probe(
    root_dir: Path, *words: str, sandbox: str = "auto", before: tuple[str, ...] = (), **more: object
) -> dict:
    """What `probe.py` prints, run in a process of its own."""
    finished = subprocess.run(
        [*before, str(more.pop("program", sys.executable)), str(PROBE), sandbox, str(root_dir), *words],
        env=environ(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **more,  # type: ignore[call-overload]
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return json.loads(finished.stdout.splitlines()[-1])


def test_no_program_is_started_without_a_sandbox(tmp_path: Path) -> None:
    no_namespaces = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    before = ("unshare", "--user", "--map-root-user", "sh", "-c", no_namespaces, "sh")
    report = run_probe(tmp_path, sandbox="bubblewrap", before=before)
    assert report["in_force"] == "none"
    for error in report["errors"]:
        assert error.startswith("programs are not started, because no sandbox is available (bubblewrap: ")
        assert error.endswith("run `luxx doctor` for help")
    assert report["left"] == []


def test_an_active_backend_reaches_the_workspaces() -> None:
    if os.geteuid() != 0:
        return
    # A server that may not mount cannot give bubblewrap paths that its own user cannot read.
    private = Path(tempfile.mkdtemp(prefix="luxx-private-"))
    try:
        without = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
        for backend, before in (("landlock", ()), ("bubblewrap", without)):
            report = run_probe(private, sandbox=backend, before=before)
            if report["in_force"] == backend:
                assert report["outputs"] == ["6\n", "6\n"]
            else:
                assert all(
                    f"({backend}: " in error or f"; {backend}: " in error for error in report["errors"]
                )
        assert report["in_force"] == "none"
    finally:
        shutil.rmtree(private)


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
def test_capabilities_of_the_server_do_not_reach_the_sandbox_process(name: str) -> None:
    if os.geteuid() != 0:
        return
    given = ("--inh-caps", "+net_bind_service,+kill", "--ambient-caps", "+net_bind_service,+kill")
    before = ("setpriv", "--reuid", str(ORDINARY), "--regid", str(ORDINARY), "--clear-groups", *given)
    with tempfile.TemporaryDirectory(prefix="luxx-able-") as root_dir:
        os.chmod(root_dir, 0o777)
        program = python_of_everybody()
        if program is None:
            return
        report = run_probe(Path(root_dir), sandbox=name, before=before, program=program)
    assert report["in_force"] in (name, "none")
    if report["in_force"] == name:
        assert report["capabilities"] == "0\n"


async def test_root_is_refused_to_run_programs_unprotected(tmp_path: Path) -> None:
    config = ToolsConfig(sandbox="none")
    with pytest.raises(ConfigError, match="refused when Luxx runs as root"):
        forbid_unprotected_root(config, 0)
    forbid_unprotected_root(config, 1000)
    if os.geteuid() != 0:
        return
    server_config = Config(tools=config, data_dir=str(tmp_path / "data"))
    with pytest.raises(ConfigError):
        Services(server_config, {})
    (finding,) = await examine_sandbox(server_config)
    assert finding.is_bad
    assert "root" in finding.text


def test_an_ordinary_user_may_run_programs_unprotected_and_is_asked() -> None:
    program, more = sys.executable, {}
    if os.geteuid() == 0:
        program = python_of_everybody() or sys.executable
        more = {"user": ORDINARY, "group": ORDINARY, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="luxx-alone-") as root_dir:
        os.chmod(root_dir, 0o777)
        report = run_probe(Path(root_dir), sandbox="none", program=program, **more)
    assert report["in_force"] == "none"
    assert report["risks"] == ["high", "high"]
    # Unprotected programs use the server's network, so the hosts that they reach are unknown.
    assert (report["untrusted"], report["egress"]) == ([True, True], [True, True])
    assert report["outputs"] == ["6\n", "6\n"]
    assert report["left"] == []


async def test_the_doctor_names_the_backend_in_force_and_why_others_are_not(tmp_path: Path) -> None:
    for name, reason in (
        ("bubblewrap", "landlock: tools.sandbox selects another one"),
        ("landlock", "bubblewrap: tools.sandbox selects another one"),
    ):
        config = Config(
            tools=ToolsConfig(sandbox=name),
            data_dir=str(tmp_path / "data"),
            workspace=WorkspaceConfig(root=str(tmp_path / "workspaces")),
        )
        first, *others = await examine_sandbox(config)
        if not first.is_bad:
            assert first.text.startswith(f"{name} is active ({reason}")
            assert others[0].text == f"web pages and PDFs are parsed in {name}"
            assert others[1].text.startswith("python_execute runs /")
    assert os.listdir(tmp_path) == []


def test_the_doctor_misses_packages_and_a_python(tmp_path: Path) -> None:
    def problems(**tools: object) -> list[str]:
        config = Config(tools=ToolsConfig(**tools), data_dir=str(tmp_path))  # type: ignore[arg-type]
        return [str(finding) for finding in asyncio.run(examine_sandbox(config)) if finding.is_bad]

    assert problems(packages=["numpy"]) == [
        "BAD  packages     tools.packages lists numpy, installed are none → luxx packages"
    ]
    (line,) = problems(python="/nowhere/python3")
    assert "tools.python, /nowhere/python3, does not start in the sandbox" in line


async def test_every_backend_is_reported(open_sandbox_client: OpenSandboxClient, backend: str) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        reports = {report.name: report for report in client.sandbox.reports}
        assert set(reports) == {"bubblewrap", "landlock"}
        assert [report.name for report in reports.values() if report.standing == BackendStatus.IN_FORCE] == [
            backend
        ]
        assert all(report.reason for report in reports.values() if report.standing != BackendStatus.IN_FORCE)


@pytest.mark.parametrize("victim", ["supervisor", "parent"])
async def test_a_sandbox_process_ends_when_its_supervisor_is_killed(
    open_sandbox_client: OpenSandboxClient, backend: str, victim: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        token = f"luxx-{uuid.uuid4().hex}"
        code = (
            "import ctypes, os, sys, time\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
            "if os.fork() == 0: os.setsid()\nprint(os.environ['TMPDIR'], flush=True)\ntime.sleep(600)"
        )
        audit_lines: list[bytes] = []
        python = client.sandbox.interpreter
        assert python is not None
        running = asyncio.create_task(
            client.sandbox.run_sandboxed(
                [python.program, "-I", "-S", "-c", code, token],
                client.workspace(),
                ProgramLimits(),
                on_output=lambda _, piece: audit_lines.append(piece),
            )
        )
        await wait_until(lambda: b"".join(audit_lines).count(b"\n") == 2)
        parent = await asyncio.to_thread(supervisor_parent, token)
        (supervisor,) = children(parent)
        os.kill(parent if victim == "parent" else supervisor, signal.SIGKILL)
        await wait_until(lambda: programs(token) == [], 5)
        await running
        if backend == "landlock":
            path = audit_lines[0].decode().split()[0]
            await wait_until(lambda: not os.path.exists(path), 5)


def supervisor_parent(token: str) -> int:
    """The child of this process from which the program with the token descends."""
    pid = programs(token)[0]
    while (parent := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) != os.getpid():
        pid = parent
    return pid


async def test_files_left_by_killed_sandbox_processes_are_deleted_at_start_up(
    open_sandbox_client: OpenSandboxClient,
) -> None:
    left = Path(tempfile.mkdtemp(prefix="luxx-sandbox-0-"))
    leftover = Path(tempfile.mkdtemp(prefix="luxx-sandbox-1-"))
    deep = left
    for _ in range(100):
        deep = deep / "d"
        deep.mkdir()
    there: list[str] = []
    holder = os.open(leftover, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        async with open_sandbox_client() as client:
            if client is None:
                return
            there.extend(os.listdir(left.parent))
        assert left.name not in there
        assert leftover.name in there
    finally:
        os.close(holder)
        os.rmdir(leftover)


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
async def test_programs_of_a_killed_server_end(tmp_path: Path, name: str) -> None:
    token = f"luxx-{uuid.uuid4().hex}"
    server = subprocess.Popen(  # noqa: ASYNC220 - it is polled, and nothing else goes on here
        [sys.executable, str(PROBE), name, str(tmp_path), token],
        env=environ(),
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await wait_until(lambda: server.poll() is not None or len(programs(token)) >= 2, 60)
        if server.poll() is None:
            server.send_signal(signal.SIGKILL)
            server.wait()
            assert (await wait_until(lambda: programs(token) == [])) < 5
    finally:
        server.kill()
        server.wait()


def programs(token: str) -> list[int]:
    """The processes that have the token in their command line, except the server that received it."""
    pids: list[int] = []
    for pid in processes_with(token):
        with suppress(OSError):
            if b"probe.py" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                pids.append(pid)
    return pids
