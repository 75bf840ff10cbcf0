"""The supervisor of one sandbox process: a separate program, run with `python -I -S`.

It reads a spec from its control socket, starts the program, and measures what the process tree uses. It ends
the whole tree when the program ends, exceeds a limit, or the server closes the socket. It imports only fast
modules of the standard library. The backend decides what is started and how it is confined (the spec).
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import select
import time

from luxx.infra.descriptors import close_all_but
from luxx.tools.sandbox.directories import (
    DiskUsage,
    give_workspace_to_user,
    make_scratch,
    new_scratch,
    remove_scratch,
)
from luxx.tools.sandbox.processes import (
    SIGKILL,
    SIGSTOP,
    KernelBuffers,
    MachineMemory,
    TreeUsage,
    living,
    name_memory_bytes,
    reap,
    signal_to,
    tree,
)
from luxx.tools.sandbox.program_start import (
    become_bubblewrap,
    enter,
    limit_inside,
    make_proxy_socket,
    most_tasks,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from typing import Any, NoReturn

    SupervisorSpec = dict[str, Any]

KILL_SECONDS = 60.0
STOP_ROUNDS = 20
"""In this many rounds new processes are only stopped, so that none forks unseen; then all are killed."""
PR_SET_CHILD_SUBREAPER = 36
TICK_MS = 25
SETUP_MS = 10_000
"""How long bubblewrap may take to create a sandbox."""
WORKSPACE_GROWTH_FACTOR = 2
"""How many times the disk limit a workspace may grow while a program runs. It is more than 1, because other
programs of the same user write there, too."""
TMPFS = ("tmp", "dev/shm")


def inherit_orphans() -> None:
    """Make orphaned descendants children of this process instead of pid 1."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_tree(main_pid: int | None) -> None:
    """End all descendants of this process. New ones are stopped first, so that no fork escapes.

    `main_pid` is not reaped: the caller reads its exit status.
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
    """Wait for the supervisor. If it was killed, end its descendants, which this process inherits."""
    release_streams()
    _, status = os.waitpid(supervisor, 0)
    if status != 0:
        end_tree(None)
        remove_scratch(scratch)
    os._exit(0)


def release_streams() -> None:
    """Close stdin, stdout and stderr here, so that only the program keeps its pipes open."""
    dev_null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(dev_null, fd)


def main(passed: list[int]) -> NoReturn:
    """Run one sandbox and exit at once, without the interpreter's shutdown.

    Forks into a keeper and a supervisor; if one is killed, the other ends the tree. `passed`: the inherited
    descriptors to keep; the first is the control socket.
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
        # A traceback would be lost, so the error goes to the server; the keeper ends the tree.
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
    if spec["fd_channel"] is not None:
        os.set_inheritable(spec["fd_channel"], False)
    if not spec["has_stdin"]:
        dev_null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(dev_null, 0)
        os.close(dev_null)
    scratch = None
    try:
        give_workspace_to_user(spec, control)
        scratch = make_scratch(spec, scratch_path)
        supervised = SupervisedProcess(spec, scratch)
    except OSError as error:
        _send_message(control, {"failed": f"the sandbox could not be created: {error.strerror or error}"})
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
    """The started program. `pid` is the child of the supervisor, `init` pid 1 inside a bubblewrap sandbox.

    `problem`: why it could not be started, else None.
    """

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
        """End the whole process tree."""
        if self.init is not None:
            # The kernel kills all processes of a pid namespace when its first one dies.
            signal_to(self.init, SIGKILL)
        end_tree(self.pid)

    def tmpfs_bytes(self, most: float) -> int:
        """Bytes of memory that the files of the sandbox's tmpfs mounts and their names take.

        A mount larger than `most` bytes belongs to the host: the sandbox is not set up yet.
        """
        if self.init is None:
            return 0
        used_bytes = 0
        for directory in TMPFS:
            try:
                file_system = os.statvfs(f"/proc/{self.init}/root/{directory}")
            except OSError:
                continue
            if file_system.f_blocks * file_system.f_frsize <= most:
                used_blocks = file_system.f_blocks - file_system.f_bfree
                used_bytes += used_blocks * file_system.f_frsize + name_memory_bytes(file_system)
        return used_bytes

    def is_set_up(self) -> bool:
        """Whether the program itself was executed, as bubblewrap reports it on its status pipe."""
        if self.status_fd is None:
            return True
        os.set_blocking(self.status_fd, False)
        try:
            return b"exit-code" in os.read(self.status_fd, 4096)
        except BlockingIOError:
            return False

    def _start_directly(self, spec: SupervisorSpec, scratch: str | None) -> None:
        error_reader, error_writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                enter(spec, scratch)
            except BaseException as error:
                os.write(error_writer, f"the sandbox could not be entered: {error}".encode())
            os._exit(126)
        os.close(error_writer)
        # A successful exec closes the child's end, and the read returns nothing.
        self.problem = os.read(error_reader, 4096).decode("utf-8", "replace") or None
        os.close(error_reader)

    def _start_bubblewrap(self, spec: SupervisorSpec) -> None:
        status, status_writer = os.pipe()
        blocked, unblock = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                become_bubblewrap(spec, status_writer, blocked)
            except BaseException as error:
                os.write(2, f"the sandbox could not be created: {error}".encode())
            os._exit(126)
        os.close(status_writer)
        os.close(blocked)
        self.status_fd = status
        self.init = _first_process(status)
        if self.init is None:
            self.problem = "bubblewrap created no sandbox"
            return
        bubblewrap = spec["bubblewrap"]
        limit_inside(self.init, most_tasks(spec["limits"]), spec["uid"], bubblewrap["has_own_network"])
        if spec["fd_channel"] is not None:
            make_proxy_socket(self.init, spec["uid"], spec["fd_channel"])
        os.write(unblock, b"1")
        os.close(unblock)


