"""Attempts to escape the sandbox: Python programs that print `escaped` or `contained` on their last line.

They receive the targets outside: a victim process, secrets in files, listeners.
"""

from typing import NamedTuple

from luxx.tools.sandbox.seccomp import NUMBERS

MORE_NUMBERS = {"pidfd_open": (434, 434), "file_setattr": (469, 469)}
PRELUDE = f"NUMBERS = {NUMBERS | MORE_NUMBERS!r}\n" + (
    """
import ctypes, errno, os, signal, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
MACHINE = ["x86_64", "aarch64"].index(os.uname().machine)

def call(name, *arguments):
    # What the system call gave, and the error's number where it failed.
    ctypes.set_errno(0)
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return libc.syscall(ctypes.c_long(NUMBERS[name][MACHINE]), *given), ctypes.get_errno()

def end(is_out, how=""):
    print("escaped" if is_out else "contained", how, flush=True)
    os._exit(0)

def refused(kind, error, trace):
    if not issubclass(kind, (OSError, ValueError, ImportError)):
        print("broken", repr(error), flush=True)
        os._exit(1)
    end(False, repr(error))

sys.excepthook = refused

def works(attempt):
    end(True, repr(attempt())[:200])

def succeeds(name, *arguments):
    found, number = call(name, *arguments)
    end(found >= 0, errno.errorcode.get(number, str(number)))

def seen_outside(name, *arguments):
    # It may seem done; whether anything is different is looked at from outside.
    call(name, *arguments)
    end(False, "checked from outside")
"""
)
"""Precedes every attack, after `OUT`, the facts about the targets."""

B = frozenset({"bubblewrap"})
L = frozenset({"landlock"})
OWN = frozenset({"landlock-ordinary"})
"""Where the sandbox process runs as the server's own user."""


class Attack(NamedTuple):
    """`filtered`: the cells in which only the filter of system calls prevents it."""

    name: str
    code: str
    filtered: frozenset[str] = frozenset()


