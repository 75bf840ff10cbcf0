"""`network_allow`: the errors for wrong entries, what `doctor` reports, and for which users egress works."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from luxx.app.cli.doctor.machine import NETWORK_PART, examine_sandbox
from luxx.errors import ConfigError
from luxx.infra.config.file import load_config
from luxx.infra.config.schema import Config
from luxx.tools.sandbox.service import Sandbox
from sandbox.test_escapes import ORDINARY, environ, python_of_everybody, unavailable

PROBE = Path(__file__).with_name("egress_probe.py")


def test_a_wrong_entry_stops_the_start_with_its_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("tools:\n  network_allow:\n    - example.org\n    - https://example.org/\n")
    with pytest.raises(ConfigError) as raised:
        load_config(file, {}, {})
    assert str(raised.value.message) == (
        f"{file}:4: tools.network_allow[1]: 'https://example.org/' is not a host; "
        "write it like example.org, example.org:8443 or *.example.org"
    )
    assert raised.value.detail["line"] == 4


def test_a_wrong_entry_of_the_environment_is_named_too() -> None:
    with pytest.raises(ConfigError, match=r"environment variable LUXX_TOOLS__NETWORK_ALLOW: .*169\.254"):
        load_config(None, {"LUXX_TOOLS__NETWORK_ALLOW": "example.org, 169.254.169.254"}, {})


def test_the_list_is_read_from_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text('tools:\n  network_allow: [example.org, "*.example.org:8443"]\n')
    assert load_config(file, {}, {}).tools.network_allow == ["example.org", "*.example.org:8443"]
    environ = {"LUXX_TOOLS__NETWORK_ALLOW": "a.example,b.example:99"}
    assert load_config(file, environ, {}).tools.network_allow == ["a.example", "b.example:99"]


def test_a_sandbox_refuses_a_wrong_entry(tmp_path: Path) -> None:
    config = msgspec.convert({"tools": {"network_allow": ["*"]}}, Config)
    with pytest.raises(ConfigError, match=r"tools\.network_allow"):
        Sandbox(config.tools, tmp_path, tmp_path)


def test_doctor_says_what_programs_reach_and_why_not(tmp_path: Path) -> None:
    def probe_result(backend: str, *hosts: str) -> dict[str, Any]:
        config = msgspec.convert(
            {
                "tools": {"sandbox": backend, "network_allow": hosts},
                "data_dir": str(tmp_path / "data"),
                "workspace": {"root": str(tmp_path / "workspaces")},
            },
            Config,
        )
        findings = asyncio.run(examine_sandbox(config))
        in_force = f"{backend} is active" in findings[0].text
        network_findings = [finding for finding in findings if finding.part == NETWORK_PART]
        return {"in_force": in_force, "findings": network_findings}

    assert probe_result("bubblewrap")["findings"] == []
    with_proxy = probe_result("bubblewrap", "example.org")
    if with_proxy["in_force"]:
        (finding,) = with_proxy["findings"]
        assert (finding.is_bad, finding.text) == (False, "programs can reach only example.org")
    without = probe_result("landlock", "example.org")
    if without["in_force"]:
        (finding,) = without["findings"]
        assert finding.is_bad
        assert finding.text.startswith("there is no network: tools.network_allow needs bubblewrap")


@pytest.mark.parametrize("who", ["root", "ordinary"])
def test_root_and_an_ordinary_user_give_sandbox_processes_egress(who: str) -> None:
    if reason := unavailable(who):
        pytest.skip(reason)
    program, more = sys.executable, {}
    with tempfile.TemporaryDirectory(prefix="luxx-way-out-") as root_dir:
        if who == "ordinary" and os.geteuid() == 0:
            program = python_of_everybody() or ""
            more = {"user": ORDINARY, "group": ORDINARY, "extra_groups": []}
            os.chown(root_dir, ORDINARY, ORDINARY)
        finished = subprocess.run(
            [program, str(PROBE), root_dir],
            env=environ(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **more,
        )
    assert finished.returncode == 0, finished.stderr[-3000:]
    probe_result = json.loads(finished.stdout.splitlines()[-1])
    if probe_result["in_force"] == "none":
        pytest.skip("bubblewrap does not work here")
    assert (probe_result["problem"], probe_result["said"], probe_result["errors"]) == ("", ["204", "403"], "")
