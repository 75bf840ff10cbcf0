"""Programs that use more than they may, or never end. The runner checks from outside that their limits hold.

Each is a Python program; `{token}` in its command line identifies its processes.
"""

from typing import NamedTuple

from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.process import ExceededLimit

LIMITS = ProgramLimits(
    seconds=4, cpu_seconds=3, memory_mb=128, processes=24, file_mb=4, disk_mb=16, output_kb=64
)


class Bomb(NamedTuple):
    """`hits`: the limits that may end it; if empty, it ends by itself and leaves nothing.

    `kernel`: it uses memory of the kernel, which the figures of a process do not include.
    """

    name: str
    code: str
    hits: frozenset[ExceededLimit] = frozenset()
    limits: ProgramLimits = LIMITS
    kernel: bool = False


MANY = ProgramLimits(
    seconds=6, cpu_seconds=5, memory_mb=256, processes=64, file_mb=4, disk_mb=16, output_kb=64
)
KERNEL_BOMBS = [
    Bomb(
        "xattr",
        "import os, tempfile\nos.chdir(tempfile.gettempdir())\n"
        "for n in range(100000):\n    fd = os.open(f'file-{n}', os.O_CREAT | os.O_RDWR)\n"
        "    try:\n        for m in range(40): os.setxattr(fd, f'user.{m}', bytes(60000))\n"
        "    except OSError as error: print('refused', error.errno == 95); break\n    os.close(fd)",
        frozenset({ExceededLimit.MEMORY}),
        MANY,
        kernel=True,
    ),
    Bomb(
        "empty_files",
        "import os, tempfile\nos.chdir(tempfile.gettempdir())\n"
        "for n in range(10**8):\n    os.close(os.open('x' * 200 + f'{n}', os.O_CREAT))",
        frozenset({ExceededLimit.MEMORY, ExceededLimit.DISK}),
        ProgramLimits(seconds=12, cpu_seconds=10, memory_mb=64, disk_mb=16),
        kernel=True,
    ),
    Bomb(
        "empty_files, over what is hidden",
        "import os\n"
        "places = [one.split()[4] for one in open('/proc/self/mountinfo') if ' - tmpfs ' in one]\n"
        "for place in places:\n"
        "    if place in ('/tmp', '/dev/shm'): continue\n"
        "    try: os.close(os.open(f'{place}/file', os.O_CREAT)); print(False, place)\n"
        "    except OSError: pass\nprint('refused')",
        kernel=True,
    ),
    Bomb(
        "pipes",
        "import os, time\nfor _ in range(59):\n    if os.fork() == 0: break\n"
        "for _ in range(118):\n    ours, theirs = os.pipe(); os.set_blocking(theirs, False)\n"
        "    os.write(theirs, bytes(1 << 17)); os.close(theirs)\ntime.sleep(60)",
        frozenset({ExceededLimit.MEMORY}),
        MANY,
        kernel=True,
    ),
    Bomb(
        "sockets",
        "import os, socket, time\nfor _ in range(59):\n    if os.fork() == 0: break\nheld = []\n"
        "for _ in range(58):\n    held += socket.socketpair()\n"
        "for one in held:\n    one.setblocking(False)\n"
        "    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)\n"
        "    try:\n        while one.send(bytes(1 << 16)): pass\n    except OSError: pass\ntime.sleep(60)",
        frozenset({ExceededLimit.MEMORY}),
        MANY,
        kernel=True,
    ),
    Bomb(
        "pipes, with all open files",
        "import os, time\nfor _ in range(59):\n    if os.fork() == 0: break\n"
        "for _ in range(1000):\n    ours, theirs = os.pipe(); os.set_blocking(theirs, False)\n"
        "    os.write(theirs, bytes(1 << 17)); os.close(theirs)\ntime.sleep(60)",
        frozenset({ExceededLimit.MEMORY}),
        MANY,
        kernel=True,
    ),
    Bomb(
        "sockets, with all open files",
        "import os, socket, time\nfor _ in range(59):\n    if os.fork() == 0: break\nheld = []\n"
        "for _ in range(500):\n    held += socket.socketpair()\n"
        "for one in held:\n    one.setblocking(False)\n"
        "    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)\n"
        "    try:\n        while one.send(bytes(1 << 16)): pass\n    except OSError: pass\ntime.sleep(60)",
        frozenset({ExceededLimit.MEMORY}),
        MANY,
        kernel=True,
    ),
    Bomb(
        "sockets, not accepted",
        "import os, socket, time\n"
        "try: door = socket.socket(socket.AF_UNIX)\n"
        "except OSError: print('refused'); raise SystemExit\n"
        "door.bind('\\0door'); door.listen(4096)\n"
        "for _ in range(4000):\n    one = socket.socket(socket.AF_UNIX); one.connect('\\0door')\n"
        "    one.setblocking(False)\n"
        "    try:\n        while one.send(bytes(1 << 16)): pass\n    except OSError: one.close()\n"
        "time.sleep(60)",
        frozenset({ExceededLimit.MEMORY}),
        MANY,
        kernel=True,
    ),
    Bomb(
        "sockets, of TCP",
        "import os, socket, time\n"
        "try: door = socket.create_server(('127.0.0.1', 0), backlog=4096)\n"
        "except OSError: print('refused'); raise SystemExit\n"
        "held = []\nfor _ in range(3):\n    if os.fork() == 0:\n"
        "        door = socket.create_server(('127.0.0.1', 0), backlog=4096); break\n"
        "def fill(one):\n    one.setblocking(False)\n"
        "    try:\n        while one.send(bytes(1 << 16)): pass\n    except OSError: pass\n"
        "for _ in range(50):\n"
        "    one = socket.create_connection(door.getsockname()); other, _ = door.accept()\n"
        "    held += [one, other]\n"
        "    for _ in range(150): one.sendall(bytes(1 << 16)); other.recv(1 << 16, socket.MSG_WAITALL)\n"
        "    fill(one); fill(other)\n"
        "time.sleep(60)",
        frozenset({ExceededLimit.TIME}),
        MANY,
        kernel=True,
    ),
]
BOMBS = [
    *KERNEL_BOMBS,
    Bomb(
        "fork",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        frozenset({ExceededLimit.PROCESSES}),
    ),
    Bomb(
        "fork and leave",
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass",
        frozenset({ExceededLimit.PROCESSES}),
    ),
    Bomb(
        "threads",
        "import threading, time\n"
        "while True:\n    try: threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    except RuntimeError: pass",
        frozenset({ExceededLimit.PROCESSES, ExceededLimit.TIME, ExceededLimit.CPU}),
    ),
    Bomb(
        "memory, shared",
        "import mmap\nheld = []\n"
        "while True:\n    held.append(mmap.mmap(-1, 1 << 24)); held[-1].write(bytes(1 << 24))",
        frozenset({ExceededLimit.MEMORY}),
    ),
    Bomb(
        "memory, of many",
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0: break\n"
        "held = bytearray(os.urandom(1 << 20)) * 60\ntime.sleep(60)",
        frozenset({ExceededLimit.MEMORY}),
    ),
    Bomb(
        "memory, of one",
        "held = []\ntry:\n    while True: held.append(bytearray(1 << 20))\n"
        "except MemoryError: print('refused', len(held) < 128)",
    ),
    Bomb(
        "disk, one file",
        "file = open('big', 'wb')\nimport signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "while True: file.write(bytes(1 << 20))",
        frozenset({ExceededLimit.FILE}),
    ),
    Bomb(
        "disk, many files",
        "for n in range(1000):\n    open(f'part-{n}', 'wb').write(bytes(1 << 20))",
        frozenset({ExceededLimit.DISK}),
    ),
    Bomb(
        "disk, reserved",
        "import os\nfor n in range(1000):\n    fd = os.open(f'kept-{n}', os.O_RDWR | os.O_CREAT)\n"
        "    try: os.posix_fallocate(fd, 0, 1 << 20)\n    except OSError: pass",
        frozenset({ExceededLimit.DISK, ExceededLimit.TIME, ExceededLimit.CPU}),
    ),
    Bomb(
        "disk, /tmp",
        "import os, tempfile\nfor n in range(1000):\n    try:\n"
        "        with open(f'{tempfile.gettempdir()}/part-{n}', 'wb') as file: file.write(bytes(1 << 20))\n"
        "    except OSError: print('refused'); break",
        frozenset({ExceededLimit.DISK}),
    ),
    Bomb(
        "memory, /dev/shm",
        "for n in range(1000):\n    try:\n"
        "        with open(f'/dev/shm/part-{n}', 'wb') as file: file.write(bytes(1 << 20))\n"
        "    except OSError: print('refused', n < 129); break",
    ),
    Bomb("output", "while True: print('x' * 10000)", frozenset({ExceededLimit.OUTPUT})),
    Bomb("time", "import time\ntime.sleep(600)", frozenset({ExceededLimit.TIME}), ProgramLimits(seconds=0.5)),
    Bomb(
        "processor",
        "while True: pass",
        frozenset({ExceededLimit.CPU}),
        ProgramLimits(seconds=10, cpu_seconds=1),
    ),
    Bomb(
        "deaf",
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except OSError: pass\ntime.sleep(600)",
        frozenset({ExceededLimit.TIME}),
        ProgramLimits(seconds=0.5),
    ),
    Bomb(
        "left behind",
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.closerange(0, 100)\n"
        "        time.sleep(600)\n    os._exit(0)\nos.wait()\nprint('done')",
    ),
    Bomb(
        "left behind, holding on",
        "import subprocess, sys\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(600)', *sys.argv[1:]]\n"
        "subprocess.Popen(command, start_new_session=True)\n"
        "print('done')",
    ),
    Bomb(
        "stopped",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        frozenset({ExceededLimit.TIME}),
        ProgramLimits(seconds=0.5),
    ),
    Bomb("died", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"),
    Bomb(
        "silent",
        "import os, time\nos.close(1); os.close(2); time.sleep(600)",
        frozenset({ExceededLimit.TIME}),
        ProgramLimits(seconds=0.5),
    ),
    Bomb(
        "endless nesting", "import os\nfor n in range(3000):\n    os.mkdir('d'); os.chdir('d')\nprint('done')"
    ),
    Bomb("no rights left", "import os\nopen('x', 'w'); os.chmod('x', 0); os.chmod('.', 0)\nprint('done')"),
    Bomb(
        "memory, under a clever name",
        "import ctypes, os, time\nlibc = ctypes.CDLL(None)\n"
        "for _ in range(8):\n    if os.fork() == 0: break\n"
        "libc.prctl(15, b'RssAnon:0', 0, 0, 0)\n"
        "held = bytearray(os.urandom(1 << 20)) * 60\ntime.sleep(60)",
        frozenset({ExceededLimit.MEMORY}),
    ),
    Bomb(
        "memory, of maps of pages",
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
        "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n"
        "while True:\n"
        "    start = libc.mmap(None, 1 << 36, 1, 0x4022, -1, 0)\n"
        "    if start == 2**64 - 1: print('refused'); break\n"
        "    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(1 << 36), 15)\n"
        "    for at in range(0, 1 << 36, 1 << 21): ctypes.c_char.from_address(start + at).value",
        frozenset({ExceededLimit.MEMORY}),
    ),
    Bomb(
        "memory, without the first thread",
        "import ctypes, os, threading, time\n"
        "def hold():\n    held = bytearray(os.urandom(1 << 20)) * 60\n    time.sleep(60)\n"
        "for _ in range(8):\n    if os.fork() == 0: break\n"
        "threading.Thread(target=hold).start()\n"
        "time.sleep(0.1)\nctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)",
        frozenset({ExceededLimit.MEMORY, ExceededLimit.DISK}),
    ),
    Bomb(
        "left behind without the first thread",
        "import ctypes, os, threading, time\n"
        "ours, theirs = os.pipe()\n"
        "if os.fork() == 0:\n    os.setsid()\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()\n    os.write(theirs, b'x')\n"
        "    ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n"
        "os.read(ours, 1)\nprint('done')",
    ),
    Bomb(
        "disk, by many that nobody waits for",
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "for n in range(1000):\n"
        "    if os.fork() == 0:\n"
        "        for m in range(5): open(f'part-{n}-{m}', 'wb').write(bytes(1 << 20))\n"
        "        os._exit(0)\n"
        "    time.sleep(0.02)",
        frozenset({ExceededLimit.DISK}),
    ),
    Bomb(
        "disk, hidden",
        "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
        "for n in range(1000):\n    open(f'part-{n}', 'wb').write(bytes(1 << 20))",
        frozenset({ExceededLimit.DISK}),
    ),
    Bomb(
        "processor, of many that nobody waits for",
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "while True:\n"
        "    ours, theirs = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        while time.process_time() < 0.3: pass\n"
        "        os._exit(0)\n"
        "    os.close(theirs); os.read(ours, 1); os.close(ours)",
        frozenset({ExceededLimit.CPU}),
        ProgramLimits(seconds=15, cpu_seconds=1),
    ),
    Bomb(
        "orphans, one after the other",
        "import os, time\n"
        "for _ in range(200):\n"
        "    time.sleep(0.01)\n"
        "    try: pid = os.fork()\n    except OSError: print(False); break\n"
        "    if pid == 0:\n        if os.fork() == 0: os._exit(0)\n        os._exit(0)\n"
        "    os.waitpid(pid, 0)\nprint('done')",
    ),
    Bomb(
        "names that are taken, in /tmp",
        "import os, tempfile\nos.chdir(tempfile.gettempdir())\n"
        "for n in range(40): os.makedirs(f'.{n}/x/y')\n"
        "for n in range(60): os.makedirs(f'a/{n}/b')\nprint(os.getcwd())",
    ),
]
