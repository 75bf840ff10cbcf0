"""Which Python runs in jails: the configured one, else the one below the server's, else the system's."""

import asyncio
import os
import shutil
import sys
import sysconfig
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from luxx.children import start_child
from luxx.tools.sandbox.plan import Interpreter

_ASK_SECONDS = 10.0
_QUESTION = (
    "import os, sys; print(os.path.realpath(sys.executable)); "
    "print(sys.base_prefix); print(sys.base_exec_prefix)"
)
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_SHOWN_ANYWAY = "/usr"


async def find_interpreters(configured: str) -> list[Interpreter]:
    """In the order to try them; only the configured one where there is one."""
    if configured:
        asked = await _ask(configured)
        return [] if asked is None else [asked]
    found = [own_interpreter()]
    system = shutil.which("python3", path=_SYSTEM_PATH)
    asked = None if system is None else await _ask(system)
    if asked is not None and asked.program != found[0].program:
        found.append(asked)
    return found


def own_interpreter() -> Interpreter:
    """The Python below the server's own environment."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    program = os.path.realpath(Path(sys.base_prefix) / "bin" / f"python{version}")
    return _interpreter(program, {sys.base_prefix, sys.base_exec_prefix})


def environments_of(interpreters: list[Interpreter]) -> list[Path]:
    """Where other programs of these Pythons, and the server, keep their packages: not for a jail to see."""
    found = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    for one in interpreters:
        for prefix in one.prefixes:
            found.update(Path(prefix).glob("lib*/python3*/site-packages"))
    return sorted(found)


async def _ask(program: str) -> Interpreter | None:
    try:
        process = await start_child(
            *(program, "-I", "-S", "-c", _QUESTION), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env={}
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    lines = said.decode("utf-8", "replace").splitlines()
    return _interpreter(lines[0], set(lines[1:])) if process.returncode == 0 and len(lines) == 3 else None


def _interpreter(program: str, prefixes: set[str]) -> Interpreter:
    own = sorted({os.path.realpath(one) for one in prefixes})
    needed = [one for one in own if one != _SHOWN_ANYWAY and not one.startswith(f"{_SHOWN_ANYWAY}/")]
    return Interpreter(program=program, prefixes=tuple(needed))
