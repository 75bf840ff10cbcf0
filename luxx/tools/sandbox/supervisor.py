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

from luxx.tools.sandbox.entering import become_bubblewrap, enter, limit_tasks, most_tasks
from luxx.tools.sandbox.handover import hand_over, make_scratch, remove
from luxx.tools.sandbox.processes import SIGKILL, SIGSTOP, measure, reap, signal_to, tree

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from typing import Any, NoReturn

    Spec = dict[str, Any]

TICK_MS = 25
SETUP_MS = 10_000
"""How long bubblewrap may take to build a jail."""
KILL_SECONDS = 5.0
PR_SET_CHILD_SUBREAPER = 36


def main(control: int) -> NoReturn:
    """Does all of it and ends the process, without the time that a tidy end takes."""
    try:
        _supervise(control)
    except Exception as error:
        # Nobody would see a traceback; what runs dies with us.
        _tell(control, {"failed": f"its supervisor failed: {error!r}"})
    finally:
        os._exit(0)


def _supervise(control: int) -> None:
    os.set_inheritable(control, False)
    spec = _told(control)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    scratch = None
    try:
        hand_over(spec)
        scratch = make_scratch(spec)
        jail = Jail(spec, scratch)
    except OSError as error:
        _tell(control, {"failed": f"the jail could not be made: {error.strerror or error}"})
        remove(scratch)
        return
    _let_go_of_streams()
    if jail.problem is None:
        _tell(control, {"started": True})
        try:
            ended = Watch(spec, jail, control).until_the_end()
        except BaseException:
            jail.kill()
            raise
    else:
        jail.kill()
        ended = {"failed": jail.problem}
    remove(scratch)
    _tell(control, ended)


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
        """End all of it; what forks meanwhile is stopped first, so that nothing gets away."""
        if self.init is not None:
            # The death of a namespace's first process is the death of all in it.
            signal_to(self.init, SIGKILL)
        deadline = time.monotonic() + KILL_SECONDS
        stopped: set[int] = set()
        while time.monotonic() < deadline:
            pids = tree(os.getpid())
            fresh = [pid for pid in pids if pid not in stopped]
            for pid in fresh:
                signal_to(pid, SIGSTOP)
            stopped.update(fresh)
            if fresh:
                continue
            for pid in pids:
                signal_to(pid, SIGKILL)
            reap(self.pid)
            if not [pid for pid in tree(os.getpid()) if pid != self.pid]:
                break
            time.sleep(0.002)
        signal_to(self.pid, SIGKILL)

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
        limit_tasks(self.init, most_tasks(spec["limits"]), spec["uid"])
        os.write(unblock, b"1")
        os.close(unblock)


class Watch:
    """Looks at a jail until it has ended, and ends it when it must."""

    def __init__(self, spec: Spec, jail: Jail, control: int) -> None:
        self.spec = spec
        self.limits: dict[str, float] = spec["limits"]
        self.jail = jail
        self.control = control
        self.began = None if spec["waits"] else time.monotonic()
        self.peak = 0
        self.written_before = 0
        self.cpu_before = 0.0
        self.hit: str | None = None
        self.is_cancelled = False

    def until_the_end(self) -> dict[str, Any]:
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.jail.pidfd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(None if self.began is None else TICK_MS)}
            if self.jail.pidfd in ready:
                break
            if self.control in ready and not self._listen():
                self.is_cancelled = True
                break
            if self.began is not None and self._is_over():
                break
        is_whole = self.hit is None and not self.is_cancelled
        self.jail.kill()
        _, status = os.waitpid(self.jail.pid, 0)
        reap(None)
        ended: dict[str, Any] = {"code": os.waitstatus_to_exitcode(status), "hit": self.hit, **self._used()}
        if is_whole and not self.jail.is_set_up():
            ended["failed"] = "bubblewrap could not set the jail up"
        return ended

    def _listen(self) -> bool:
        """Hear the word to begin, which is how long it may take; whether anybody is still there."""
        try:
            heard = os.read(self.control, 32)
        except ConnectionResetError:
            # Gone with something of ours unread.
            return False
        if heard and self.began is None:
            self.limits = {**self.limits, "wall": float(heard)}
            hand_over(self.spec)
            self.began = time.monotonic()
            _, self.cpu_before, _, self.written_before = measure(self._pids())
            _tell(self.control, {"going": True})
        return bool(heard)

    def _pids(self) -> list[int]:
        return tree(os.getpid())

    def _is_over(self) -> bool:
        memory, cpu, tasks, written = measure(self._pids())
        self.peak = max(self.peak, memory)
        limits = self.limits
        if memory > limits["memory"]:
            self.hit = "memory"
        elif tasks > limits["processes"]:
            self.hit = "processes"
        elif cpu - self.cpu_before > limits["cpu"]:
            self.hit = "cpu"
        elif written - self.written_before > limits["disk"]:
            self.hit = "disk"
        elif time.monotonic() - (self.began or 0) > limits["wall"]:
            self.hit = "time"
        return self.hit is not None

    def _used(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = 0.0 if self.began is None else time.monotonic() - self.began
        memory = max(self.peak, used.ru_maxrss * 1024)
        return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "memory": memory}


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


def _let_go_of_streams() -> None:
    """The program's streams are its own: only when it lets go of them do they end."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
