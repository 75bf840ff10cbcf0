"""The supervisor of one jail: a program of its own, run with `python -I -S`.

It is told on a socket what to start, starts it, watches what its process tree uses, and ends the whole tree
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
from luxx.tools.sandbox.accounting import Account, Holdings
from luxx.tools.sandbox.entering import become_bubblewrap, enter, limit_inside, make_door, most_tasks
from luxx.tools.sandbox.handover import hand_over, make_scratch, new_scratch, remove
from luxx.tools.sandbox.processes import (
    SIGKILL,
    SIGSTOP,
    Buffers,
    Machine,
    held_by_names,
    living,
    reap,
    signal_to,
    tree,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from typing import NoReturn

KILL_SECONDS = 60.0
PATIENT_ROUNDS = 20
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
        if fresh and rounds < PATIENT_ROUNDS:
            continue
        for pid in pids:
            signal_to(pid, SIGKILL)
        reap(main_pid)
        if not [pid for pid in living(tree(os.getpid())) if pid != main_pid]:
            break
        time.sleep(0.002)
    if main_pid is not None:
        signal_to(main_pid, SIGKILL)


def keep(supervisor: int, scratch: str) -> NoReturn:
    """Wait for the supervisor; where it was killed, end what it leaves behind, which is ours then."""
    let_go_of_streams()
    _, status = os.waitpid(supervisor, 0)
    if status != 0:
        end_tree(None)
        remove(scratch)
    os._exit(0)


def let_go_of_streams() -> None:
    """The program's streams are its own: only when it lets go of them do they end."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)


if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from typing import Any, NoReturn

    Spec = dict[str, Any]

TICK_MS = 25
SETUP_MS = 10_000
"""How long bubblewrap may take to build a jail."""
SHARED_WORKSPACE = 2
"""So many times the limit a workspace may grow while a program runs: others of its user write there, too."""
TMPFS = ("tmp", "dev/shm")


def main(passed: list[int]) -> NoReturn:
    """Does all of it and ends the process, without the time that a tidy end takes.

    Two processes: each sees to the end of the jail where the other is killed. Of `passed`, the descriptors
    that are for it, the first is the one it is told on.
    """
    close_all_but(passed)
    control = passed[0]
    inherit_orphans()
    scratch, keeper = new_scratch(), os.getpid()
    supervisor = os.fork()
    if supervisor:
        keep(supervisor, scratch)
    code = 1
    try:
        _supervise(control, keeper, scratch)
        code = 0
    except Exception as error:
        # Nobody would see a traceback; the keeper ends what runs.
        _tell(control, {"failed": f"its supervisor failed: {error!r}"})
    finally:
        os._exit(code)


def _supervise(control: int, keeper: int, place: str) -> None:
    os.set_inheritable(control, False)
    inherit_orphans()
    keeper_fd = os.pidfd_open(keeper)
    if os.getppid() != keeper:
        return
    spec = _told(control)
    if spec["letterbox"] is not None:
        os.set_inheritable(spec["letterbox"], False)
    if not spec["has_stdin"]:
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    scratch = None
    try:
        hand_over(spec, control)
        scratch = make_scratch(spec, place)
        jail = Jail(spec, scratch)
    except OSError as error:
        _tell(control, {"failed": f"the jail could not be made: {error.strerror or error}"})
        remove(scratch)
        return
    let_go_of_streams()
    if jail.problem is None:
        _tell(control, {"started": True})
        try:
            ended = Watch(spec, jail, scratch).until_the_end(control, keeper_fd)
        except BaseException:
            jail.kill()
            raise
    else:
        jail.kill()
        ended = {"failed": jail.problem}
    _tell(control, ended)
    remove(scratch)


class Jail:
    """What was started. `root` is the process to measure from, `init` the first one inside a bubblewrap."""

    def __init__(self, spec: Spec, scratch: str | None) -> None:
        self.problem: str | None = None
        self.init: int | None = None
        self.status_fd: int | None = None
        if spec["bubblewrap"] is not None:
            self._start_bubblewrap(spec)
        else:
            self._start_here(spec, scratch)
        self.pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """End all of it."""
        if self.init is not None:
            # The death of a namespace's first process is the death of all in it.
            signal_to(self.init, SIGKILL)
        end_tree(self.pid)

    def temporary(self, most: float) -> int:
        """Bytes that files in memory and their names take, as far as they can be seen."""
        if self.init is None:
            return 0
        taken = 0
        for one in TMPFS:
            try:
                found = os.statvfs(f"/proc/{self.init}/root/{one}")
            except OSError:
                continue
            # What is larger is not ours: the jail does not stand yet.
            if found.f_blocks * found.f_frsize <= most:
                taken += (found.f_blocks - found.f_bfree) * found.f_frsize + held_by_names(found)
        return taken

    def is_set_up(self) -> bool:
        """Whether the program itself was run, as far as its starter told."""
        if self.status_fd is None:
            return True
        os.set_blocking(self.status_fd, False)
        try:
            return b"exit-code" in os.read(self.status_fd, 4096)
        except BlockingIOError:
            return False

    def _start_here(self, spec: Spec, scratch: str | None) -> None:
        told, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                enter(spec, scratch)
            except BaseException as error:
                os.write(tell, f"the jail could not be entered: {error}".encode())
            os._exit(126)
        os.close(tell)
        # Closed unwritten by the exec that replaces the child.
        self.problem = os.read(told, 4096).decode("utf-8", "replace") or None
        os.close(told)

    def _start_bubblewrap(self, spec: Spec) -> None:
        status, tell_status = os.pipe()
        blocked, unblock = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                become_bubblewrap(spec, tell_status, blocked)
            except BaseException as error:
                os.write(2, f"the jail could not be made: {error}".encode())
            os._exit(126)
        os.close(tell_status)
        os.close(blocked)
        self.status_fd = status
        self.init = _first_process(status)
        if self.init is None:
            self.problem = "bubblewrap made no jail"
            return
        told = spec["bubblewrap"]
        limit_inside(self.init, most_tasks(spec["limits"]), spec["uid"], told["has_own_network"])
        if spec["letterbox"] is not None:
            make_door(self.init, spec["uid"], spec["letterbox"])
        os.write(unblock, b"1")
        os.close(unblock)


