"""How the supervisor's child process becomes the confined program, or the bubblewrap around it.

Part of the supervisor: imports only fast modules of the standard library.
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
    from collections.abc import Callable
    from typing import Any, NoReturn

    SupervisorSpec = dict[str, Any]

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
NS_GET_USERNS = 0xB701
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
SECCOMP_MODE_FILTER = 2
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
TEMPORARY = "/tmp"
"""`enter` replaces an environment variable with this value by the path of the scratch directory."""
STAGE = "/tmp"
"""A private mount namespace shows the sources of bubblewrap's binds here, so that any user can reach them."""
MOST_LOCKED, MOST_ADDRESSES = 64 * 1024, 64 << 30
"""Of each process: bytes of locked memory, and bytes of address space."""
MOST_BUFFERED = b"4096 65536 212992"
"""Bytes that TCP buffers per connection and direction: minimum, default, maximum."""
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAPABILITY_VERSION = 0x20080522

from_kernel = ctypes.CDLL(None, use_errno=True)


def enter(spec: SupervisorSpec, scratch: str | None) -> NoReturn:
    """Replace this process by the program, confined by Landlock and the filter that the spec has."""
    os.setsid()
    rules = _open_rules(spec, scratch)
    os.chdir(spec["cwd"])
    existing_tasks = tasks_of(os.geteuid() if spec["uid"] is None else spec["uid"])
    _lower_priority()
    drop_rights(spec["uid"])
    from_kernel.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    checked(from_kernel.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if spec["landlock"] is not None:
        # Before the limits: the rules may need more open files than a program may have.
        _restrict(spec["landlock"], rules)
    _limit(spec["limits"])
    _set_limit(resource.RLIMIT_NPROC, most_tasks(spec["limits"]) + existing_tasks)
    if spec["filter"]:
        _set_filter(spec["filter"])
    env = {name: scratch if value == TEMPORARY and scratch else value for name, value in spec["env"].items()}
    os.execve(spec["argv"][0], spec["argv"], env)


def become_bubblewrap(spec: SupervisorSpec, status_writer: int, blocked: int) -> NoReturn:
    """Replace this process by bubblewrap. It waits for a byte on `blocked` before it starts the program.

    Raises OSError if a source of a bind is missing.
    """
    bubblewrap = spec["bubblewrap"]
    os.setsid()
    _lower_priority()
    staged: dict[str, str] = {} if spec["uid"] is None else _stage_sources(bubblewrap)
    drop_rights(spec["uid"])
    for _, source, _ in bubblewrap["binds"]:
        # Bubblewrap would report a missing source only after the sandbox counts as created.
        os.stat(staged.get(source) or source)
    _limit(spec["limits"])
    arguments = ["bwrap", *bubblewrap["arguments"]]
    arguments += ["--json-status-fd", str(status_writer), "--block-fd", str(blocked)]
    inherited = [status_writer, blocked]
    for flag, source, target in bubblewrap["binds"]:
        arguments += [flag, staged.get(source, source), target]
    for content, target in bubblewrap["data"]:
        inherited.append(_pipe_with(content))
        arguments += ["--ro-bind-data", str(inherited[-1]), target]
    arguments += bubblewrap["last"]
    if spec["filter"]:
        inherited.append(_pipe_with(spec["filter"]))
        arguments += ["--seccomp", str(inherited[-1])]
    for name, value in spec["env"].items():
        arguments += ["--setenv", name, value]
    if spec.get("private"):
        # Through a pipe: any user of the machine can read the arguments of a process.
        options = [option for name, value in spec["private"].items() for option in ("--setenv", name, value)]
        inherited.append(_pipe_with("\0".join([*options, ""]).encode()))
        arguments += ["--args", str(inherited[-1])]
    for fd in inherited:
        os.set_inheritable(fd, True)
    folder = staged.get(bubblewrap["folder"], bubblewrap["folder"])
    os.execve(f"{folder}/{bubblewrap['program']}", [*arguments, "--", *spec["argv"]], {})


def _stage_sources(bubblewrap: dict[str, Any]) -> dict[str, str]:
    """Bind each source below STAGE, because the sandbox user may not reach its real path.

    Returns the staged path by source; empty if this process may not create a mount namespace.
    """
    binds = bubblewrap["binds"]
    named = [*bubblewrap["beside"], *((source, str(n)) for n, (_, source, _) in enumerate(binds))]
    if from_kernel.unshare(CLONE_NEWNS) != 0:
        return {}
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    # Opened after unshare: a descriptor from another mount namespace cannot be bound.
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
    arguments = [None if argument is None else argument.encode() for argument in (source, target, kind)]
    checked(from_kernel.mount(*arguments, ctypes.c_ulong(flags), None))


def drop_rights(uid: int | None) -> None:
    """Become the user `uid` (None: stay) and drop every capability, from the bounding and ambient sets, too.

    An ordinary user may hold ambient capabilities, and a program keeps them across execve.
    """
    for capability in range(64):
        from_kernel.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    from_kernel.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4)
    checked(from_kernel.capset(header, bytes(24)))