FILES = [
    Attack("read /etc/shadow", "works(lambda: open('/etc/shadow').read())"),
    Attack("read the data directory", "works(lambda: open(OUT['data']).read())"),
    Attack("read another workspace", "works(lambda: open(OUT['other']).read())"),
    Attack("list the workspaces", "works(lambda: os.listdir(OUT['root']))"),
    Attack("read the host's /tmp", "works(lambda: open(OUT['file']).read())"),
    Attack("follow a link out", "os.symlink(OUT['data'], 'link')\nworks(lambda: open('link').read())"),
    Attack("link a file in", "works(lambda: os.link(OUT['data'], 'hard'))"),
    Attack("rename a file in", "works(lambda: os.rename(OUT['file'], 'stolen'))"),
    Attack("climb out", "works(lambda: open('../' * 20 + OUT['data'].lstrip('/')).read())"),
    Attack(
        "use an open descriptor",
        "held = []\n"
        "for fd in range(3, 1024):\n"
        "    try: held.append(os.fstat(fd))\n"
        "    except OSError: pass\n"
        "end(bool(held), repr(held))",
    ),
    Attack("write to the system", "works(lambda: open('/usr/bin/luxx-was-here', 'w'))"),
    Attack("write to /etc", "works(lambda: open('/etc/luxx-was-here', 'w'))"),
    Attack("write outside", "works(lambda: open(OUT['file'], 'a'))"),
    Attack("truncate outside", "works(lambda: os.truncate(OUT['file'], 0))"),
    Attack("delete outside", "works(lambda: os.unlink(OUT['file']))"),
    Attack("make a file outside", "works(lambda: open(OUT['file'] + '.new', 'w'))"),
    Attack("change a mode outside", "seen_outside('fchmodat', -100, OUT['file'].encode(), 0o777)", OWN),
    Attack("change a time outside", "seen_outside('utimensat', -100, OUT['file'].encode(), 0, 0)", L),
    Attack("name a file's handle", "succeeds('name_to_handle_at', -100, b'/usr', bytes(8), bytes(8), 0)"),
    Attack("make a device", "works(lambda: os.mknod('disk', 0o060600, os.makedev(8, 0)))"),
    Attack(
        "watch a directory outside",
        "succeeds('inotify_add_watch', libc.inotify_init(), os.path.dirname(OUT['file']).encode(), 0xfff)",
        L,
    ),
]
PROCESSES = [
    Attack(
        "read the server's environment",
        "for pid in [*range(1, 20000), OUT['server'], OUT['victim']]:\n"
        "    try:\n"
        "        if b'top-secret' in open(f'/proc/{pid}/environ', 'rb').read(): end(True, str(pid))\n"
        "    except OSError: pass\n"
        "end(False)",
    ),
    Attack("read the victim's memory", "works(lambda: open(f\"/proc/{OUT['victim']}/maps\").read())"),
    Attack("signal the victim", "works(lambda: os.kill(OUT['victim'], 9))"),
    Attack("signal the server", "works(lambda: os.kill(OUT['server'], 0))"),
    Attack(
        "signal everybody", "try: os.kill(-1, 9)\nexcept OSError: pass\nend(False, 'checked from outside')"
    ),
    Attack("limit the victim", "succeeds('prlimit64', OUT['victim'], 0, struct.pack('QQ', 1, 1), 0)", OWN),
    Attack("slow the victim", "succeeds('setpriority', 0, OUT['victim'], 19)", OWN),
    Attack(
        "slow everybody of its user",
        "found, _ = call('setpriority', 2, 0, os.nice(0))\n"
        "os.getpriority(os.PRIO_PROCESS, OUT['victim'])\nend(found >= 0)",
        OWN,
    ),
    Attack(
        "have a signal sent",
        "import fcntl\n"
        "ours, theirs = os.pipe()\n"
        "try:\n"
        "    fcntl.fcntl(ours, fcntl.F_SETOWN, OUT['victim'])\n"
        "    fcntl.fcntl(ours, fcntl.F_SETSIG, signal.SIGUSR1)\n"
        "    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\n"
        "    os.write(theirs, b'x')\n"
        "except OSError: pass\n"
        "end(False, 'checked from outside')",
    ),
    Attack("hide what it writes", "end(libc.prctl(4, 0, 0, 0, 0) == 0)", B | L),
    Attack("make a sibling", "succeeds('clone', 0x8000 | 17, 0, 0, 0, 0)", B | L),
    Attack("trace the victim", "succeeds('ptrace', 16, OUT['victim'], 0, 0)"),
    Attack(
        "read memory across", "succeeds('process_vm_readv', OUT['victim'], bytes(16), 1, bytes(16), 1, 0)"
    ),
    Attack("take a descriptor", "succeeds('pidfd_getfd', call('pidfd_open', OUT['victim'], 0)[0], 0, 0)"),
    Attack("trace itself", "succeeds('ptrace', 0, 0, 0, 0)", B | L),
]
KERNEL = [
    Attack("make a user namespace", "succeeds('unshare', 0x10000000)", B | L),
    Attack("make a mount namespace", "succeeds('unshare', 0x00020000)"),
    Attack("clone into a namespace", "succeeds('clone', 0x10000000 | 17, 0, 0, 0, 0)", B | L),
    Attack(
        "clone in the new way", "succeeds('clone3', struct.pack('=11Q', 0, 0, 0, 0, 17, *[0] * 6), 88)", B | L
    ),
    Attack(
        "enter a namespace",
        "path = '/proc/self/ns/user'\nsucceeds('setns', os.open(path, 0) if os.path.exists(path) else 0, 0)",
    ),
    Attack("mount", "succeeds('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, 0)"),
    Attack(
        "mount elsewhere",
        "call('unshare', 0x10020000)\nsucceeds('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, 0)",
        B,
    ),
    Attack("unmount", "succeeds('umount2', b'/tmp', 2)"),
    Attack("open a tree of mounts", "succeeds('open_tree', -100, b'/usr', 1)"),
    Attack("open a file system", "succeeds('fsopen', b'tmpfs', 0)"),
    Attack("change the root", "succeeds('chroot', b'/usr')"),
    Attack("pivot the root", "succeeds('pivot_root', b'.', b'.')"),
    Attack("make a key", "succeeds('add_key', b'user', b'x', b'y', 1, -3)", B | L),
    Attack("use a keyring", "succeeds('keyctl', 0, -3, 1)", B | L),
    Attack(
        "ask for a key",
        "_, number = call('request_key', b'user', b'nothing', 0, -3)\n"
        "end(number != errno.EPERM, str(number))",
        B | L,
    ),
    Attack(
        "load a program of the kernel",
        "succeeds('bpf', 0, struct.pack('=IIII', 2, 4, 4, 1) + bytes(100), 116)",
    ),
    Attack("handle page faults", "succeeds('userfaultfd', 1)", B | L),
    Attack(
        "watch performance",
        "about = struct.pack('=IIQ', 1, 120, 1) + bytes(24) + struct.pack('=Q', 0b11 << 5) + bytes(72)\n"
        "succeeds('perf_event_open', about, 0, -1, -1, 0)",
        B | L,
    ),
    Attack("use io_uring", "succeeds('io_uring_setup', 1, ctypes.create_string_buffer(120))", B | L),
    Attack("hold memory in a file", "succeeds('memfd_create', b'x', 0)", B | L),
    Attack("hold memory in a segment", "succeeds('shmget', 0, 4096, 0o1600)", B | L),
    Attack(
        "use another's segment",
        "libc.shmat.restype = ctypes.c_void_p\n"
        "found = libc.shmat(OUT['segment'], None, 0)\n"
        "end(found not in (None, 2**64 - 1), str(ctypes.get_errno()))",
        OWN,
    ),
    Attack(
        "count the segments",
        "held = ctypes.create_string_buffer(256)\n"
        "end(libc.shmctl(0, 14, held) >= 0 and int.from_bytes(held[:4], 'little') > 0)",
        L,
    ),
    Attack(
        "call what is newer than the filter",
        "_, number = call('file_setattr', -100, b'/usr', 0, 0, 0)\nend(number != errno.ENOSYS, str(number))",
        B | L,
    ),
    Attack(
        "list the mounts", "end(call('listmount', 0, 0, 0, 0)[1] not in (errno.EPERM, errno.ENOSYS))", B | L
    ),
    Attack("set an attribute", "works(lambda: os.setxattr('.', 'user.luxx', b'x'))", B | L),
    Attack("use inotify", "end(libc.inotify_init() >= 0)", B | L),
    Attack("enlarge a pipe", "import fcntl\nworks(lambda: fcntl.fcntl(os.pipe()[0], 1031, 1 << 20))", B | L),
    Attack(
        "keep pages in a pipe",
        "held = ctypes.create_string_buffer(4096)\n"
        "about = struct.pack('QQ', ctypes.addressof(held), 4096)\n"
        "succeeds('vmsplice', os.pipe()[1], about, 1, 0)",
        B | L,
    ),
    Attack(
        "enlarge a socket's buffer",
        "one, _ = socket.socketpair()\n"
        "before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)\n"
        "one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, before)\n"
        "end(one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > before)",
        B | L,
    ),
    Attack("change its personality", "succeeds('personality', 0x0040000)", B | L),
    Attack("load a module", "succeeds('init_module', bytes(8), 8, b'')"),
    Attack("read the kernel's log", "succeeds('syslog', 3, bytes(64), 64)"),
    Attack("set the clock", "succeeds('clock_settime', 0, struct.pack('qq', 0, 0))"),
    Attack("name the host", "succeeds('sethostname', b'mine', 4)"),
    Attack(
        "write core_pattern", "works(lambda: os.write(os.open('/proc/sys/kernel/core_pattern', 1), b'core'))"
    ),
    Attack("press the magic key", "works(lambda: os.write(os.open('/proc/sysrq-trigger', 1), b'h'))"),
    Attack("set the kernel", "works(lambda: os.write(os.open('/proc/sys/vm/swappiness', 1), b'60'))"),
    Attack("read the kernel's memory", "works(lambda: open('/dev/mem', 'rb').read(1))"),
    Attack("read its core", "works(lambda: open('/proc/kcore', 'rb').read(1))"),
    Attack(
        "hide from the memory killer",
        "works(lambda: os.write(os.open('/proc/self/oom_score_adj', 1), b'-1000'))",
    ),
    Attack("become root", "works(lambda: os.setuid(0))"),
    Attack("join a group", "works(lambda: os.setgroups([0]))"),
    Attack(
        "use a program of root",
        "found = subprocess.run(['/bin/su', '-c', 'id -u'], capture_output=True, stdin=subprocess.DEVNULL)\n"
        "end(found.stdout.strip() == b'0', repr(found.stderr))",
    ),
    Attack(
        "raise a limit",
        "import resource\nworks(lambda: resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999)))",
    ),
    Attack(
        "call by the old gate",
        "import mmap\n"
        "if MACHINE != 0: end(False)\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))\n"
        "gate = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
        "end(gate() == os.getpid())",
    ),
    Attack(
        "type into a terminal",
        "import fcntl, termios\n"
        "if os.fork(): os.wait(); os._exit(0)\n"
        "os.setsid()\n"
        "try:\n"
        "    ours, theirs = os.openpty()\n"
        "    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)\n"
        "    fcntl.ioctl(theirs, termios.TIOCSTI, b'x')\n"
        "except OSError as error: end(False, repr(error))\n"
        "end(True)",
        B,
    ),
]
NETWORK = [
    Attack(
        "connect to this machine", "works(lambda: socket.create_connection(('127.0.0.1', OUT['tcp']), 2))"
    ),
    Attack(
        "send a datagram",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'out', ('127.0.0.1', OUT['udp']))\n"
        "end(False, 'checked from outside')",
        L,
    ),
    Attack("connect elsewhere", "works(lambda: socket.create_connection(('192.0.2.1', 80), 1))"),
    Attack("resolve a name", "works(lambda: socket.getaddrinfo('luxx.example.org', 80))"),
    Attack("connect to a socket", "works(lambda: socket.socket(socket.AF_UNIX).connect(OUT['unix']))", L),
    Attack("connect to no path", "works(lambda: socket.socket(socket.AF_UNIX).connect(OUT['abstract']))"),
    Attack(
        "send from a pair",
        "one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "works(lambda: one.sendto(b'out', OUT['datagrams']))",
        L,
    ),
    Attack("use netlink", "works(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))", B | L),
    Attack("use vsock", "works(lambda: socket.socket(40, socket.SOCK_STREAM))", B | L),
    Attack("use raw packets", "works(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))"),
]
PYTHON = [
    Attack("import the server", "works(lambda: __import__('luxx'))"),
    Attack("import its packages", "works(lambda: __import__('msgspec'))"),
    Attack(
        "find secrets in its environment",
        "end(any('top-secret' in one or name.startswith('LUXX') for name, one in os.environ.items()))",
    ),
]
ATTACKS = [*FILES, *PROCESSES, *KERNEL, *NETWORK, *PYTHON]