class Watch:
    """Looks at a jail until it has ended, and ends it when it must."""

    def __init__(self, spec: Spec, jail: Jail, scratch: str | None) -> None:
        self.spec = spec
        self.limits: dict[str, float] = spec["limits"]
        self.jail = jail
        has_own_network = jail.init is not None and spec["bubblewrap"]["has_own_network"]
        buffers = Buffers(jail.init if has_own_network else None)
        self.account = Account({jail.pid, jail.init or jail.pid}, spec["uid"], buffers)
        self.machine = Machine(spec["limits"]["reserve"])
        self.holdings = Holdings([one for one in (spec["workspace"], scratch) if one is not None])
        self.began: float | None = None
        self.peak = 0
        self.hit: str | None = None
        self.is_cancelled = False
        if not spec["waits"]:
            self._begin()

    def until_the_end(self, control: int, keeper_fd: int) -> dict[str, Any]:
        poller = select.poll()
        for fd in (control, keeper_fd, self.jail.pidfd):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {
                fd for fd, _ in poller.poll(None if self.began is None else self.spec.get("tick_ms", TICK_MS))
            }
            if self.jail.pidfd in ready:
                break
            if keeper_fd in ready or (control in ready and not self._listen(control)):
                self.is_cancelled = True
                break
            if self.began is not None and self._is_over():
                break
        is_whole = self.hit is None and not self.is_cancelled
        self.jail.kill()
        _, status = os.waitpid(self.jail.pid, 0)
        reap(None)
        code = os.waitstatus_to_exitcode(status)
        ended: dict[str, Any] = {"code": code, "hit": self.hit, **self._used()}
        # Who is killed has no last word.
        if is_whole and code >= 0 and not self.jail.is_set_up():
            ended["failed"] = "bubblewrap could not set the jail up"
        return ended

    def _listen(self, control: int) -> bool:
        """Hear the word to begin, which is how long it may take; whether anybody is still there."""
        try:
            heard = os.read(control, 32)
        except ConnectionResetError:
            # Gone with something of ours unread.
            return False
        if heard and self.began is None:
            self.limits = {**self.limits, "wall": float(heard)}
            hand_over(self.spec, control)
            self._begin()
            _tell(control, {"going": True})
        return bool(heard)

    def _begin(self) -> None:
        self.account.look(tree(os.getpid()))
        self.account.begin()
        self.holdings.look()
        self.began = time.monotonic()

    def _is_over(self) -> bool:
        account, limits = self.account, self.limits
        account.look(tree(os.getpid()))
        # The dead have been seen; unless we wait for them, they count as tasks of their user.
        reap(self.jail.pid)
        self.holdings.look()
        memory = account.memory + self.jail.temporary(limits["memory"])
        self.peak = max(self.peak, memory)
        if memory > limits["memory"]:
            self.hit = "memory"
        elif self.machine.ends(memory / limits["memory"]):
            self.hit = "machine_memory"
        elif account.tasks > limits["processes"]:
            self.hit = "processes"
        elif account.cpu > limits["cpu"]:
            self.hit = "cpu"
        elif account.written > limits["disk"] or self.holdings.grown > SHARED_WORKSPACE * limits["disk"]:
            self.hit = "disk"
        elif account.is_hiding:
            # What it writes cannot be told, so it is taken for too much.
            self.hit = "disk"
        elif time.monotonic() - (self.began or 0) > limits["wall"]:
            self.hit = "time"
        return self.hit is not None

    def _used(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = 0.0 if self.began is None else time.monotonic() - self.began
        memory = max(self.peak, used.ru_maxrss * 1024)
        return {"wall": wall, "cpu": max(used.ru_utime + used.ru_stime, self.account.cpu), "memory": memory}


def _first_process(status: int) -> int | None:
    """The first process inside, as bubblewrap tells it; None if it gave up."""
    poller = select.poll()
    poller.register(status, select.POLLIN)
    heard = b""
    while b"}" not in heard:
        piece = os.read(status, 4096) if poller.poll(SETUP_MS) else b""
        if not piece:
            return None
        heard += piece
    digits = heard.partition(b'"child-pid":')[2].strip().split(b",")[0].split(b"}")[0]
    return int(digits) if digits.strip().isdigit() else None


def _told(control: int) -> Spec:
    length = int.from_bytes(_exactly(control, 4), "big")
    return marshal.loads(_exactly(control, length))


def _exactly(fd: int, length: int) -> bytes:
    heard = b""
    while len(heard) < length:
        piece = os.read(fd, length - len(heard))
        if not piece:
            raise SystemExit(1)
        heard += piece
    return heard


def _tell(control: int, words: dict[str, Any]) -> None:
    text = marshal.dumps(words)
    try:
        os.write(control, len(text).to_bytes(4, "big") + text)
    except OSError:
        return
