"""The system calls that a sandboxed program may not make, and the seccomp filter that denies them.

All other calls are allowed. Denied are calls that reach other processes, mounts, namespaces, keys or kernel
interfaces, and calls that take memory or disk that no limit counts. The module assembles the filter itself,
because a filter is a list of comparisons and a binding would need a C library on every host. Pure.
"""

import struct

import msgspec

from luxx.errors import ToolFailed

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

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The architecture's value in `struct seccomp_data`."""

SyscallNumbers = dict[str, tuple[int | None, int | None]]
"""The numbers of system calls by name, on x86_64 and on aarch64; None: the architecture has no such call.
They come from the kernel's headers; a test compares them."""


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


_OTHER_PROCESSES: SyscallNumbers = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
}

_MOUNTS: SyscallNumbers = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
}
"""Mounts, namespaces, files by handle."""

_MACHINERY: SyscallNumbers = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "fanotify_init": (300, 262),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "statmount": (457, 457),
    "vhangup": (153, 58),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}
"""Keys and kernel interfaces."""

_UNCOUNTED_MEMORY: SyscallNumbers = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
}
"""Memory that no limit counts, because it belongs to no process."""

_SILENTLY_IGNORED: SyscallNumbers = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "futimesat": (261, None),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
}
_NEW_ATTRIBUTES: SyscallNumbers = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
}
"""In a tmpfs, values of extended attributes take kernel memory. Programs that copy files handle the error."""
_OLD_ATTRIBUTES: SyscallNumbers = {
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
}
_SYSTEM_V_IPC: SyscallNumbers = {
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "mq_unlink": (241, 181),
}
"""Objects of other programs, whose ids can be guessed."""
_SIGNALS: SyscallNumbers = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_SCHEDULING: SyscallNumbers = {
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
}
_DEPENDING_ON_ARGUMENTS: SyscallNumbers = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fallocate": (285, 47),
    "fcntl": (72, 25),
    "inotify_add_watch": (254, 27),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "personality": (135, 92),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "setsockopt": (54, 208),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "vmsplice": (278, 75),
}

NUMBERS = {
    **(_OTHER_PROCESSES | _MOUNTS | _MACHINERY | _UNCOUNTED_MEMORY),
    **(_SILENTLY_IGNORED | _NEW_ATTRIBUTES | _OLD_ATTRIBUTES),
    **(_SYSTEM_V_IPC | _SIGNALS | _SCHEDULING | _DEPENDING_ON_ARGUMENTS),
}


def number_of(name: str, machine: str) -> int | None:
    """The call's number on `machine`, as in `os.uname().machine`. Raises KeyError for an unknown call."""
    return NUMBERS[name][list(AUDIT_ARCH).index(machine)]


def _any_value(argument: int, *values: int) -> tuple[tuple[SyscallArgumentCheck, ...], ...]:
    """Alternatives that match if the argument has one of the values."""
    return tuple((SyscallArgumentCheck(argument, value),) for value in values)


_CONDITIONAL = (
    # With ENOSYS the C library falls back to clone, whose flags a filter can read.
    DeniedCall(name="clone3", error=ENOSYS),
    # With CLONE_PARENT a program could start siblings faster than the supervisor ends the tree.
    DeniedCall(name="clone", unless_args=((SyscallArgumentCheck(0, 0, NEW_NAMESPACES | CLONE_PARENT),),)),
    # A process that is not dumpable hides its memory and its written bytes from the supervisor.
    DeniedCall(name="prctl", only_args=_any_value(0, PR_SET_DUMPABLE)),
    DeniedCall(name="personality", unless_args=_any_value(0, 0, _ALL)),
    DeniedCall(name="prlimit64", unless_args=_any_value(0, 0)),
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
    # Terminal input injection, and larger pipes.
    requests, commands = [TIOCSTI, TIOCLINUX, TIOCSETD], [F_SETPIPE_SZ]
    if landlock_abi is not None and landlock_abi < SIGNAL_SCOPE_ABI:
        # They make the kernel send signals.
        requests += [FIOSETOWN, SIOCSPGRP]
        commands += [F_SETOWN, F_SETSIG, F_SETOWN_EX]
    families = [AF_INET, AF_INET6] if network else []
    if landlock_abi is None:
        # In a network namespace of its own a socket reaches nothing else; the host's has other programs'
        # abstract Unix sockets.
        families = families or [AF_UNIX, AF_INET, AF_INET6]
    return [
        *(DeniedCall(name=name) for name in (*_OTHER_PROCESSES, *_MOUNTS, *_MACHINERY, *_UNCOUNTED_MEMORY)),
        *(DeniedCall(name=name, error=EOPNOTSUPP) for name in _NEW_ATTRIBUTES),
        *_CONDITIONAL,
        DeniedCall(name="ioctl", only_args=_any_value(1, *requests)),
        DeniedCall(name="fcntl", only_args=_any_value(1, *commands)),
        DeniedCall(name="socket", error=EAFNOSUPPORT, unless_args=_any_value(0, *families)),
        *([] if landlock_abi is None else _without_namespaces(landlock_abi)),
    ]


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
    for call in denied:
        number = number_of(call.name, machine)
        if number is not None:
            block = _block(call)
            code += [_instruction(_EQUAL, number, 0, len(block)), *block]
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


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
        *(DeniedCall(name=name, unless_args=_any_value(0, 0)) for name in _SCHEDULING),
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


def _block(call: DeniedCall) -> list[bytes]:
    """The instructions after the call's number has matched; every path through them returns."""
    deny, allow = _instruction(_RETURN, _ERROR | call.error), _instruction(_RETURN, _ALLOW)
    if not call.only_args and not call.unless_args:
        return [deny]
    verdict, otherwise = (deny, allow) if call.only_args else (allow, deny)
    code: list[bytes] = []
    for conditions in call.only_args or call.unless_args:
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
