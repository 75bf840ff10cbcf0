"""The supervisor of one jail: a program of its own, run with `python -I -S`.

It is bubblewrap on a socket what to start, starts it, watches what its process tree uses, and ends the whole tree
when it is done, over a limit, or when the other end of the socket is gone. It imports only the standard
library, and of it what loads fast. What is started and how it is held in is the backend's to say.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import select
import time

from luxx.infra.descriptors import close_all_but
from luxx.tools.sandbox.accounting import DiskUsage, TreeUsage
from luxx.tools.sandbox.entering import become_bubblewrap, enter, limit_inside, make_proxy_socket, most_tasks
from luxx.tools.sandbox.handover import give_workspace_to_user, make_scratch, new_scratch, remove_scratch
from luxx.tools.sandbox.processes import (
    SIGKILL,
    SIGSTOP,
    KernelBuffers,
    MachineMemory,
    living,
    name_memory_bytes,
    reap,
    signal_to,
    tree,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from typing import NoReturn

KILL_SECONDS = 60.0
STOP_ROUNDS = 20
"""So often what is new is only stopped, so that nothing of it is missed; then it is killed at once."""
PR_SET_CHILD_SUBREAPER = 36


def inherit_orphans() -> None:
    """Have what lost its parent become our child instead of the first process's."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_tree(main_pid: int | None) -> None:
    """End all below this process; what forks meanwhile is stopped first, so that nothing gets away.

    The status of `main_pid` is left to be asked for.
    """
    deadline = time.monotonic() + KILL_SECONDS
    stopped: set[int] = set()
    rounds = 0
    while time.monotonic() < deadline:
        rounds += 1
        pids = living(tree(os.getpid()))
        fresh = [pid for pid in pids if pid not in stopped]
        for pid in fresh:
            signal_to(pid, SIGSTOP)
        stopped.update(fresh)
        if fresh and rounds < STOP_ROUNDS:
            continue
        for pid in pids:
            signal_to(pid, SIGKILL)
        reap(main_pid)
        if not [pid for pid in living(tree(os.getpid())) if pid != main_pid]:
            break
        time.sleep(0.002)
    if main_pid is not None:
        signal_to(main_pid, SIGKILL)


def watch_supervisor(supervisor: int, scratch: str) -> NoReturn:
    """Wait for the supervisor; where it was killed, end what it leaves behind, which is ours then."""
    release_streams()
    _, status = os.waitpid(supervisor, 0)
    if status != 0:
        end_tree(None)
        remove_scratch(scratch)
    os._exit(0)


def release_streams() -> None:
    """The program's streams are its own: only when it lets go of them do they end."""
    dev_null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(dev_null, fd)


if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from typing import Any, NoReturn

    SupervisorSpec = dict[str, Any]

TICK_MS = 25
SETUP_MS = 10_000
"""How long bubblewrap may take to build a jail."""
WORKSPACE_GROWTH_FACTOR = 2
"""So many times the limit a workspace may grow while a program runs: others of its user write there, too."""
TMPFS = ("tmp", "dev/shm")


def main(passed: list[int]) -> NoReturn:
    """Does all of it and ends the process, without the time that a tidy end takes.

    Two processes: each sees to the end of the jail where the other is killed. Of `passed`, the descriptors
    that are for it, the first is the one it is bubblewrap on.
    """
    close_all_but(passed)
    control = passed[0]
    inherit_orphans()
    scratch, keeper = new_scratch(), os.getpid()
    supervisor = os.fork()
    if supervisor:
        watch_supervisor(supervisor, scratch)
    code = 1
    try:
        _supervise(control, keeper, scratch)
        code = 0
    except Exception as error:
        # Nobody would see a traceback; the keeper ends what runs.
        _send_message(control, {"failed": f"its supervisor failed: {error!r}"})
    finally:
        os._exit(code)


