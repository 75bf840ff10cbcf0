"""Which modules a command loads at its start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from process_environment import ROOT, plain_environ

EXPECTED = """
import gc, json, sys
import luxx.app.entry, luxx.app.startup
try:
    luxx.app.entry.main(["serve", "--help"])
except SystemExit:
    pass
loaded = [name for name in luxx.app.startup.RICH_PACKAGES if name in sys.modules]
import rich.console
serves = "luxx.app.application" in sys.modules
print(json.dumps({"loaded": loaded, "serves": serves, "collects": gc.isenabled()}))
"""

SERVED = """
import asyncio, gc, json, sys
import luxx.app.entry, luxx.app.startup
from luxx.app.application import create_app, create_probes
from luxx.infra.config.schema import Config, LocalConfig
from luxx.app.container import Services

async def work():
    luxx.app.startup.disable_gc()
    services = Services(Config(local=LocalConfig(enabled=False)))
    create_app(services), create_probes(services)
    await services.open()
    packages = luxx.app.startup.PYDANTIC_PACKAGES
    plugins = [name for name in packages if f"litestar.plugins.{name}" in sys.modules]
    import pydantic
    print(json.dumps({"plugins": plugins, "collects": gc.isenabled()}))
    await services.close()

asyncio.run(work())
"""


def run_program(program: str, folder: Path) -> object:
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=plain_environ(),
    )
    return json.loads(next(line for line in finished.stdout.splitlines() if line.startswith("{")))


@pytest.mark.heavy
def test_a_server_does_not_load_modules_for_terminal_output(
    tmp_path: Path,
) -> None:
    assert run_program(EXPECTED, tmp_path) == {"loaded": [], "serves": True, "collects": True}


@pytest.mark.heavy
def test_a_server_does_not_load_unused_plugins(tmp_path: Path) -> None:
    assert run_program(SERVED, tmp_path) == {"plugins": [], "collects": True}


def test_run_py_takes_the_options_of_serve() -> None:
    finished = subprocess.run(
        [sys.executable, ROOT / "run.py", "--help"], capture_output=True, text=True, check=True
    )
    assert "luxx serve" in finished.stdout
    assert "--port" in finished.stdout
