"""Runs every attack and bomb in the sandbox of one backend, as the user that starts it; prints the outcomes.

`python attack_runner.py BACKEND DIRECTORY` prints JSON on its last line: `{"unavailable": reason}`, or
`attacks`, `unfiltered` and `bombs`, each by name `{"outcome", "how"}`.
"""

import asyncio
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from attacks import ATTACKS, PRELUDE, Attack
from bombs import BOMBS, Bomb

from luxx.errors import ToolFailed
from luxx.infra.config.schema import ToolsConfig
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.process import ProgramResult
from luxx.tools.sandbox.service import Sandbox

LIMITS = ProgramLimits(seconds=10, cpu_seconds=10)
SCRATCH = f"{tempfile.gettempdir()}/luxx-sandbox-"
NO_FILTER = b""
KILLED_BY_FILTER = (-31, 128 + 31)
WATCHED = ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname")
END_SECONDS = 5.0
"""How long after its limit a program may take to end, on a busy machine."""
OVERSHOOT_MB = 400
"""How much a program may write between two measurements of its disk use."""
OTHERS_MB = 512
"""How much other processes of the machine may use while a program runs."""

AttackResults = dict[str, dict[str, Any]]


class Surroundings:
    """The targets outside the sandbox: secrets, a victim process, listeners. `damage` finds touched ones."""

    def __init__(self, root_dir: Path, stack: ExitStack) -> None:
        self.data = root_dir / "data/luxx.db"
        self.other = root_dir / "workspaces/other/notes.txt"
        self.file = root_dir / "outside.txt"
        for folder in (self.data, self.other, self.file):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.parent.chmod(0o777)
            self._restore(folder)
        self.victim = self._new_victim()
        stack.callback(lambda: self.victim.kill())
        self.segment = _segment(stack)
        self.tcp = _bind(stack, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self.udp = _bind(stack, socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self.unix = _bind(stack, socket.AF_UNIX, socket.SOCK_STREAM, f"{root_dir}/stream.sock")
        self.datagrams = _bind(stack, socket.AF_UNIX, socket.SOCK_DGRAM, f"{root_dir}/datagrams.sock")
        self.abstract = _bind(stack, socket.AF_UNIX, socket.SOCK_STREAM, f"\0luxx-{uuid.uuid4().hex}")
        self._settings = [Path(path).read_text() for path in WATCHED]

    def attack_facts(self) -> dict[str, Any]:
        """The addresses of all targets, which attacks receive."""
        return {
            "server": os.getpid(),
            "victim": self.victim.pid,
            "segment": self.segment,
            "data": str(self.data),
            "other": str(self.other),
            "root": str(self.other.parent.parent),
            "file": str(self.file),
            "tcp": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1],
            "unix": self.unix.getsockname(),
            "datagrams": self.datagrams.getsockname(),
            "abstract": self.abstract.getsockname(),
        }

    def damage(self) -> str | None:
        """What was touched since the last call, or None. Restores it."""
        problem: str | None = None
        if self.victim.poll() is not None:
            problem, self.victim = "the victim died", self._new_victim()
        elif os.getpriority(os.PRIO_PROCESS, self.victim.pid) != os.getpriority(os.PRIO_PROCESS, 0):
            self.victim.kill()
            # While the slowed victim exists, its user may not give all processes another priority.
            self.victim.wait()
            problem, self.victim = "the victim was slowed", self._new_victim()
        for path in (self.data, self.other, self.file):
            if _state(path) != self._states[path]:
                problem = f"{path.name} is different"
                self._restore(path)
        for listener in (self.tcp, self.udp, self.unix, self.datagrams, self.abstract):
            with suppress(BlockingIOError):
                listener.recv(64) if listener.type == socket.SOCK_DGRAM else listener.accept()[0].close()
                problem = f"{listener.getsockname()!r} was reached"
        if [Path(path).read_text() for path in WATCHED] != self._settings:
            problem = "a setting of the kernel is different"
        return problem

    _states: dict[Path, Any] = {}

    def _restore(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            path.unlink()
        path.write_text("top-secret")
        path.chmod(0o666)
        self._states[path] = _state(path)

    def _new_victim(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])


def _state(path: Path) -> Any:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns


def _segment(stack: ExitStack) -> int:
    """The id of a shared memory segment that has a secret in it and that only its user may open."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    number = libc.shmget(0, 4096, 0o1600)
    assert number >= 0, ctypes.get_errno()
    stack.callback(lambda: libc.shmctl(number, 0, None))
    ctypes.memmove(libc.shmat(number, None, 0), b"top-secret", 10)
    return number


def _bind(stack: ExitStack, family: int, kind: int, address: Any) -> socket.socket:
    opened_socket = stack.enter_context(socket.socket(family, kind))
    opened_socket.bind(address)
    opened_socket.setblocking(False)
    if kind == socket.SOCK_STREAM:
        opened_socket.listen(16)
    if isinstance(address, str) and not address.startswith("\0"):
        os.chmod(address, 0o777)
    return opened_socket


async def attack_all(
    sandbox: Sandbox, surroundings: Surroundings, workspace: Path, chosen: list[Attack], **more: Any
) -> AttackResults:
    results: AttackResults = {}
    for attack in chosen:
        ran, _ = await run(
            sandbox,
            workspace,
            f"OUT = {surroundings.attack_facts()!r}\n{PRELUDE}{attack.code}",
            LIMITS,
            **more,
        )
        output = (ran.stdout.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
        outcome, _, how = output.partition(" ")
        if outcome not in ("escaped", "contained"):
            # The filter kills a program that calls another architecture, so it prints no outcome.
            outcome = "contained" if ran.exit_code in KILLED_BY_FILTER else "broken"
            how = f"{output}, exit code {ran.exit_code}, {ran.stderr[-300:]!r}"
        damage = surroundings.damage()
        results[attack.name] = {"outcome": "escaped" if damage else outcome, "how": damage or how}
    return results


async def run(
    sandbox: Sandbox, workspace: Path, code: str, limits: ProgramLimits, token: str = "", **more: Any
) -> tuple[ProgramResult, float]:
    """Runs a program in an empty workspace. Returns its result and the seconds that it took."""
    _recreate(workspace)
    assert sandbox.interpreter is not None
    argv = (sandbox.interpreter.program, "-I", "-S", "-c", code, token)
    began = time.monotonic()
    ran = await sandbox.run_sandboxed(argv, workspace, limits, **more)
    return ran, time.monotonic() - began


def _recreate(workspace: Path) -> None:
    subprocess.run(["chmod", "-R", "u+rwX", str(workspace)], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", str(workspace)], check=True)
    workspace.mkdir(mode=0o700)


def _size(workspace: Path) -> int:
    try:
        return sum(path.stat().st_blocks * 512 for path in workspace.glob("*") if path.is_file())
    except PermissionError:
        return 0


def _scratch_left(ran: ProgramResult) -> list[str]:
    """The temporary directories that the program printed and that still exist."""
    named = [name for name in ran.stdout.decode("utf-8", "replace").split() if name.startswith(SCRATCH)]
    return [name for name in named if os.path.exists(name)]


async def run_bomb(sandbox: Sandbox, workspace: Path, bomb: Bomb) -> dict[str, Any]:
    """Whether the program ended as it should, in time, and left nothing behind."""
    token = f"luxx-bomb-{uuid.uuid4().hex}"
    before = kernel_memory()
    watching = asyncio.create_task(peak_kernel_memory())
    ran, took = await run(sandbox, workspace, bomb.code, bomb.limits, token)
    watching.cancel()
    kernel = await watching - before
    left = [*processes_with(token), *_scratch_left(ran)]
    size = _size(workspace)
    how = (
        f"hit {ran.exceeded_limit}, code {ran.exit_code}, {took:.1f} s, {len(left)} left, {size >> 20} MiB, "
        f"{ran.memory >> 20} MiB used, {kernel >> 20} MiB of the kernel, "
        f"said {ran.stdout[-60:]!r} {ran.stderr[-200:]!r}"
    )
    is_right = (
        ran.exceeded_limit in bomb.hits
        if bomb.hits and ran.exceeded_limit
        else not bomb.hits or b"refused" in ran.stdout
    )
    is_contained = (
        is_right
        and not left
        and b"False" not in ran.stdout
        and took < bomb.limits.seconds + END_SECONDS
        and size < (bomb.limits.disk_mb + OVERSHOOT_MB) << 20
        and len(ran.stdout) <= bomb.limits.output_kb << 10
        # `ran.memory` counts buffers of sockets and pipes as full; for them the machine's figure decides.
        and (
            kernel <= bomb.limits.memory_mb + OTHERS_MB << 20
            if bomb.kernel
            else ran.memory < 3 * bomb.limits.memory_mb << 20
        )
    )
    return {"outcome": "contained" if is_contained else "escaped", "how": how}


def kernel_memory() -> int:
    """Bytes of memory that are neither free nor used by processes nor a cache of files on disks."""
    with open("/proc/meminfo") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}
    others = ("MemFree", "Buffers", "Cached", "AnonPages")
    return sizes["MemTotal"] - sum(sizes[name] for name in others) + sizes["Shmem"]


async def peak_kernel_memory() -> int:
    """The maximum until the task is cancelled."""
    most = kernel_memory()
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(0.01)
            most = max(most, kernel_memory())
    return most


def processes_with(token: str) -> list[int]:
    pids: list[int] = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                if token.encode() in (directory / "cmdline").read_bytes():
                    pids.append(int(directory.name))
    return pids


async def main(backend: str, root_dir: Path) -> dict[str, Any]:
    workspace = root_dir / "workspaces/mine"
    os.environ["LUXX_KEY"] = "top-secret"
    with ExitStack() as stack:
        surroundings = Surroundings(root_dir, stack)
        config = ToolsConfig(sandbox=backend)  # type: ignore[arg-type]
        sandbox = Sandbox(config, root_dir / "data", root_dir / "workspaces")
        await sandbox.open()
        if sandbox.backend_name != backend or sandbox.interpreter is None:
            return {
                "unavailable": "; ".join(
                    f"{report.name}: {report.reason} {report.output}" for report in sandbox.reports
                )
            }
        who = "root" if os.geteuid() == 0 else "ordinary"
        cells = {backend, f"{backend}-{who}"}
        results: dict[str, Any] = {"python": sandbox.interpreter.program}
        results["attacks"] = await attack_all(sandbox, surroundings, workspace, ATTACKS)
        open_to = [attack for attack in ATTACKS if attack.filtered & cells]
        results["unfiltered"] = await attack_all(sandbox, surroundings, workspace, open_to, filter=NO_FILTER)
        results["bombs"] = {}
        for bomb in BOMBS:
            try:
                results["bombs"][bomb.name] = await run_bomb(sandbox, workspace, bomb)
            except ToolFailed as error:
                results["bombs"][bomb.name] = {"outcome": "escaped", "how": str(error)}
        await sandbox.close()
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