def _supervise(control: int, keeper: int, scratch_path: str) -> None:
    os.set_inheritable(control, False)
    inherit_orphans()
    keeper_fd = os.pidfd_open(keeper)
    if os.getppid() != keeper:
        return
    spec = _read_spec(control)
    if spec["letterbox"] is not None:
        os.set_inheritable(spec["letterbox"], False)
    if not spec["has_stdin"]:
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    scratch = None
    try:
        give_workspace_to_user(spec, control)
        scratch = make_scratch(spec, scratch_path)
        supervised = SupervisedProcess(spec, scratch)
    except OSError as error:
        _send_message(control, {"failed": f"the jail could not be made: {error.strerror or error}"})
        remove_scratch(scratch)
        return
    release_streams()
    if supervised.problem is None:
        _send_message(control, {"started": True})
        try:
            ended = LimitWatch(spec, supervised, scratch).run(control, keeper_fd)
        except BaseException:
            supervised.kill()
            raise
    else:
        supervised.kill()
        ended = {"failed": supervised.problem}
    _send_message(control, ended)
    remove_scratch(scratch)


class SupervisedProcess:
    """What was started. `root` is the process to measure from, `init` the first one inside a bubblewrap."""

    def __init__(self, spec: SupervisorSpec, scratch: str | None) -> None:
        self.problem: str | None = None
        self.init: int | None = None
        self.status_fd: int | None = None
        if spec["bubblewrap"] is not None:
            self._start_bubblewrap(spec)
        else:
            self._start_directly(spec, scratch)
        self.pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """End all of it."""
        if self.init is not None:
            # The death of a namespace's first process is the death of all in it.
            signal_to(self.init, SIGKILL)
        end_tree(self.pid)

    def tmpfs_bytes(self, most: float) -> int:
        """Bytes that files in memory and their names take, as far as they can be seen."""
        if self.init is None:
            return 0
        taken = 0
        for one in TMPFS:
            try:
                file_system = os.statvfs(f"/proc/{self.init}/root/{one}")
            except OSError:
                continue
            # What is larger is not ours: the jail does not stand yet.
            if file_system.f_blocks * file_system.f_frsize <= most:
                taken += (
                    file_system.f_blocks - file_system.f_bfree
                ) * file_system.f_frsize + name_memory_bytes(file_system)
        return taken

    def is_set_up(self) -> bool:
        """Whether the program itself was run, as far as its starter bubblewrap."""
        if self.status_fd is None:
            return True
        os.set_blocking(self.status_fd, False)
        try:
            return b"exit-code" in os.read(self.status_fd, 4096)
        except BlockingIOError:
            return False

    def _start_directly(self, spec: SupervisorSpec, scratch: str | None) -> None:
        bubblewrap, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                enter(spec, scratch)
            except BaseException as error:
                os.write(tell, f"the jail could not be entered: {error}".encode())
            os._exit(126)
        os.close(tell)
        # Closed unwritten by the exec that replaces the child.
        self.problem = os.read(bubblewrap, 4096).decode("utf-8", "replace") or None
        os.close(bubblewrap)

    def _start_bubblewrap(self, spec: SupervisorSpec) -> None:
        status, status_writer = os.pipe()
        blocked, unblock = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                become_bubblewrap(spec, status_writer, blocked)
            except BaseException as error:
                os.write(2, f"the jail could not be made: {error}".encode())
            os._exit(126)
        os.close(status_writer)
        os.close(blocked)
        self.status_fd = status
        self.init = _first_process(status)
        if self.init is None:
            self.problem = "bubblewrap made no jail"
            return
        bubblewrap = spec["bubblewrap"]
        limit_inside(self.init, most_tasks(spec["limits"]), spec["uid"], bubblewrap["has_own_network"])
        if spec["letterbox"] is not None:
            make_proxy_socket(self.init, spec["uid"], spec["letterbox"])
        os.write(unblock, b"1")
        os.close(unblock)


