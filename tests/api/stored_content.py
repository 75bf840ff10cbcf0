"""What a server has stored, to compare before and after a request that must change nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from api.server_process import ServerProcess

WRITTEN_BY_ITSELF = {"audit_log", "processes", "run_ended"}
"""Refusals, heartbeats and the work after an earlier run, which do not belong to a request."""

Content = dict[str, Any]


class StoredContent:
    """The rows of all tables of an SQLite database, read anew only after somebody wrote to it."""

    def __init__(self, database: sqlite3.Connection, workspaces: Path) -> None:
        self._database = database
        self._workspaces = workspaces
        kinds = "type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        names = database.execute(f"SELECT name FROM sqlite_master WHERE {kinds}").fetchall()
        self._tables = sorted({name for (name,) in names} - WRITTEN_BY_ITSELF)
        self._version = -1
        self._rows: Content = {}

    def read(self) -> Content:
        """The rows of each table, and the names, sizes and times of the files of all users."""
        (version,) = self._database.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._rows = {name: self._read_table(name) for name in self._tables}
        files = [(str(path), path.lstat()) for path in sorted(self._workspaces.rglob("*"))]
        return self._rows | {"files": [(name, each.st_size, each.st_mtime_ns) for name, each in files]}

    def _read_table(self, name: str) -> list[Any]:
        return self._database.execute(f'SELECT * FROM "{name}"').fetchall()


@contextmanager
def stored_content(server: ServerProcess) -> Iterator[StoredContent]:
    uri = f"file:{server.data_dir / 'luxx.db'}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as database:
        yield StoredContent(database, server.folder / "workspaces")
