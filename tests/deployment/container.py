"""Runs the command of an `Image` as Docker does: as its user, with its volumes, in namespaces of its own."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from deployment.image import Stage
from luxx.tools.sandbox.seccomp import (
    CLONE_PARENT,
    ENOSYS,
    NEW_NAMESPACES,
    DeniedCall,
    SyscallArgumentCheck,
    assemble,
)

START_SECONDS = 60.0
STOP_SECONDS = 20.0
EXEC_SECONDS = 120.0

DOCKER_FILTER = assemble(
    [
        DeniedCall(name="clone3", error=ENOSYS),
        DeniedCall(
            name="clone", unless_args=((SyscallArgumentCheck(0, 0, NEW_NAMESPACES & ~CLONE_PARENT),),)
        ),
        *(
            DeniedCall(name=name)
            for name in (
                *("unshare", "setns", "mount", "umount2", "pivot_root", "move_mount", "open_tree"),
                *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "bpf", "perf_event_open"),
            )
        ),
    ],
    os.uname().machine,
)
"""What Docker's default filter refuses a process without CAP_SYS_ADMIN, as far as sandboxes use it."""

DOCKER_PATHS = """
for path in proc/kcore proc/keys proc/timer_list; do
  if [ -e $path ]; then mount --bind /dev/null $path; fi
done
for path in proc/bus proc/fs proc/irq proc/sys; do
  mount --bind $path $path
  mount -o remount,bind,ro $path
done
"""
"""Paths that Docker masks or makes read-only, unless `systempaths=unconfined` is set."""

NETWORK = "ip link set lo up; mount -t sysfs -o ro sysfs sys;"
READ_ONLY = "mount -o remount,ro /; mount -t tmpfs -o exec,nosuid,nodev tmpfs /tmp"
"""`--read-only --tmpfs /tmp:exec`: without `exec`, Docker allows no program in a tmpfs."""

LAUNCH = """
import ctypes, os, struct, sys
code, (uid, gid), command = bytes.fromhex(sys.argv[1]), map(int, sys.argv[2].split(":")), sys.argv[3:]
if code:
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP
os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
os.execvp(command[0], command)
"""


class Container:
    """`with` starts the command and ends it. `has_filter` and `has_masks`: as Docker does by default."""

    def __init__(
        self,
        stage: Stage,
        environ: Mapping[str, str] | None = None,
        *,
        has_filter: bool = True,
        has_masks: bool = True,
        is_read_only: bool = False,
        has_volumes: bool = True,
    ) -> None:
        self._stage = stage
        self._environ = {"HOME": "/srv/luxx", **(environ or {})}
        self._code = DOCKER_FILTER if has_filter else b""
        self._prepare = NETWORK + (DOCKER_PATHS if has_masks else "")
        self._limit = READ_ONLY if is_read_only else ""
        self._has_volumes = has_volumes
        self._log = stage.folder / "container.log"

    @property
    def output(self) -> str:
        return self._log.read_text("utf-8")

    def __enter__(self) -> Self:
        line, environ = self._stage.enter(
            self._launched(self._stage.command),
            self._environ,
            namespaces=["--net", "--uts", "--ipc"],
            prepare=self._prepare,
            limit=self._limit,
            with_volumes=self._has_volumes,
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(line, env=environ, stdout=log, stderr=log)
        self._await_health()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            pid = self._first_pid()
            os.kill(pid or self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """Like `docker stop`. Returns the exit code."""
        os.kill(self._first_pid(), signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Like `docker exec`."""
        pid = str(self._first_pid())
        enter = ["nsenter", "--target", pid, "--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
        environ = {**self._stage.environ, **self._environ}
        inner = ["env", "-i", *(f"{name}={value}" for name, value in environ.items())]
        line = [*enter, f"--wd=/proc/{pid}/cwd", *inner, *self._launched(command)]
        return subprocess.run(line, capture_output=True, text=True, timeout=EXEC_SECONDS, check=False)

    def _launched(self, command: Sequence[str]) -> list[str]:
        return ["/usr/local/bin/python3", "-c", LAUNCH, self._code.hex(), self._stage.user, *command]

    def _first_pid(self) -> int:
        """The number that the first process of the container has on this machine; 0 before it starts."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
        return int(children[0]) if children else 0

    def _await_health(self) -> None:
        """Waits until the HEALTHCHECK of the image succeeds."""
        until = time.monotonic() + START_SECONDS
        while True:
            assert self._process.poll() is None, self.output
            checked = self.run(*self._stage.health_command) if self._first_pid() else None
            if checked is not None and checked.returncode == 0:
                return
            assert time.monotonic() < until, f"{self.output}\n{checked}"
            time.sleep(0.2)
