"""Python packages for programs: installed as a whole or not at all, and visible in the sandbox."""

import sys
import zipfile
from pathlib import Path

import pytest

from luxx.errors import Unavailable
from luxx.tools.sandbox.service import install_packages, installed_packages
from sandbox.client import OpenSandboxClient


def wheel_in(folder: Path, name: str) -> str:
    """A wheel with one module that contains its name."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"NAME = {name!r}\n")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return str(path)


@pytest.mark.heavy
async def test_installed_packages_are_visible_in_the_sandbox_and_replaced_as_a_whole(
    open_sandbox_client: OpenSandboxClient, tmp_path: Path
) -> None:
    async with open_sandbox_client("bubblewrap", prewarmed=0) as client:
        if client is None:
            return
        (tmp_path / "data").mkdir(mode=0o755)
        assert client.sandbox.interpreter is not None
        program = client.sandbox.interpreter.program
        for name, other in (("first", "second"), ("second", "first")):
            wheel = wheel_in(tmp_path, name)
            install_packages([wheel], program, client.sandbox.packages)
            assert installed_packages(client.sandbox.packages) == [wheel]
            executed = await client.python(f"import {name}; print({name}.NAME)\nimport {other}")
            assert executed.result.data["stdout"] == f"{name}\n", executed.result
            assert f"No module named '{other}'" in (executed.result.error or "")


def test_a_failed_installation_keeps_the_earlier_packages(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    wheel = wheel_in(tmp_path, "kept")
    install_packages([wheel], sys.executable, folder)
    with pytest.raises(Unavailable, match="the packages were not installed: "):
        install_packages([str(tmp_path / "missing-1.0-py3-none-any.whl")], sys.executable, folder)
    assert installed_packages(folder) == [wheel]
    assert (folder / "kept.py").exists()
    install_packages([], sys.executable, folder)
    assert not (folder / "kept.py").exists()
