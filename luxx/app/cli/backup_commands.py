"""The commands that keep: `luxx backup|restore|export|import`. What they do is in `keeping/`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from luxx.domain.backup.backup import Home, back_up
from luxx.domain.backup.restore import restore
from luxx.domain.backup.user_export import check_step, export_person
from luxx.domain.backup.user_import import import_person
from luxx.errors import LuxxError
from luxx.infra.config.schema import Config
from luxx.infra.observe import redact
from luxx.infra.store.engine import Store

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
    out = command("export", lambda options: _export(options, load), "one user's whole data into a file")
    out.add_argument("username")
    out.add_argument("file", type=Path, help="a new file")
    back = command("import", lambda options: _import(options, load), "bring a user's file in")
    back.add_argument("file", type=Path)
    back.add_argument("--as", dest="username", help="to this user (default: the name in the file)")


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


def _export(options: argparse.Namespace, load: Load) -> int:
    home = Home(load(options))
    try:
        made = _said(lambda: export_person(home, options.username, options.file))
    finally:
        home.close()
    size = options.file.stat().st_size / 2**20
    print(f"{options.file}: all of {options.username}, {made.file_count} files, {size:.1f} MiB")
    _notes(made.left_out)
    return 0


def _import(options: argparse.Namespace, load: Load) -> int:
    config = load(options)
    home = Home(config)
    try:
        _said(lambda: check_step(home))
        store = Store(home.engine)
        try:
            done = _said(lambda: import_person(home, store, options.file, options.username, config.files))
        finally:
            store.close()
    finally:
        home.close()
    report = done.report
    print(
        f"{done.username} has {report.conversations} conversations with {report.messages} messages, "
        f"{done.projects} projects and {done.files} files more"
    )
    lost = [f"{each.conversation}: {each.count} {each.what} could not be kept" for each in report.lost]
    skipped = [f"{each.title or 'a conversation'} was left out: {each.reason}" for each in report.skipped]
    _notes([*done.notes, *skipped, *lost])
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
