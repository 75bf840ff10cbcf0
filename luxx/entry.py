"""Where every command begins: loads the command line without what would only be loaded to draw.

The commands are in `cli.py`.
"""

import sys

DRAWING = ("rich", "pygments")
"""structlog and httpx load these for tracebacks and a command of their own, where they find them: 3.5 MB of
every server's memory, for nothing. Both go without where an import fails, which is their documented way."""

_hidden = [name for name in DRAWING if name not in sys.modules]
# An import of a name that is None here fails as if it were not installed.
sys.modules.update(dict.fromkeys(_hidden))  # type: ignore[arg-type]

from luxx.cli import main  # noqa: E402 - what is above has to come before

# Tools of others may draw with them.
for _name in _hidden:
    del sys.modules[_name]

__all__ = ["main"]
