"""Which step a database is at, and bringing it to this version's in a process of its own.

A process, because what knows how to change a database (Alembic) keeps 11 MB once it is loaded, and a
server needs it for a second at most in its life: a start that finds the database where it should be
loads nothing. The steps themselves are made by `store/migrate.py`.
"""

import subprocess
import sys
from pathlib import Path

import msgspec
import structlog
from sqlalchemy import Engine, inspect, text

from luxx.errors import DatabaseTooNew, UpgradeFailed
from luxx.infra.observe import redact

SCRIPTS = Path(__file__).parent / "migrations"

LOCK = 7_402_117
"""The PostgreSQL advisory lock that lets one of several starting processes migrate."""

logger = structlog.get_logger()


class UpgradeResult(msgspec.Struct):
    """What the process says on stdout.

    `refused` is the sentence of a DatabaseFromFuture, `failed` what a database said of a step.
    """

    before: str | None = None
    after: str = ""
    copy: str | None = None
    refused: str | None = None
    failed: str | None = None


def upgrade_database(engine: Engine, *, to: str | None = None) -> str:
    """Brings the database to the newest step, if it is not there, and returns the step's name.

    `to` is an older step to bring an empty database to, as a backup needs it that was made there.

    Raises DatabaseFromFuture, with nothing changed, where the database knows steps that this version
    does not, and UpgradeFailed, with nothing changed either, where a step failed.
    """
    current = current_step(engine)
    steps = known_steps()
    target = to or steps[-1]
    if current == target:
        return target
    if current is not None and current not in steps:
        raise unknown_step_error(current)
    address = engine.url.render_as_string(hide_password=False)
    process = subprocess.run(
        [sys.executable, "-P", "-m", "luxx.infra.store.migrate", *([to] if to else [])],
        input=address.encode(),
        capture_output=True,
        check=False,
    )
    upgraded = _read_output(process)
    if upgraded.refused is not None:
        raise DatabaseTooNew(upgraded.refused)
    if upgraded.failed is not None:
        raise UpgradeFailed(
            f"the database could not be brought from step '{current or 'none'}' to '{target}' and is "
            f"as it was: {redact(upgraded.failed)}"
        )
    if upgraded.copy is not None:
        logger.info("database_copied", to=upgraded.copy)
    if upgraded.before != upgraded.after:
        logger.info("database_migrated", before=upgraded.before, after=upgraded.after)
    return upgraded.after


def _read_output(process: "subprocess.CompletedProcess[bytes]") -> UpgradeResult:
    if process.returncode == 0:
        return msgspec.json.decode(process.stdout, type=UpgradeResult)
    error_lines = process.stderr.decode(errors="replace").split("\n")
    return UpgradeResult(
        failed=" ".join(error_lines[-2:]).strip() or f"the process ended with code {process.returncode}"
    )


def current_step(engine: Engine) -> str | None:
    """The step that the database is at; None for an empty one."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def known_steps() -> list[str]:
    """The steps that this version knows, the oldest first. A step's file begins with its name."""
    return sorted(path.stem.partition("_")[0] for path in (SCRIPTS / "versions").glob("[0-9]*_*.py"))


def newest_step() -> str:
    """The newest step that this version knows."""
    return known_steps()[-1]


def unknown_step_error(current: str) -> DatabaseTooNew:
    """The error for a step that this version does not know."""
    return DatabaseTooNew(
        f"the database is at step '{current}', which this version of Luxx does not know: it was used "
        "with a newer version; start that version, or restore a backup made with this one"
    )