def _lower_priority() -> None:
    """Lower the processor priority, and make the kernel kill this process before the server."""
    os.nice(5)
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")
    except OSError:
        return


def limit_inside(pid: int, tasks: int, uid: int | None, has_own_network: bool) -> None:
    """Set how many tasks the first process of a namespace may have; the kernel counts per user namespace.
    Also bound the TCP buffers of the sandbox's own network. Raises OSError.
    """

    def limit() -> None:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (tasks, tasks))
        if has_own_network:
            _limit_buffers(pid)

    _run_in_child(uid, limit, "the number of processes could not be limited")


def _run_in_child(uid: int | None, work: Callable[[], None], problem: str) -> None:
    """Run `work` in a child as the sandbox user: the user who made a namespace may change it and its
    processes, while root may lack the capability. Raises OSError with the `problem` if `work` fails.
    """
    child = os.fork()
    if child == 0:
        try:
            drop_rights(uid)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(0, problem)


def enter_network(pid: int) -> None:
    """Enter the network namespace of `pid`; the user who made a namespace may do so. Raises OSError."""
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
        # A container may forbid it; then only the kernel's bound on all of TCP applies.
        return


def most_tasks(limits: dict[str, int]) -> int:
    """The kernel's task limit: a little above the supervisor's, so that LimitWatch can report the excess."""
    return limits["processes"] + 8


def _limit(limits: dict[str, int]) -> None:
    for name, value in (
        (resource.RLIMIT_DATA, limits["memory"]),
        (resource.RLIMIT_AS, MOST_ADDRESSES + limits["memory"]),
        (resource.RLIMIT_CPU, limits["cpu"] + 1),
        (resource.RLIMIT_FSIZE, limits["file"]),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, MOST_LOCKED),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _set_limit(name, value)


def _set_limit(name: int, value: int) -> None:
    """Set the soft and the hard limit, never above the present hard limit: only root may raise that."""
    hard_limit = resource.getrlimit(name)[1]
    limit = value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit)
    resource.setrlimit(name, (limit, limit))


def _set_filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    filter_program = Program(len(program) // 8, program)
    checked(from_kernel.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_program), 0, 0))


def _open_rules(spec: SupervisorSpec, scratch: str | None) -> list[tuple[int, int]]:
    """The Landlock rules as (rights, descriptor). Opens the paths while this process still has the right."""
    if spec["landlock"] is None:
        return []
    landlock = spec["landlock"]
    wanted = [*landlock["paths"], *([(scratch, landlock["write"])] if scratch is not None else [])]
    rules: list[tuple[int, int]] = []
    for path, rights in wanted:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rules.append((rights if os.path.isdir(path) else rights & landlock["file_rights"], fd))
    return rules


def _restrict(landlock: dict[str, Any], rules: list[tuple[int, int]]) -> None:
    attributes = landlock["attributes"]
    ruleset = checked(from_kernel.syscall(LANDLOCK_CREATE, attributes, len(attributes), 0))
    for rights, fd in rules:
        rule = rights.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)
        checked(from_kernel.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0))
        os.close(fd)
    checked(from_kernel.syscall(LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


def _pipe_with(content: bytes) -> int:
    """A descriptor to read `content` from; it must fit into a pipe's buffer."""
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return read


def checked(result: int) -> int:
    """The result of a system call. Raises OSError if the call failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


PORT = 3128
"""The proxy's port on 127.0.0.1 inside the sandbox."""

IP_FREEBIND = 15
BACKLOG = 64


def make_proxy_socket(pid: int, uid: int | None, fd_channel: int) -> None:
    """Create a listening socket in the network of `pid`, and send it over `fd_channel` to the server.
    Raises OSError.
    """

    def make() -> None:
        enter_network(pid)
        proxy_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        # Bubblewrap may not have configured the address yet.
        proxy_socket.setsockopt(_socket.IPPROTO_IP, IP_FREEBIND, 1)
        proxy_socket.bind(("127.0.0.1", PORT))
        proxy_socket.listen(BACKLOG)
        number = proxy_socket.fileno().to_bytes(4, sys.byteorder)
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, number)]
        _socket.socket(fileno=fd_channel).sendmsg([b"d"], ancillary)

    _run_in_child(uid, make, "the proxy socket could not be created")
