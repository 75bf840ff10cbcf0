"""Where every command begins: keeps the process small, then loads the command line.

The commands are in `cli.py`.
"""

import ctypes
import sys

DRAWING = ("rich", "pygments")
"""structlog and httpx load these for tracebacks and a command of their own, where they find them: 3.5 MB of
every server's memory, for nothing. Both go without where an import fails, which is their documented way."""

M_ARENA_MAX = -8
"""Of `mallopt(3)`. The allocator has arenas for threads that run at once. Under the interpreter's lock hardly
any do, and each arena keeps what it once took: 0.9 MB of a server that does nothing."""

_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
# Only glibc has it.
if _mallopt is not None:
    _mallopt(M_ARENA_MAX, 1)

_hidden = [name for name in DRAWING if name not in sys.modules]
# An import of a name that is None here fails as if it were not installed.
sys.modules.update(dict.fromkeys(_hidden))  # type: ignore[arg-type]

from luxx.cli import main  # noqa: E402 - what is above has to come before

# Tools of others may draw with them.
for _name in _hidden:
    del sys.modules[_name]

__all__ = ["main"]
