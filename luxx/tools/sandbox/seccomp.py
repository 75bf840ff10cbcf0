"""The system calls that a sandboxed program may not make, and the seccomp filter that denies them.

All other calls are allowed. Denied are calls that reach other processes, mounts, namespaces, keys or kernel
interfaces, and calls that take memory or disk that no limit counts. The module assembles the filter itself,
because a filter is a list of comparisons and a binding would need a C library on every host. Pure.
"""

import struct

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.sandbox.syscalls import AUDIT_ARCH, number_of

EPERM, ENODEV, ENOSYS, EOPNOTSUPP, EAFNOSUPPORT = 1, 19, 38, 95, 97
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_STREAM, SOCK_TYPES = 1, 0xF
TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423
FIOSETOWN, SIOCSPGRP = 0x8901, 0x8902
F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETPIPE_SZ = 8, 10, 15, 1031
SOL_SOCKET, SO_SNDBUF, SO_RCVBUF = 1, 7, 8
PR_SET_DUMPABLE = 4
NEW_NAMESPACES = 0x7E020000
"""The CLONE_NEW* flags of clone(2)."""
CLONE_PARENT = 0x8000

SIGNAL_SCOPE_ABI = 6
"""From this version on, Landlock itself denies signals to processes outside of the sandbox."""
NEWEST_NUMBER = 467
"""Calls with a higher number fail with ENOSYS, as on an older kernel."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERROR, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000
_ALL = 0xFFFFFFFF


class SyscallArgumentCheck(msgspec.Struct, frozen=True):
    """Holds if the lower 32 bits of an argument, masked, equal `value`; every checked argument is an int."""

    argument: int
    value: int
    mask: int = _ALL


class DeniedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A system call that fails with `error`; 0 means the call does nothing and reports success.

    With `only_args`, only calls that match one alternative are denied; with `unless_args`, all calls except
    those that match one. An alternative matches if all its checks hold.
    """

    name: str
    error: int = EPERM
    only_args: tuple[tuple[SyscallArgumentCheck, ...], ...] = ()
    unless_args: tuple[tuple[SyscallArgumentCheck, ...], ...] = ()


_OTHER_PROCESSES = (
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "kcmp",
    "process_madvise",
    "process_mrelease",
    "move_pages",
    "migrate_pages",
)

_MOUNTS = (
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "move_mount",
    "open_tree",
    "open_tree_attr",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "unshare",
    "setns",
    "name_to_handle_at",
    "open_by_handle_at",
    "quotactl",
    "quotactl_fd",
    "acct",
    "swapon",
    "swapoff",
)
"""Mounts, namespaces, files by handle."""

_MACHINERY = (
    "add_key",
    "request_key",
    "keyctl",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "syslog",
    "fanotify_init",
    "listmount",
    "lookup_dcookie",
    "nfsservctl",
    "statmount",
    "vhangup",
    "uselib",
    "ustat",
    "sysfs",
    "_sysctl",
    "modify_ldt",
    "iopl",
    "ioperm",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "sethostname",
    "setdomainname",
)
"""Keys and kernel interfaces."""

_UNCOUNTED_MEMORY = (
    "memfd_create",
    "memfd_secret",
    "shmget",
    "msgget",
    "semget",
    "mq_open",
    "mbind",
    "set_mempolicy",
    "set_mempolicy_home_node",
)
"""Memory that no limit counts, because it belongs to no process."""

_SILENTLY_IGNORED = (
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "utime",
    "utimes",
    "utimensat",
    "futimesat",
    "chown",
    "lchown",
    "fchown",
    "fchownat",
)
_NEW_ATTRIBUTES = (
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
)
"""In a tmpfs, values of extended attributes take kernel memory. Programs that copy files handle the error."""
_OLD_ATTRIBUTES = (
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "removexattrat",
)
_SYSTEM_V_IPC = (
    "shmat",
    "shmctl",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "semop",
    "semtimedop",
    "semctl",
    "mq_unlink",
)
"""Objects of other programs, whose ids can be guessed."""
_SIGNALS = (
    "kill",
    "tkill",
    "tgkill",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "pidfd_send_signal",
)

