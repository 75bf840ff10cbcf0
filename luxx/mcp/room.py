"""The directory of an MCP server: made, and measured before each start: its jail counts each life anew."""

import os
from pathlib import Path

from luxx.data_permissions import make_directory
from luxx.errors import Conflict, ToolFailed
from luxx.files.measure import measure

MIB = 1024 * 1024
MOST_LIVES = 2
"""So many times what a server may write in its life its directory may hold, or grow by."""

_MEND = "delete some of it"


class Room:
    """`is_own`: Luxx made it for this server. Another one may hold whatever the operator keeps there."""

    def __init__(self, workspace: Path, disk_mb: int, *, is_own: bool) -> None:
        self._workspace = workspace
        self._most = MOST_LIVES * disk_mb * MIB
        self._is_own = is_own
        self._held: int | None = 0 if is_own else None
        self._is_known = is_own

    def make(self) -> None:
        """Makes and measures it. Raises ToolFailed with words that follow the server's name."""
        try:
            make_directory(self._workspace.parent)
            self._workspace.mkdir(mode=0o700, exist_ok=True)
            holds = self._measured()
        except OSError as error:
            problem = f"could not be started: {self._workspace} cannot be made: {error.strerror}"
            raise ToolFailed(problem) from error
        if not self._is_known:
            self._held, self._is_known = holds, True
        if self._held is None:
            # What the operator keeps there cannot be counted, so nobody knows by how much it grows.
            return
        if holds is None:
            raise ToolFailed(f"is not started: what {self._workspace} holds cannot be counted; {_MEND}")
        if holds - self._held > self._most:
            words = f"holds {holds // MIB:,} MiB by now; {_MEND}, or raise disk_mb of mcp in tools.limits"
            raise ToolFailed(f"is not started: {self._workspace} {words}")

    def _measured(self) -> int | None:
        fd = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return measure(fd)
        except Conflict:
            return None
        finally:
            os.close(fd)
