"""The entry point of every command: sets the umask, streams and memory options; imports `cli/commands.py`."""

import ctypes
import os
import sys

from luxx.app.startup import RICH_PACKAGES, disable_gc, freeze_gc, hidden_modules

M_ARENA_MAX = -8
"""An option of `mallopt(3)`. glibc gives concurrent threads separate arenas and does not shrink them: 0.9 MB
in an idle server. Under the interpreter's lock hardly any threads run at once, so one arena is enough."""

_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
# Only glibc has it.
if _mallopt is not None:
    _mallopt(M_ARENA_MAX, 1)

# Files that this process and its children create are accessible to the user of Luxx only.
os.umask(0o077)

# A later file would otherwise get the number of a standard stream that is closed, and receive its output.
for number in range(3):
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)
sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8")
sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")

disable_gc()
with hidden_modules(*RICH_PACKAGES):
    from luxx.app.cli.commands import main
freeze_gc()

__all__ = ["main"]
