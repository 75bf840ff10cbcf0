"""The build of the web UI: it fails in a sentence without the npm registry, and wheels contain its result."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from luxx.web.build import WEB
from luxx.web.files import WebFiles

pytestmark = pytest.mark.heavy
ROOT = WEB.parent.parent


def test_without_the_registry_the_build_says_why_it_failed(tmp_path: Path) -> None:
    web = tmp_path / "luxx" / "web"
    shutil.copytree(WEB, web, ignore=shutil.ignore_patterns("node_modules", "dist*", "__pycache__"))
    environ = {
        **os.environ,
        "npm_config_registry": "http://127.0.0.1:9/",
        "npm_config_cache": str(tmp_path / "cache"),
        "npm_config_fetch_retry_mintimeout": "10",
    }
    failed = subprocess.run(
        [sys.executable, str(web / "build.py")], env=environ, capture_output=True, text=True, timeout=120
    )
    assert failed.returncode == 1
    assert "reason: connect ECONNREFUSED" in failed.stdout
    assert json.loads((web / "dist" / "build.json").read_bytes())["problem"] in failed.stdout
    problem = WebFiles(web / "dist").problem()
    assert problem is not None
    assert "make ui" in problem


def test_a_wheel_has_the_built_ui_and_not_its_sources(built_ui: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, timeout=200)
    (wheel,) = tmp_path.glob("luxx-*.whl")
    names = {name.removeprefix("luxx/web/") for name in ZipFile(wheel).namelist() if "luxx/web/" in name}
    assert {"dist/index.html", "dist/index.html.br", "dist/theme.js", "files.py"} <= names
    assert not {name for name in names if name.startswith(("src/", "node_modules/", "package"))}
    ZipFile(wheel).extractall(tmp_path / "installed")
    files = WebFiles(tmp_path / "installed" / "luxx" / "web" / "dist")
    assert files.problem() is None
    assert files.answer("", accepted="", known_etags="") is not None
