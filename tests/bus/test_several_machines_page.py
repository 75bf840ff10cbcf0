"""The commands of the documentation page about several machines work: its `bash` blocks run as one script."""

import re
import subprocess
from pathlib import Path

import pytest
from process_environment import ROOT, free_port, plain_environ, scripted_models
from store.databases import new_database

from luxx.providers.scripted import Rule, Script, Text

pytestmark = pytest.mark.heavy

SCRIPT_SECONDS = 100.0
BASH_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_command_of_the_page_runs(postgresql: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/operate/several-machines.md").read_text("utf-8")
    blocks = BASH_BLOCK.findall(page)
    assert len(blocks) == 2
    script = "\n".join(
        ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", *blocks, "wait"]
    )
    for written, replacement in {
        "postgresql://luxx:password@db.example.org/luxx": f"'{new_database(postgresql, 'page')}'",
        "8001": str(free_port()),
        "8002": str(free_port()),
    }.items():
        assert written in script
        script = script.replace(written, replacement)
    provider_script = Script(
        rules=[Rule(reply=[Text(text="Once upon a time there was a server.")], delay=0.05)]
    )
    with scripted_models(provider_script) as model:
        environ = plain_environ(
            LUXX_LLM__PROVIDER="openai_compatible",
            LUXX_LLM__API_URL=f"{model.url}/v1",
            LUXX_LLM__MODEL="scripted",
            LUXX_LOCAL__ENABLED="false",
        )
        finished = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SCRIPT_SECONDS, check=False,
        )  # fmt: skip
    assert finished.returncode == 0, f"{finished.stdout[-2000:]}\n{finished.stderr[-2000:]}"
    assert '"bus":"up"' in finished.stdout
    assert "event: done" in finished.stdout
