"""The commands that keep: `luxx backup|restore|export|import`. What they do is in `keeping/`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from luxx.config import Config
from luxx.errors import LuxxError
from luxx.keeping.backup import back_up
from luxx.keeping.home import Home
from luxx.keeping.restore import restore
from luxx.observe import redact

T = TypeVar("T")
Run = Callable[[argparse.Namespace], int]
Command = Callable[[str, Run, str], argparse.ArgumentParser]
Load = Callable[[argparse.Namespace], Config]

SHOWN = 20
"""Notes that are printed; a backup may have left out thousands of files."""


def add_keeping_commands(command: Command, load: Load) -> None:
    """Adds them by `command`; `load` gives the configuration of one."""
    backup = command("backup", lambda options: _backup(options, load), "back up everything, while it serves")
    backup.add_argument("file", type=Path, help="a new file; it holds the keys, so keep it safe")
    restoring = command("restore", lambda options: _restore(options, load), "bring a backup back")
    restoring.add_argument("file", type=Path)
    restoring.add_argument("--replace", action="store_true", help="delete what is there")
    restoring.add_argument("--yes", action="store_true", help="do not ask")


def _backup(options: argparse.Namespace, load: Load) -> int:
    home = Home(load(options))
    try:
        made = _said(lambda: back_up(home, options.file))
    finally:
        home.close()
    rows = sum(part.rows for part in made.tables)
    files = sum(part.files for part in made.workspaces)
    size = options.file.stat().st_size / 2**20
    print(f"{options.file}: {rows} rows at step {made.step}, {files} files, {size:.1f} MiB")
    _notes(made.left_out)
    return 0


def _restore(options: argparse.Namespace, load: Load) -> int:
    home = Home(load(options))
    if options.replace and not options.yes:
        _ask(f"This deletes the database {home.url.database} and all files below {home.root}.", "replace")
    done = _said(lambda: restore(home, options.file, replace=options.replace))
    made = done.manifest
    rows = sum(part.rows for part in made.tables)
    print(f"restored {rows} rows and {done.files} files of {made.made_at:%Y-%m-%d %H:%M:%S} UTC")
    _notes(done.notes)
    return 0


def _ask(what: str, word: str) -> None:
    if not sys.stdin.isatty():
        raise LuxxError("this cannot be undone; add --yes to do it without being asked")
    print(f"{what} There is no way back.")
    if input(f"Write '{word}' to go on: ") != word:
        raise LuxxError("nothing was changed")


def _said(work: Callable[[], T]) -> T:
    """What a database or a disk says of it, as a sentence."""
    try:
        return work()
    except SQLAlchemyError as error:
        said = " ".join(redact(str(getattr(error, "orig", None) or error)).split())
        raise LuxxError(f"the database said: {said[:500]}") from error
    except OSError as error:
        raise LuxxError(f"{error.filename or 'a file'}: {error.strerror or error}") from error


def _notes(notes: list[str]) -> None:
    for note in notes[:SHOWN]:
        print(f"note: {note}", file=sys.stderr)
    if len(notes) > SHOWN:
        print(f"note: and {len(notes) - SHOWN} more", file=sys.stderr)
