"""The commands `luxx backup|restore|export|import`. `luxx/domain/backup/` does the work."""

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from luxx.app.core_services import SHARED, SUBJECT_READERS
from luxx.domain.backup.backup import DataPaths, create_backup
from luxx.domain.backup.restore import restore
from luxx.domain.backup.user_export import check_database_revision, export_of, export_user
from luxx.domain.backup.user_import import import_user
from luxx.errors import LuxxError
from luxx.features.knowledge.indexing import reindex_chunks
from luxx.features.knowledge.user_export import KNOWLEDGE_EXPORT
from luxx.features.memory.lexical import reindex_memory
from luxx.features.memory.user_export import MEMORY_EXPORT
from luxx.features.rooms.user_export import ROOM_EXPORT
from luxx.features.tasks.user_export import TASK_EXPORT
from luxx.infra.config.schema import Config
from luxx.infra.store.engine import Store, database_error

RunCommand = Callable[[argparse.Namespace], int]
AddCommand = Callable[[str, RunCommand, str], argparse.ArgumentParser]
LoadConfig = Callable[[argparse.Namespace], Config]
Work = Callable[[DataPaths, argparse.Namespace, Config], list[str]]
"""Does the work of one command, prints what it did and returns notes about what is missing or changed."""

MAX_NOTES = 20
"""The most notes that are printed. A backup may leave out thousands of files, with one note each."""

FEATURES = (
    TASK_EXPORT,
    ROOM_EXPORT,
    MEMORY_EXPORT,
    KNOWLEDGE_EXPORT,
    *(export_of(shared) for shared in SHARED if shared.new is not None),
)


def add_backup_commands(add_command: AddCommand, load_config: LoadConfig) -> None:
    """Adds the parsers. `add_command` takes a name, the function that runs the command, and a help text."""

    def add(name: str, work: Work, help_text: str) -> argparse.ArgumentParser:
        return add_command(name, lambda options: _run(work, options, load_config(options)), help_text)

    backup = add("backup", _backup, "back up all data while the server runs")
    backup.add_argument("file", type=Path, help="a new file; it holds the keys, so keep it safe")
    restore_parser = add("restore", _restore, "restore a backup")
    restore_parser.add_argument("file", type=Path)
    restore_parser.add_argument("--replace", action="store_true", help="delete the existing data first")
    restore_parser.add_argument("--yes", action="store_true", help="do not ask")
    export_parser = add("export", _export, "export all data of one user to a file")
    export_parser.add_argument("username")
    export_parser.add_argument("file", type=Path, help="a new file")
    import_parser = add("import", _import, "import a file made by `luxx export`")
    import_parser.add_argument("file", type=Path)
    import_parser.add_argument(
        "--as", dest="username", help="import for this user (default: the name in the file)"
    )


def _run(work: Work, options: argparse.Namespace, config: Config) -> int:
    """Runs `work` and prints its notes. Raises LuxxError with one sentence for an error of the database or
    the file system."""
    data_paths = DataPaths(config)
    try:
        notes = work(data_paths, options, config)
    except SQLAlchemyError as error:
        raise database_error(error) from error
    except OSError as error:
        raise LuxxError(f"{error.filename or 'a file'}: {error.strerror or error}") from error
    finally:
        data_paths.close()
    for note in notes[:MAX_NOTES]:
        print(f"note: {note}", file=sys.stderr)
    if len(notes) > MAX_NOTES:
        print(f"note: and {len(notes) - MAX_NOTES} more", file=sys.stderr)
    return 0


def _backup(data_paths: DataPaths, options: argparse.Namespace, _config: Config) -> list[str]:
    manifest = create_backup(data_paths, options.file)
    rows = sum(part.rows for part in manifest.tables)
    files = sum(part.files for part in manifest.workspaces)
    size = options.file.stat().st_size / 2**20
    print(f"{options.file}: {rows} rows at revision {manifest.step}, {files} files, {size:.1f} MiB")
    return manifest.left_out


def _restore(data_paths: DataPaths, options: argparse.Namespace, _config: Config) -> list[str]:
    if options.replace and not options.yes:
        confirm(
            f"This deletes the database {data_paths.url.database} and all files below {data_paths.root}.",
            "replace",
        )
    result = restore(
        data_paths,
        options.file,
        SUBJECT_READERS,
        remake=[reindex_memory, reindex_chunks],
        replace=options.replace,
    )
    manifest = result.manifest
    rows = sum(part.rows for part in manifest.tables)
    print(f"restored {rows} rows and {result.files} files of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC")
    return result.notes


def _export(data_paths: DataPaths, options: argparse.Namespace, _config: Config) -> list[str]:
    manifest = export_user(data_paths, options.username, options.file, FEATURES)
    size = options.file.stat().st_size / 2**20
    print(f"{options.file}: all of {options.username}, {manifest.file_count} files, {size:.1f} MiB")
    return manifest.left_out


def _import(data_paths: DataPaths, options: argparse.Namespace, config: Config) -> list[str]:
    check_database_revision(data_paths)
    with closing(Store(data_paths.engine)) as store:
        result = import_user(data_paths, store, options.file, options.username, config.files, FEATURES)
    report = result.report
    print(
        f"{result.username} has {report.conversations} conversations with {report.messages} messages, "
        f"{result.projects} projects, {result.agents} agents and {result.files} files more"
    )
    lost = [f"{loss.conversation}: {loss.count} {loss.what} could not be imported" for loss in report.lost]
    skipped = [f"{skip.title or 'a conversation'} was left out: {skip.reason}" for skip in report.skipped]
    return [*result.notes, *skipped, *lost]


def confirm(what: str, confirmation: str) -> None:
    """Asks at the terminal. Raises LuxxError unless the user types the confirmation."""
    if not sys.stdin.isatty():
        raise LuxxError("this cannot be undone; add --yes to do it without a question")
    print(f"{what} This cannot be undone.")
    if input(f"Type '{confirmation}' to continue: ") != confirmation:
        raise LuxxError("nothing was changed")
