"""Which backend is in force, who is told, and that nothing starts where nothing holds it in."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from luxx.config import Config, ToolsConfig, WorkspaceConfig
from luxx.doctor_sandbox import examine_sandbox
from luxx.errors import ConfigError
from luxx.house import House
from luxx.tools.sandbox.choosing import Standing, forbid_unprotected_root
from sandbox.desk import Desk, WithDesk, processes_with, until
from sandbox.test_escapes import ORDINARY, environ, python_of_everybody

LONE = Path(__file__).with_name("lone.py")


def alone(
    home: Path, *words: str, sandbox: str = "auto", before: tuple[str, ...] = (), **more: object
) -> dict:
    """What `lone.py` prints, run in a process of its own."""
    done = subprocess.run(
        [*before, str(more.pop("program", sys.executable)), str(LONE), sandbox, str(home), *words],
        env=environ(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **more,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_where_nothing_holds_programs_in_none_is_started(tmp_path: Path) -> None:
    no_namespaces = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    before = ("unshare", "--user", "--map-root-user", "sh", "-c", no_namespaces, "sh")
    found = alone(tmp_path, sandbox="bubblewrap", before=before)
    assert found["in_force"] == "none"
    for error in found["errors"]:
        assert error.startswith(
            "programs are not started here, because nothing would hold them in (bubblewrap: "
        )
        assert error.endswith("`luxx doctor` says what to do")
    assert found["left"] == []


def test_root_is_refused_to_run_programs_unprotected(tmp_path: Path) -> None:
    config = ToolsConfig(sandbox="none")
    with pytest.raises(ConfigError, match="refused when Luxx runs as root"):
        forbid_unprotected_root(config, 0)
    forbid_unprotected_root(config, 1000)
    if os.geteuid() != 0:
        return
    house = Config(tools=config, data_dir=str(tmp_path / "data"))
    with pytest.raises(ConfigError):
        House(house, {})
    (finding,) = asyncio.run(examine_sandbox(house))
    assert finding.is_bad
    assert "root" in finding.text


def test_an_ordinary_user_may_choose_to_run_them_unprotected_and_is_asked() -> None:
    program, more = sys.executable, {}
    if os.geteuid() == 0:
        program = python_of_everybody() or sys.executable
        more = {"user": ORDINARY, "group": ORDINARY, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="luxx-alone-") as home:
        os.chmod(home, 0o777)
        found = alone(Path(home), sandbox="none", program=program, **more)
    assert found["in_force"] == "none"
    assert found["risks"] == ["high", "high"]
    assert found["outputs"] == ["6\n", "6\n"]
    assert found["left"] == []


def test_the_doctor_names_the_backend_in_force_and_why_others_are_not(tmp_path: Path) -> None:
    for name, reason in (
        ("bubblewrap", "landlock: tools.sandbox asks"),
        ("landlock", "bubblewrap: tools.sandbox asks"),
    ):
        config = Config(
            tools=ToolsConfig(sandbox=name),
            data_dir=str(tmp_path / "data"),
            workspace=WorkspaceConfig(root=str(tmp_path / "workspaces")),
        )
        first, *others = asyncio.run(examine_sandbox(config))
        if not first.is_bad:
            assert first.text.startswith(f"{name} is in force ({reason}")
            assert others[0].text.startswith("python_execute runs /")
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_misses_packages_and_a_python(tmp_path: Path) -> None:
    def told(**tools: object) -> list[str]:
        config = Config(tools=ToolsConfig(**tools), data_dir=str(tmp_path))  # type: ignore[arg-type]
        return [str(one) for one in asyncio.run(examine_sandbox(config)) if one.is_bad]

    assert told(packages=["numpy"]) == [
        "BAD  packages     tools.packages asks for numpy, installed are none → luxx packages"
    ]
    (line,) = told(python="/nowhere/python3")
    assert "tools.python, /nowhere/python3, does not start there" in line


def test_every_backend_is_reported(with_desk: WithDesk, backend: str) -> None:
    async def work(desk: Desk) -> None:
        reports = {one.name: one for one in desk.sandbox.reports}
        assert set(reports) == {"bubblewrap", "landlock"}
        assert [one.name for one in reports.values() if one.standing == Standing.IN_FORCE] == [backend]
        assert all(one.reason for one in reports.values() if one.standing != Standing.IN_FORCE)

    with_desk(work, backend)


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
def test_a_killed_server_takes_its_programs_along(tmp_path: Path, name: str) -> None:
    token = f"luxx-{uuid.uuid4().hex}"
    server = subprocess.Popen(
        [sys.executable, str(LONE), name, str(tmp_path), token],
        env=environ(),
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        asyncio.run(until(lambda: server.poll() is not None or len(programs(token)) >= 2, 60))
        if server.poll() is None:
            server.send_signal(signal.SIGKILL)
            server.wait()
            assert asyncio.run(until(lambda: programs(token) == [])) < 5
    finally:
        server.kill()
        server.wait()


def programs(token: str) -> list[int]:
    """What carries the token, but for the server that was given it."""
    found: list[int] = []
    for pid in processes_with(token):
        with suppress(OSError):
            if b"lone.py" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
