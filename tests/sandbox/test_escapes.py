"""Nothing escapes the sandbox: each backend, started by root and by an ordinary user, against every attack.

The session prints the matrix of results at its end, with a reason for each cell that this host cannot offer.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pytest

from luxx.tools.sandbox.backends import find_programs, landlock_abi

ROOT = Path(__file__).parent.parent.parent
ATTACK_RUNNER = Path(__file__).with_name("attack_runner.py")
ORDINARY = 65534
SECONDS = 220
CELLS = [(backend, who) for backend in ("bubblewrap", "landlock") for who in ("root", "ordinary")]

Record = Any


def unavailable(who: str) -> str | None:
    is_root = os.geteuid() == 0
    if who == "root" and not is_root:
        return "these tests do not run as root"
    if who == "ordinary" and is_root and python_of_everybody() is None:
        return "no Python here can be run by an ordinary user with the packages of these tests"
    return None


def environ() -> dict[str, str]:
    paths = [str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths)}


def python_of_everybody() -> str | None:
    """A Python that the ordinary user can start and that can import what the attack runner needs."""
    for program in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            finished = subprocess.run(
                [program, "-c", "import msgspec, structlog, luxx.tools.sandbox.service"],
                env=environ(),
                cwd="/",
                capture_output=True,
                check=False,
                user=ORDINARY,
                group=ORDINARY,
                extra_groups=[],
            )
        except OSError:
            continue
        if finished.returncode == 0:
            return program
    return None


def run_attacks(backend: str, who: str, root_dir: Path) -> dict[str, Any]:
    program, more = sys.executable, {}
    if who == "ordinary" and os.geteuid() == 0:
        program = python_of_everybody() or ""
        more = {"user": ORDINARY, "group": ORDINARY, "extra_groups": []}
        os.chown(root_dir, ORDINARY, ORDINARY)
    finished = subprocess.run(
        [program, str(ATTACK_RUNNER), backend, str(root_dir)],
        env=environ(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        **more,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.heavy
@pytest.mark.parametrize(("backend", "who"), CELLS, ids=["-".join(cell) for cell in CELLS])
def test_nothing_escapes_from_the_sandbox(backend: str, who: str, record_property: Record) -> None:
    reason = unavailable(who)
    with tempfile.TemporaryDirectory(prefix="luxx-attacks-") as root_dir:
        os.chmod(root_dir, 0o777)
        results = {"unavailable": reason} if reason else run_attacks(backend, who, Path(root_dir))
    if "unavailable" in results:
        record_property("matrix", f"{backend}, {who}: not available: {results['unavailable']}")
        assert reason or not offered(backend), results["unavailable"]
        return
    record_property("matrix", f"{backend}, {who}: {_counts(results)}")
    assert _others(results["attacks"], "contained") == {}
    assert _others(results["bombs"], "contained") == {}
    # Without the filter these attacks must escape; otherwise the assertions above would prove nothing.
    assert _others(results["unfiltered"], "escaped", but="ENOSYS") == {}
    assert len(results["unfiltered"]) > 15


def offered(backend: str) -> bool:
    """Whether this host seems to have what the backend needs."""
    if backend == "landlock":
        return landlock_abi() > 0
    spaces = Path("/proc/sys/user/max_user_namespaces")
    return bool(find_programs()) and spaces.exists() and int(spaces.read_text()) > 0


def _counts(results: dict[str, Any]) -> str:
    def count_contained(kind: str) -> int:
        return sum(outcome["outcome"] == "contained" for outcome in results[kind].values())

    out = sum(outcome["outcome"] == "escaped" for outcome in results["unfiltered"].values())
    return (
        f"{count_contained('attacks')} of {len(results['attacks'])} attempts contained, "
        f"{count_contained('bombs')} of {len(results['bombs'])} programs ended as they must; "
        f"without the filter {out} of {len(results['unfiltered'])} attempts got out; with {results['python']}"
    )


def _others(results: dict[str, dict[str, str]], wanted: str, but: str = "\n") -> dict[str, str]:
    return {
        name: f"{outcome['outcome']}: {outcome['how']}"
        for name, outcome in results.items()
        if outcome["outcome"] != wanted and but not in outcome["how"]
    }
