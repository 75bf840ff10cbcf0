"""How the child of a supervisor becomes the program of a jail, or the bubblewrap around it.

Part of the supervisor: only the standard library, and of it only what loads fast.
"""

from __future__ import annotations

import _socket
import ctypes
import fcntl
import os
import resource
import sys

from luxx.tools.sandbox.processes import SIGKILL, tasks_of

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from typing import Any, NoReturn

    SupervisorSpec = dict[str, Any]

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
NS_GET_USERNS = 0xB701
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
SECCOMP_MODE_FILTER = 2
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
TEMPORARY = "/tmp"
"""A variable with this value names a program's own directory for temporary files, wherever that is."""
STAGE = "/tmp"
"""Where a private mount namespace shows what bubblewrap shall bind, whoever may reach it outside."""
MOST_FILES, MOST_LOCKED, MOST_ADDRESSES = 128, 64 * 1024, 64 << 30
"""Open at once in each process, bytes of memory that cannot be swapped, and bytes of addresses."""
MOST_BUFFERED = b"4096 65536 212992"
"""Bytes that TCP keeps for one connection and direction: least, at first, most."""
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAPABILITY_VERSION = 0x20080522

from_kernel = ctypes.CDLL(None, use_errno=True)


def enter(spec: SupervisorSpec, scratch: str | None) -> NoReturn:
    """Become the program, held in by Landlock and the filter as far as the spec says."""
    os.setsid()
    rules = _open_rules(spec, scratch)
    os.chdir(spec["cwd"])
    existing_tasks = tasks_of(os.geteuid() if spec["uid"] is None else spec["uid"])
    _lower_priority()
    drop_rights(spec["uid"])
    from_kernel.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    checked(from_kernel.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if spec["landlock"] is not None:
        # Before the limits: there may be more rules than a program may have files open.
        _restrict(spec["landlock"], rules)
    _limit(spec["limits"])
    _set_limit(resource.RLIMIT_NPROC, most_tasks(spec["limits"]) + existing_tasks)
    if spec["filter"]:
        _set_filter(spec["filter"])
    own = {name: scratch if value == TEMPORARY and scratch else value for name, value in spec["env"].items()}
    os.execve(spec["argv"][0], spec["argv"], own)


def become_bubblewrap(spec: SupervisorSpec, status_writer: int, blocked: int) -> NoReturn:
    told = spec["bubblewrap"]
    os.setsid()
    _lower_priority()
    staged: dict[str, str] = {} if spec["uid"] is None else _stage_sources(told)
    drop_rights(spec["uid"])
    for _, source, _ in told["binds"]:
        # Said here, because bubblewrap would say it too late.
        os.stat(staged.get(source) or source)
    _limit(spec["limits"])
    arguments = [
        "bwrap",
        *told["arguments"],
        "--json-status-fd",
        str(status_writer),
        "--block-fd",
        str(blocked),
    ]
    inherited = [status_writer, blocked]
    for flag, source, target in told["binds"]:
        arguments += [flag, staged.get(source, source), target]
    for content, target in told["data"]:
        inherited.append(_pipe_with(content))
        arguments += ["--ro-bind-data", str(inherited[-1]), target]
    arguments += told["last"]
    if spec["filter"]:
        inherited.append(_pipe_with(spec["filter"]))
        arguments += ["--seccomp", str(inherited[-1])]
    for name, value in spec["env"].items():
        arguments += ["--setenv", name, value]
    if spec.get("private"):
        # Everybody on the machine may read the arguments of a process.
        words = [word for name, value in spec["private"].items() for word in ("--setenv", name, value)]
        inherited.append(_pipe_with("\0".join([*words, ""]).encode()))
        arguments += ["--args", str(inherited[-1])]
    for fd in inherited:
        os.set_inheritable(fd, True)
    folder = staged.get(told["folder"], told["folder"])
    os.execve(f"{folder}/{told['program']}", [*arguments, "--", *spec["argv"]], {})


def _stage_sources(told: dict[str, Any]) -> dict[str, str]:
    """Show each source at a place of our own, since whom we become may not reach where it lies."""
    named = [*told["beside"], *((source, str(n)) for n, (_, source, _) in enumerate(told["binds"]))]
    if from_kernel.unshare(CLONE_NEWNS) != 0:
        return {}
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    # Opened only now: what is open from another namespace cannot be bound.
    opened = [(source, name, os.open(source, os.O_PATH | os.O_CLOEXEC)) for source, name in named]
    _mount("tmpfs", STAGE, "tmpfs", 0)
    os.chmod(STAGE, 0o755)
    staged: dict[str, str] = {}
    for source, name, fd in opened:
        target_path = f"{STAGE}/{name}"
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.mkdir(target_path, 0o755)
        else:
            os.close(os.open(target_path, os.O_CREAT | os.O_WRONLY))
        _mount(f"/proc/self/fd/{fd}", target_path, None, MS_BIND | MS_REC)
        staged[source] = target_path
    return staged


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    told = [None if one is None else one.encode() for one in (source, target, kind)]
    checked(from_kernel.mount(*told, ctypes.c_ulong(flags), None))


def drop_rights(uid: int | None) -> None:
    """Be an ordinary user without any capability, also in what could be gained later.

    An ordinary user may have been given some, and they outlast the start of a program.
    """
    for capability in range(64):
        from_kernel.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    from_kernel.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    who = CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4)
    checked(from_kernel.capset(who, bytes(24)))