class LimitWatch:
    """Looks at a jail until it has ended, and ends it when it must."""

    def __init__(self, spec: SupervisorSpec, supervised: SupervisedProcess, scratch: str | None) -> None:
        self.spec = spec
        self.limits: dict[str, float] = spec["limits"]
        self.supervised = supervised
        has_own_network = supervised.init is not None and spec["bubblewrap"]["has_own_network"]
        buffers = KernelBuffers(supervised.init if has_own_network else None)
        self.usage = TreeUsage({supervised.pid, supervised.init or supervised.pid}, spec["uid"], buffers)
        self.machine = MachineMemory(spec["limits"]["reserve"])
        self.disk_usage = DiskUsage([one for one in (spec["workspace"], scratch) if one is not None])
        self.began: float | None = None
        self.peak = 0
        self.exceeded_limit: str | None = None
        self.is_cancelled = False
        if not spec["waits"]:
            self._begin()

    def run(self, control: int, keeper_fd: int) -> dict[str, Any]:
        poller = select.poll()
        for fd in (control, keeper_fd, self.supervised.pidfd):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {
                fd for fd, _ in poller.poll(None if self.began is None else self.spec.get("tick_ms", TICK_MS))
            }
            if self.supervised.pidfd in ready:
                break
            if keeper_fd in ready or (control in ready and not self._listen(control)):
                self.is_cancelled = True
                break
            if self.began is not None and self._exceeds_limit():
                break
        ended_by_itself = self.exceeded_limit is None and not self.is_cancelled
        self.supervised.kill()
        _, status = os.waitpid(self.supervised.pid, 0)
        reap(None)
        code = os.waitstatus_to_exitcode(status)
        ended: dict[str, Any] = {"code": code, "hit": self.exceeded_limit, **self._used()}
        # Who is killed has no last word.
        if ended_by_itself and code >= 0 and not self.supervised.is_set_up():
            ended["failed"] = "bubblewrap could not set the jail up"
        return ended

    def _listen(self, control: int) -> bool:
        """Hear the word to begin, which is how long it may take; whether anybody is still there."""
        try:
            data = os.read(control, 32)
        except ConnectionResetError:
            # Gone with something of ours unread.
            return False
        if data and self.began is None:
            self.limits = {**self.limits, "wall": float(data)}
            give_workspace_to_user(self.spec, control)
            self._begin()
            _send_message(control, {"going": True})
        return bool(data)

    def _begin(self) -> None:
        self.usage.look(tree(os.getpid()))
        self.usage.begin()
        self.disk_usage.update()
        self.began = time.monotonic()

    def _exceeds_limit(self) -> bool:
        usage, limits = self.usage, self.limits
        usage.look(tree(os.getpid()))
        # The dead have been seen; unless we wait for them, they count as tasks of their user.
        reap(self.supervised.pid)
        self.disk_usage.update()
        memory = usage.memory + self.supervised.tmpfs_bytes(limits["memory"])
        self.peak = max(self.peak, memory)
        if memory > limits["memory"]:
            self.exceeded_limit = "memory"
        elif self.machine.must_end(memory / limits["memory"]):
            self.exceeded_limit = "machine_memory"
        elif usage.tasks > limits["processes"]:
            self.exceeded_limit = "processes"
        elif usage.cpu > limits["cpu"]:
            self.exceeded_limit = "cpu"
        elif (
            usage.written > limits["disk"] or self.disk_usage.grown > WORKSPACE_GROWTH_FACTOR * limits["disk"]
        ):
            self.exceeded_limit = "disk"
        elif usage.is_hiding:
            # What it writes cannot be bubblewrap, so it is taken for too much.
            self.exceeded_limit = "disk"
        elif time.monotonic() - (self.began or 0) > limits["wall"]:
            self.exceeded_limit = "time"
        return self.exceeded_limit is not None

    def _used(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = 0.0 if self.began is None else time.monotonic() - self.began
        memory = max(self.peak, used.ru_maxrss * 1024)
        return {"wall": wall, "cpu": max(used.ru_utime + used.ru_stime, self.usage.cpu), "memory": memory}


def _first_process(status: int) -> int | None:
    """The first process inside, as bubblewrap tells it; None if it gave up."""
    poller = select.poll()
    poller.register(status, select.POLLIN)
    data = b""
    while b"}" not in data:
        piece = os.read(status, 4096) if poller.poll(SETUP_MS) else b""
        if not piece:
            return None
        data += piece
    digits = data.partition(b'"child-pid":')[2].strip().split(b",")[0].split(b"}")[0]
    return int(digits) if digits.strip().isdigit() else None


def _read_spec(control: int) -> SupervisorSpec:
    length = int.from_bytes(_read_exactly(control, 4), "big")
    return marshal.loads(_read_exactly(control, length))


def _read_exactly(fd: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = os.read(fd, length - len(data))
        if not piece:
            raise SystemExit(1)
        data += piece
    return data


def _send_message(control: int, message: dict[str, Any]) -> None:
    text = marshal.dumps(message)
    try:
        os.write(control, len(text).to_bytes(4, "big") + text)
    except OSError:
        return