class LimitWatch:
    """Measures a sandbox until its program ends, and ends it when it exceeds a limit."""

    def __init__(self, spec: SupervisorSpec, supervised: SupervisedProcess, scratch: str | None) -> None:
        self.spec = spec
        self.limits: dict[str, float] = spec["limits"]
        self.supervised = supervised
        has_own_network = supervised.init is not None and spec["bubblewrap"]["has_own_network"]
        buffers = KernelBuffers(supervised.init if has_own_network else None)
        self.usage = TreeUsage({supervised.pid, supervised.init or supervised.pid}, spec["uid"], buffers)
        self.machine = MachineMemory(spec["limits"]["reserve"])
        self.disk_usage = DiskUsage([path for path in (spec["workspace"], scratch) if path is not None])
        self.started_at: float | None = None
        self.peak = 0
        self.exceeded_limit: str | None = None
        self.is_cancelled = False
        if not spec["waits"]:
            self._begin()

    def run(self, control: int, keeper_fd: int) -> dict[str, Any]:
        """Wait for the end of the program, end the tree, and return the last message for the server."""
        poller = select.poll()
        for fd in (control, keeper_fd, self.supervised.pidfd):
            poller.register(fd, select.POLLIN)
        while True:
            timeout = None if self.started_at is None else self.spec.get("tick_ms", TICK_MS)
            ready = {fd for fd, _ in poller.poll(timeout)}
            if self.supervised.pidfd in ready:
                break
            if keeper_fd in ready or (control in ready and not self._listen(control)):
                self.is_cancelled = True
                break
            if self.started_at is not None and self._exceeds_limit():
                break
        ended_by_itself = self.exceeded_limit is None and not self.is_cancelled
        self.supervised.kill()
        _, status = os.waitpid(self.supervised.pid, 0)
        reap(None)
        code = os.waitstatus_to_exitcode(status)
        ended: dict[str, Any] = {"code": code, "exceeded_limit": self.exceeded_limit, **self._used()}
        # A killed process reports no setup failure.
        if ended_by_itself and code >= 0 and not self.supervised.is_set_up():
            ended["failed"] = "bubblewrap could not set up the sandbox"
        return ended

    def _listen(self, control: int) -> bool:
        """Read the server's start message: the seconds the program may take. False: the socket is closed."""
        try:
            data = os.read(control, 32)
        except ConnectionResetError:
            # The server closed the socket before it read all messages.
            return False
        if data and self.started_at is None:
            self.limits = {**self.limits, "wall": float(data)}
            give_workspace_to_user(self.spec, control)
            self._begin()
            _send_message(control, {"begun": True})
        return bool(data)

    def _begin(self) -> None:
        self.usage.update(tree(os.getpid()))
        self.usage.begin()
        self.disk_usage.update()
        self.started_at = time.monotonic()

    def _exceeds_limit(self) -> bool:
        usage, limits = self.usage, self.limits
        usage.update(tree(os.getpid()))
        # Dead processes are measured now. Until they are reaped, they count as tasks of their user.
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
        elif usage.written > limits["disk"] or usage.is_hiding:
            # Writes that cannot be measured count as over the limit.
            self.exceeded_limit = "disk"
        elif self.disk_usage.grown > WORKSPACE_GROWTH_FACTOR * limits["disk"]:
            self.exceeded_limit = "disk"
        elif time.monotonic() - (self.started_at or 0) > limits["wall"]:
            self.exceeded_limit = "time"
        return self.exceeded_limit is not None

    def _used(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = 0.0 if self.started_at is None else time.monotonic() - self.started_at
        memory = max(self.peak, used.ru_maxrss * 1024)
        return {"wall": wall, "cpu": max(used.ru_utime + used.ru_stime, self.usage.cpu), "memory": memory}


def _first_process(status: int) -> int | None:
    """The pid of the sandbox's first process, from bubblewrap's status pipe; None if bubblewrap failed."""
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
    with open(control, "rb", closefd=False) as stream:
        length = int.from_bytes(stream.read(4), "big")
        return marshal.loads(stream.read(length))


def _send_message(control: int, message: dict[str, Any]) -> None:
    data = marshal.dumps(message)
    try:
        os.write(control, len(data).to_bytes(4, "big") + data)
    except OSError:
        return
