"""Python packages for sandboxed programs, besides the standard library; an operator installs them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from luxx.errors import Unavailable

FOLDER = "packages"
"""In the data directory."""

_LIST = "luxx-packages.txt"


def install(packages: Sequence[str], program: str, folder: Path) -> None:
    """Replace `folder` by one with exactly these packages, for the Python `program`.

    Only wheels are installed, so that no code of a package runs here. Raises Unavailable with pip's last
    line; then `folder` is unchanged.
    """
    fresh, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    for one in (fresh, old):
        shutil.rmtree(one, ignore_errors=True)
    fresh.mkdir(parents=True)
    fresh.chmod(0o755)
    if packages:
        _run_pip(packages, program, fresh)
    (fresh / _LIST).write_text("".join(f"{one}\n" for one in sorted(packages)), "utf-8")
    if folder.exists():
        os.rename(folder, old)
    os.rename(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)


def installed(folder: Path) -> list[str]:
    """The packages of the last `install`."""
    try:
        return (folder / _LIST).read_text("utf-8").splitlines()
    except OSError:
        return []


def _run_pip(packages: Sequence[str], program: str, target: Path) -> None:
    options = ("--target", str(target), "--only-binary", ":all:", "--no-input", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "--python", program, "install", *options, "--", *packages]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, umask=0o022
    )
    if done.returncode:
        error_lines = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise Unavailable(f"the packages were not installed: {''.join(error_lines)}")
