"""Migrates a database to this version's schema: the process that `upgrade.py` starts.

The steps are in `migrations/versions/`. A SQLite file is copied before it is changed.
"""

import sqlite3
import sys
from pathlib import Path

import msgspec
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import DBAPIError

from luxx.errors import DatabaseTooNew, DatabaseTooOld
from luxx.infra.store.engine import open_engine
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.infra.store.upgrade import SCRIPTS, UpgradeResult, current_step, unknown_step_error


def migrate(engine: Engine, *, to: str | None = None) -> UpgradeResult:
    """Upgrades the database to the newest step, or an empty one to an older step.

    Raises DatabaseTooNew or DatabaseTooOld, with nothing changed, if this version does not know its step.
    """
    copy: Path | None = None
    settings = _settings()
    scripts = ScriptDirectory.from_config(settings)
    newest = to or scripts.get_current_head() or ""
    with engine.connect() as connection, connection.begin():
        lock_until_commit(connection, Lock.MIGRATION)
        current = MigrationContext.configure(connection).get_current_revision()
        if current == newest:
            return UpgradeResult(before=current, after=newest)
        if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
            raise unknown_step_error(current)
        if current is not None and engine.dialect.name == "sqlite":
            copy = _copy(Path(str(engine.url.database)), current)
        settings.attributes["connection"] = connection
        command.upgrade(settings, newest)
    return UpgradeResult(before=current, after=newest, copy=str(copy) if copy else None)


def _settings() -> AlembicConfig:
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(SCRIPTS))
    settings.set_main_option("path_separator", "os")
    return settings


def _copy(path: Path, step: str) -> Path:
    """Copies the file through SQLite, so that the copy includes the WAL, and returns the path of the copy."""
    target = path.with_name(f"{path.name}.before-upgrade-from-{step}")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as source, sqlite3.connect(target) as copy:
        source.backup(copy)
    source.close()
    copy.close()
    target.chmod(0o600)
    return target


def main() -> None:
    """`python -m luxx.infra.store.migrate [STEP]`: database URL on stdin, JSON of UpgradeResult on stdout."""
    engine = open_engine(make_url(sys.stdin.read()))
    try:
        upgraded = migrate(engine, to=sys.argv[1] if len(sys.argv) > 1 else None)
    except (DatabaseTooNew, DatabaseTooOld):
        upgraded = UpgradeResult(unknown=current_step(engine))
    except DBAPIError as error:
        upgraded = UpgradeResult(failed=" ".join(str(error.orig).split()))
    finally:
        engine.dispose()
    sys.stdout.buffer.write(msgspec.json.encode(upgraded))


if __name__ == "__main__":
    main()
