"""The commands `luxx backup|restore|export|import`. `luxx/domain/backup/` does the work."""

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from luxx.app.cli.command_line import configure
from luxx.app.cli.server_commands import confirm
from luxx.app.core_services import SHARED, SUBJECT_READERS
from luxx.app.serve import database_errors
from luxx.domain.backup.backup import DataPaths, create_backup
from luxx.domain.backup.restore import restore
from luxx.domain.backup.skill_export import SKILL_EXPORT
from luxx.domain.backup.user_export import FeatureExport, check_database_revision, export_of, export_user
from luxx.domain.backup.user_import import import_user
from luxx.errors import LuxxError
from luxx.features.artifacts.user_export import artifact_export
from luxx.features.knowledge.indexing import reindex_chunks
from luxx.features.knowledge.user_export import KNOWLEDGE_EXPORT
from luxx.features.memory.lexical import reindex_memory
from luxx.features.memory.user_export import MEMORY_EXPORT
from luxx.features.patterns.user_export import PATTERNS_EXPORT
from luxx.features.rooms.user_export import ROOM_EXPORT
from luxx.features.tasks.user_export import TASK_EXPORT
from luxx.infra.config.schema import Config
from luxx.infra.store.engine import Store

Work = Callable[[DataPaths, argparse.Namespace, Config], list[str]]
"""Does the work of one command, prints what it did and returns notes about what is missing or changed."""

MAX_NOTES = 20
"""The most notes that are printed. A backup may leave out thousands of files, with one note each."""

FEATURES = (
    TASK_EXPORT,
    ROOM_EXPORT,
    MEMORY_EXPORT,
    KNOWLEDGE_EXPORT,
    PATTERNS_EXPORT,
    SKILL_EXPORT,
    *(export_of(shared) for shared in SHARED if shared.new is not None),
)
"""The data of features that no configuration limits."""


def features_of(config: Config) -> tuple[FeatureExport, ...]:
    """The data of all features in exports and imports."""
    return (*FEATURES, artifact_export(config.artifacts, config.limits.storage_mb_per_user))


def add_backup_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a new file; it holds the keys, so keep it safe")
    parser.set_defaults(run=partial(_run, _backup))


def add_restore_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--replace", action="store_true", help="delete the existing data first")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=partial(_run, _restore))


def add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("username")
    parser.add_argument("file", type=Path, help="a new file")
    parser.set_defaults(run=partial(_run, _export))


def add_import_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--as", dest="username", help="import for this user (default: the name in the file)")
    parser.set_defaults(run=partial(_run, _import))


@database_errors()
def _run(work: Work, options: argparse.Namespace) -> int:
    """Runs `work` and prints its notes. Raises LuxxError with one sentence for an error of the database or
    the file system."""
    config = configure(options)
    data_paths = DataPaths(config)
    try:
        notes = work(data_paths, options, config)
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


def _export(data_paths: DataPaths, options: argparse.Namespace, config: Config) -> list[str]:
    manifest = export_user(data_paths, options.username, options.file, features_of(config))
    size = options.file.stat().st_size / 2**20
    print(f"{options.file}: all of {options.username}, {manifest.file_count} files, {size:.1f} MiB")
    return manifest.left_out


def _import(data_paths: DataPaths, options: argparse.Namespace, config: Config) -> list[str]:
    check_database_revision(data_paths)
    with closing(Store(data_paths.engine)) as store:
        result = import_user(
            data_paths, store, options.file, options.username, config.files, features_of(config)
        )
    report = result.report
    print(
        f"{result.username} has {report.conversations} conversations with {report.messages} messages, "
        f"{result.projects} projects, {result.agents} agents and {result.files} files more"
    )
    lost = [f"{loss.conversation}: {loss.count} {loss.what} could not be imported" for loss in report.lost]
    skipped = [f"{skip.title or 'a conversation'} was left out: {skip.reason}" for skip in report.skipped]
    return [*result.notes, *skipped, *lost]
