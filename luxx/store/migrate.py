"""Bringing a database to this version: at every start, and by `luxx migrate`.

The steps are in `migrations/versions/`. A SQLite file is copied before it is changed.
"""

import sqlite3
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from luxx.errors import DatabaseFromFuture

SCRIPTS = Path(__file__).parent / "migrations"
LOCK = 7_402_117
"""The PostgreSQL advisory lock that lets one of several starting processes migrate."""

logger = structlog.get_logger()


def migrate(engine: Engine) -> str:
    """Upgrades the database to the newest step and returns its name.

    Raises DatabaseFromFuture, with nothing changed, where the database knows steps that this version
    does not.
    """
    settings = _settings()
    scripts = ScriptDirectory.from_config(settings)
    newest = scripts.get_current_head() or ""
    with engine.connect() as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        current = MigrationContext.configure(connection).get_current_revision()
        if current == newest:
            return newest
        _check_known(scripts, current)
        if current is not None and engine.dialect.name == "sqlite":
            _copy(Path(str(engine.url.database)), current)
        _upgrade(settings, connection)
    logger.info("database_migrated", before=current, after=newest)
    return newest


def current_step(engine: Engine) -> str | None:
    """The step that the database is at; None for an empty one."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def newest_step() -> str:
    """The newest step that this version knows."""
    return ScriptDirectory.from_config(_settings()).get_current_head() or ""


def _settings() -> AlembicConfig:
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(SCRIPTS))
    settings.set_main_option("path_separator", "os")
    return settings


def _check_known(scripts: ScriptDirectory, current: str | None) -> None:
    known = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in known:
        raise DatabaseFromFuture(
            f"the database is at step '{current}', which this version of Luxx does not know: it was used "
            "with a newer version; start that version, or restore a backup made with this one"
        )


def _copy(path: Path, step: str) -> None:
    """A whole copy beside the file, taken through SQLite so that what is in its WAL is in it."""
    target = path.with_name(f"{path.name}.before-upgrade-from-{step}")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as source, sqlite3.connect(target) as copy:
        source.backup(copy)
    source.close()
    copy.close()
    target.chmod(0o600)
    logger.info("database_copied", to=str(target))


def _upgrade(settings: AlembicConfig, connection: Connection) -> None:
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")
