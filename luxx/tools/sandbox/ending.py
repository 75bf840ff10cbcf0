"""The end of a tree of processes, whatever it does about it; and who sees to it when a supervisor cannot.

Part of the supervisor: only the standard library, and of it only what loads fast.
"""

from __future__ import annotations

import ctypes
import os
import time

from luxx.tools.sandbox.handover import remove
from luxx.tools.sandbox.processes import SIGKILL, SIGSTOP, living, reap, signal_to, tree

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
