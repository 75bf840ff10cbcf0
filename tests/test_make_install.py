"""`make install` links `luxx` into a directory of commands, and `make run` says how to call it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INSTALLED = ".venv/.installed-to-run"


def make(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    """Runs make as if the dependencies were installed."""
    return subprocess.run(
        ["make", "-o", INSTALLED, *arguments],
        cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("is_on_path", [True, False])
def test_install_links_the_command_and_says_what_the_path_lacks(tmp_path: Path, is_on_path: bool) -> None:
    commands = tmp_path / "bin"
    path = f"{commands}{os.pathsep}{os.defpath}" if is_on_path else os.defpath
    for _ in range(2):
        finished = make("install", f"BIN={commands}", path=path)
        assert finished.returncode == 0, finished
    assert (commands / "luxx").readlink() == ROOT / ".venv/bin/luxx"
    assert (f"{commands} is not on your PATH" in finished.stdout) == (not is_on_path)


def test_install_keeps_a_file_of_another_installation(tmp_path: Path) -> None:
    (tmp_path / "luxx").write_text("another", "utf-8")
    finished = make("install", f"BIN={tmp_path}", path=os.defpath)
    assert finished.returncode != 0
    assert "remove it first" in finished.stderr
    assert (tmp_path / "luxx").read_text("utf-8") == "another"


def test_run_says_how_to_call_the_command() -> None:
    shown = make("--dry-run", "run", path=os.defpath).stdout
    assert "or link it into" in shown
    assert "once: make install" in shown
