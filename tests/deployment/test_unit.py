"""The systemd unit: systemd accepts it, Luxx accepts its command, and the documentation explains its gaps."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from process_environment import ROOT

from deployment.proxies import DEPLOY
from luxx.infra.config.file import load_config

UNIT = (DEPLOY / "luxx.service").read_text("utf-8")
SETTINGS = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
PAGE = (ROOT / "docs/operate/deployment.md").read_text("utf-8")
MAX_EXPOSURE = 3.0
"""Of 10, as `systemd-analyze security` counts; more than 9 without hardening."""


def analyze(tmp_path: Path, *arguments: str) -> str:
    """What systemd-analyze prints about the unit, with the `luxx` of this environment."""
    program = shutil.which("systemd-analyze")
    if program is None:
        print("systemd-analyze is not installed; .ci/install-programs installs it")
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "luxx.service"
    own = str(Path(sys.executable).with_name("luxx"))
    unit.write_text(UNIT.replace("/opt/luxx/bin/luxx", own), "utf-8")
    finished = subprocess.run(
        [program, *arguments, str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished
    return finished.stdout + finished.stderr


@pytest.mark.heavy
def test_systemd_accepts_every_line(tmp_path: Path) -> None:
    assert analyze(tmp_path, "verify") == ""


@pytest.mark.heavy
def test_the_unit_is_hardened_as_far_as_the_sandbox_allows(tmp_path: Path) -> None:
    printed = analyze(tmp_path, "security", "--offline=yes", "--no-pager")
    exposure = re.search(r"Overall exposure level for luxx.service: (\d+\.\d+)", printed)
    assert exposure
    assert float(exposure[1]) <= MAX_EXPOSURE


def test_the_unit_has_none_of_the_directives_that_the_documentation_warns_of() -> None:
    table = PAGE.partition("### Directives that are not set")[2].partition("\n## ")[0]
    warned = re.findall(r"`(\w+)=", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    assert {"RestrictNamespaces", "ProtectHostname", "ProcSubset", "MemoryDenyWriteExecute"} <= set(warned)
    assert [name for name in warned if name in SETTINGS and name != "SystemCallFilter"] == []
    # Only a list of what is denied.
    assert SETTINGS["SystemCallFilter"].startswith("~")


def test_the_settings_of_the_unit_are_settings_of_luxx() -> None:
    name, _, value = SETTINGS["Environment"].partition("=")
    config = load_config(None, {name: value}, {"data_dir": SETTINGS["ExecStart"].split()[-1]})
    assert config.workspace.root == "/var/lib/luxx/workspaces"
    assert config.data_dir == "/var/lib/luxx/data"
    assert SETTINGS["StateDirectory"].split() == ["luxx", "luxx/data", "luxx/workspaces"]
    assert float(SETTINGS["TimeoutStopSec"].rstrip("s")) > config.runs.grace_seconds + 5
