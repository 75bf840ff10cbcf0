"""What a tree of processes is and uses, read from /proc.

Part of the supervisor: only the standard library, and of it only what loads fast.
"""

import os

SIGKILL, SIGSTOP = 9, 19


def tree(root: int) -> list[int]:
    """All processes below `root`, without it and without the dead."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        for child in children(waiting.pop()):
            if child not in found:
                found.append(child)
                waiting.append(child)
    return [pid for pid in found if not _is_dead(pid)]


def measure(pids: list[int]) -> tuple[int, float, int, int]:
    """Memory in bytes, CPU seconds, tasks, bytes written, of these processes together."""
    memory, ticks, tasks, written = 0, 0, 0, 0
    for pid in pids:
        status = _read(f"/proc/{pid}/status")
        memory += sum(_number(status, name) for name in (b"RssAnon:", b"RssShmem:", b"VmSwap:")) * 1024
        tasks += _number(status, b"Threads:")
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        ticks += sum(int(field) for field in fields[11:15])
        used = _read(f"/proc/{pid}/io")
        written += _number(used, b"\nwrite_bytes:") - _number(used, b"cancelled_write_bytes:")
    return memory, ticks / os.sysconf("SC_CLK_TCK"), tasks, written


def children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(one) for task in tasks for one in _read(f"/proc/{pid}/task/{task}/children").split()]


def _is_dead(pid: int) -> bool:
    state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].strip()[:1]
    return state in (b"Z", b"X", b"")


def tasks_of(uid: int) -> int:
    """How many tasks a user has; the kernel's limit counts them all where there is no user namespace."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return count


def _number(text: bytes, name: bytes) -> int:
    words = text.partition(name)[2].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536) or b""
    except OSError:
        return b""


def signal_to(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


def reap(main_pid: int | None) -> None:
    """Take leave of dead orphans; the main process keeps its status until it is asked for."""
    for pid in children(os.getpid()):
        if pid != main_pid:
            try:
                os.waitpid(pid, os.WNOHANG)
            except OSError:
                continue