_CONDITIONAL = (
    # With ENOSYS the C library falls back to clone, whose flags a filter can read.
    DeniedCall(name="clone3", error=ENOSYS),
    # With CLONE_PARENT a program could start siblings faster than the supervisor ends the tree.
    DeniedCall(name="clone", unless_args=((SyscallArgumentCheck(0, 0, NEW_NAMESPACES | CLONE_PARENT),),)),
    # A process that is not dumpable hides its memory and its written bytes from the supervisor.
    DeniedCall(name="prctl", only_args=((SyscallArgumentCheck(0, PR_SET_DUMPABLE),),)),
    DeniedCall(
        name="personality", unless_args=((SyscallArgumentCheck(0, 0),), (SyscallArgumentCheck(0, _ALL),))
    ),
    DeniedCall(name="prlimit64", unless_args=((SyscallArgumentCheck(0, 0),),)),
    # All programs of a user and the server share inotify's quotas.
    DeniedCall(name="inotify_init", error=ENOSYS),
    DeniedCall(name="inotify_init1", error=ENOSYS),
    # It can pin huge pages in a pipe.
    DeniedCall(name="vmsplice", error=ENOSYS),
    # Reports success without effect: programs do not depend on larger buffers.
    DeniedCall(
        name="setsockopt",
        error=0,
        only_args=tuple(
            (SyscallArgumentCheck(1, SOL_SOCKET), SyscallArgumentCheck(2, option))
            for option in (SO_SNDBUF, SO_RCVBUF)
        ),
    ),
    # LimitWatch counts written bytes, and fallocate takes disk space without writing.
    DeniedCall(name="fallocate", error=EOPNOTSUPP),
)


def denied_calls(*, network: bool, landlock_abi: int | None = None) -> list[DeniedCall]:
    """The denied calls. `landlock_abi`: Landlock's version for a sandbox without namespaces, else None."""
    denied = [
        *(DeniedCall(name=name) for name in (*_OTHER_PROCESSES, *_MOUNTS, *_MACHINERY, *_UNCOUNTED_MEMORY)),
        *(DeniedCall(name=name, error=EOPNOTSUPP) for name in _NEW_ATTRIBUTES),
        *_CONDITIONAL,
        _ioctls(landlock_abi),
        _fcntls(landlock_abi),
    ]
    families = [AF_INET, AF_INET6] if network else []
    if landlock_abi is None:
        # In a network namespace of its own a socket reaches nothing else; the host's has other programs'
        # abstract Unix sockets.
        families = families or [AF_UNIX, AF_INET, AF_INET6]
        return [*denied, _sockets(families)]
    return [*denied, _sockets(families), *_without_namespaces(landlock_abi)]


def assemble(denied: list[DeniedCall], machine: str) -> bytes:
    """The filter, as `struct sock_filter[]`. Raises ToolFailed for an unsupported machine."""
    if machine not in AUDIT_ARCH:
        raise ToolFailed(f"the sandbox does not support the processor type {machine}")
    code = [
        _instruction(_LOAD, 4),
        _instruction(_EQUAL, AUDIT_ARCH[machine], 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, 0),
    ]
    if machine == "x86_64":
        code += [_instruction(_AT_LEAST, _X32, 0, 1), _instruction(_RETURN, _KILL_PROCESS)]
    code += [_instruction(_AT_LEAST, NEWEST_NUMBER + 1, 0, 1), _instruction(_RETURN, _ERROR | ENOSYS)]
    for one in denied:
        number = number_of(one.name, machine)
        if number is not None:
            block = _block(one)
            code += [_instruction(_EQUAL, number, 0, len(block)), *block]
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def _sockets(families: list[int]) -> DeniedCall:
    return DeniedCall(
        name="socket",
        error=EAFNOSUPPORT,
        unless_args=tuple((SyscallArgumentCheck(0, one),) for one in families),
    )


