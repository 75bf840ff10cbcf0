"""Where every command begins: keeps its files private and the process small, then loads the command line.

The commands are in `cli.py`.
"""

import ctypes
import os

from luxx.app.server.startup import RICH_PACKAGES, disable_gc, freeze_gc, hidden_modules

M_ARENA_MAX = -8
"""Of `mallopt(3)`. The allocator has arenas for threads that run at once. Under the interpreter's lock hardly
any do, and each arena keeps what it once took: 0.9 MB of a server that does nothing."""

_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
# Only glibc has it.
if _mallopt is not None:
    _mallopt(M_ARENA_MAX, 1)

# Whatever this process and its children create is for the user that Luxx runs as, from the first moment.
os.umask(0o077)

disable_gc()
with hidden_modules(*RICH_PACKAGES):
    from luxx.app.cli.commands import main
freeze_gc()

__all__ = ["main"]