def _lower_priority() -> None:
    """When memory or time is short, a jail goes before the server."""
    os.nice(5)
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")
    except OSError:
        return


def limit_inside(pid: int, tasks: int, uid: int | None, has_own_network: bool) -> None:
    """Set how many tasks the first process of a namespace may have; from there on only its own are counted.
    And how large the buffers of TCP may grow in a network of its own.

    Done as whom it runs, in a child: root may lack the capability to do it to another user's process.
    """
    child = os.fork()
    if child == 0:
        try:
            drop_rights(uid)
            resource.prlimit(pid, resource.RLIMIT_NPROC, (tasks, tasks))
            if has_own_network:
                _limit_buffers(pid)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(0, "the number of processes could not be limited")


def enter_network(pid: int) -> None:
    """Who made a namespace may enter it. Raises OSError."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    owner = fcntl.ioctl(network, NS_GET_USERNS)
    checked(from_kernel.setns(owner, CLONE_NEWUSER))
    checked(from_kernel.setns(network, CLONE_NEWNET))


def _limit_buffers(pid: int) -> None:
    try:
        enter_network(pid)
        for name in ("tcp_rmem", "tcp_wmem"):
            with open(f"/proc/sys/net/ipv4/{name}", "wb", buffering=0) as file:
                file.write(MOST_BUFFERED)
    except OSError:
        # In a container that may not set it, the kernel's bound on all of TCP remains.
        return


def most_tasks(limits: dict[str, int]) -> int:
    """A little above what the watch allows: it shall see what goes past the limit."""
    return limits["processes"] + 8


def _limit(limits: dict[str, int]) -> None:
    wanted = (
        (resource.RLIMIT_DATA, limits["memory"]),
        (resource.RLIMIT_AS, MOST_ADDRESSES + limits["memory"]),
        (resource.RLIMIT_CPU, limits["cpu"] + 1),
        (resource.RLIMIT_FSIZE, limits["file"]),
        (resource.RLIMIT_NOFILE, MOST_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, MOST_LOCKED),
        (resource.RLIMIT_MSGQUEUE, 0),
    )
    for name, value in wanted:
        _set_limit(name, value)


def _set_limit(name: int, value: int) -> None:
    """Nobody may raise what they have been left."""
    most = resource.getrlimit(name)[1]
    soft_limit = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(name, (soft_limit, soft_limit))


def _set_filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    told = Program(len(program) // 8, program)
    checked(from_kernel.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(told), 0, 0))


def _open_rules(spec: SupervisorSpec, scratch: str | None) -> list[tuple[int, int]]:
    """What may be reached, as (rights, descriptor); opened while we still may."""
    if spec["landlock"] is None:
        return []
    told = spec["landlock"]
    wanted = [*told["paths"], *([(scratch, told["write"])] if scratch is not None else [])]
    rules: list[tuple[int, int]] = []
    for path, rights in wanted:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rules.append((rights if os.path.isdir(path) else rights & told["file_rights"], fd))
    return rules


def _restrict(told: dict[str, Any], rules: list[tuple[int, int]]) -> None:
    attributes = told["attributes"]
    ruleset = checked(from_kernel.syscall(LANDLOCK_CREATE, attributes, len(attributes), 0))
    for rights, fd in rules:
        rule = rights.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)
        checked(from_kernel.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0))
        os.close(fd)
    checked(from_kernel.syscall(LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


def _pipe_with(content: bytes) -> int:
    """A descriptor to read `content` from, which fits a pipe."""
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return read


def checked(result: int) -> int:
    """The result of a system call. Raises OSError where it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


PORT = 3128
"""Of 127.0.0.1 in the jail."""

IP_FREEBIND = 15
BACKLOG = 64


def make_proxy_socket(pid: int, uid: int | None, fd_channel: int) -> None:
    """Put the socket into `letterbox`, for the jail whose first process is `pid`.

    Done as whom it runs, in a child: who made a namespace may enter it, root may lack the capability.
    Raises OSError.
    """
    child = os.fork()
    if child == 0:
        try:
            drop_rights(uid)
            _make(pid, fd_channel)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(0, "its way out could not be made")


def _make(pid: int, fd_channel: int) -> None:
    enter_network(pid)
    proxy_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    # The jail may not have its address yet.
    proxy_socket.setsockopt(_socket.IPPROTO_IP, IP_FREEBIND, 1)
    proxy_socket.bind(("127.0.0.1", PORT))
    proxy_socket.listen(BACKLOG)
    number = proxy_socket.fileno().to_bytes(4, sys.byteorder)
    told = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, number)]
    _socket.socket(fileno=fd_channel).sendmsg([b"d"], told)