def _ioctls(landlock_abi: int | None) -> DeniedCall:
    """Terminal input injection; before SIGNAL_SCOPE_ABI also requests that make the kernel send signals."""
    requests = [TIOCSTI, TIOCLINUX, TIOCSETD]
    if landlock_abi is not None and landlock_abi < SIGNAL_SCOPE_ABI:
        requests += [FIOSETOWN, SIOCSPGRP]
    return DeniedCall(name="ioctl", only_args=tuple((SyscallArgumentCheck(1, one),) for one in requests))


def _fcntls(landlock_abi: int | None) -> DeniedCall:
    """Larger pipes; before SIGNAL_SCOPE_ABI also descriptors that make the kernel send signals."""
    commands = [F_SETPIPE_SZ]
    if landlock_abi is not None and landlock_abi < SIGNAL_SCOPE_ABI:
        commands += [F_SETOWN, F_SETSIG, F_SETOWN_EX]
    return DeniedCall(name="fcntl", only_args=tuple((SyscallArgumentCheck(1, one),) for one in commands))


def _without_namespaces(abi: int) -> list[DeniedCall]:
    """Calls that Landlock leaves open: on processes of the same user, and on owners, modes and times."""
    denied = [
        # A connected stream pair reaches no other socket; a datagram socket can send to another address.
        DeniedCall(
            name="socketpair",
            unless_args=(
                (SyscallArgumentCheck(0, AF_UNIX), SyscallArgumentCheck(1, SOCK_STREAM, SOCK_TYPES)),
            ),
        ),
        DeniedCall(name="inotify_add_watch"),
        *(
            DeniedCall(name=name, unless_args=((SyscallArgumentCheck(argument, 0),),))
            for name, argument in (
                ("sched_setaffinity", 0),
                ("sched_setattr", 0),
                ("sched_setparam", 0),
                ("sched_setscheduler", 0),
            )
        ),
        # Only the calling process: with another `which`, id 0 means its process group or its user.
        DeniedCall(
            name="setpriority", unless_args=((SyscallArgumentCheck(0, 0), SyscallArgumentCheck(1, 0)),)
        ),
        DeniedCall(
            name="ioprio_set", unless_args=((SyscallArgumentCheck(0, 1), SyscallArgumentCheck(1, 0)),)
        ),
        *(DeniedCall(name=name) for name in _SYSTEM_V_IPC),
        # Denied for every file, but reported as success: copying a file must not fail because of its mode.
        *(DeniedCall(name=name, error=0) for name in _SILENTLY_IGNORED),
        *(DeniedCall(name=name, error=EOPNOTSUPP) for name in _OLD_ATTRIBUTES),
    ]
    if abi < SIGNAL_SCOPE_ABI:
        denied += [DeniedCall(name=name) for name in _SIGNALS]
    return denied


def _block(one: DeniedCall) -> list[bytes]:
    """The instructions after the call's number has matched; every path through them returns."""
    deny, allow = _instruction(_RETURN, _ERROR | one.error), _instruction(_RETURN, _ALLOW)
    if not one.only_args and not one.unless_args:
        return [deny]
    verdict, otherwise = (deny, allow) if one.only_args else (allow, deny)
    code: list[bytes] = []
    for conditions in one.only_args or one.unless_args:
        # Each check takes three instructions; a failing one jumps behind the verdict.
        for index, check in enumerate(conditions):
            jump = 3 * (len(conditions) - index - 1) + 1
            code += [
                _instruction(_LOAD, 16 + 8 * check.argument),
                _instruction(_AND, check.mask),
                _instruction(_EQUAL, check.value & check.mask, 0, jump),
            ]
        code.append(verdict)
    return [*code, otherwise]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
