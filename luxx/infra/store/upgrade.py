"""Reads the migration step of a database and upgrades it in a separate process.

A separate process, because Alembic keeps 11 MB once it is loaded and a server needs it for at most a second:
a start that finds the database at the newest step loads nothing. `migrate.py` runs the steps.
"""

import subprocess
import sys
from pathlib import Path

import msgspec
import structlog
from sqlalchemy import Engine, inspect, text

from luxx.errors import DatabaseTooNew, DatabaseTooOld, UpgradeFailed
from luxx.infra.observe import redact

SCRIPTS = Path(__file__).parent / "migrations"

logger = structlog.get_logger()


class UpgradeResult(msgspec.Struct):
    """What the process writes to stdout.

    `unknown` is a step that this version does not know, `failed` the database's error message for a step.
    """

    before: str | None = None
    after: str = ""
    copy: str | None = None
    unknown: str | None = None
    failed: str | None = None


def upgrade_database(engine: Engine, *, to: str | None = None) -> str:
    """Upgrades the database to the newest step, unless it is there, and returns the step's name.

    `to` is an older step for an empty database: restoring a backup needs the step at which it was made.

    Raises DatabaseTooNew or DatabaseTooOld if the database is at a step that this version does not know, and
    UpgradeFailed if a step failed; all change nothing.
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
    if upgraded.unknown is not None:
        raise unknown_step_error(upgraded.unknown)
    if upgraded.failed is not None:
        raise UpgradeFailed(
            f"the database could not be upgraded from step '{current or 'none'}' to '{target}' and is "
            f"unchanged: {redact(upgraded.failed)}"
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
    """The step that the database is at; None for an empty database."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def known_steps() -> list[str]:
    """The steps that this version knows, oldest first. A step's file name begins with its name."""
    return sorted(path.stem.partition("_")[0] for path in (SCRIPTS / "versions").glob("[0-9]*_*.py"))


def newest_step() -> str:
    return known_steps()[-1]


def is_too_old(step: str) -> bool:
    """Whether it is a step of a development version, from which this version cannot upgrade."""
    return step not in known_steps() and step.isdecimal() and step < newest_step()


def unknown_step_error(step: str) -> DatabaseTooNew | DatabaseTooOld:
    if is_too_old(step):
        return DatabaseTooOld(
            f"the database is at step '{step}', made by a development version that this version cannot "
            "upgrade; start with a new database, or upgrade with the development version of step "
            f"'{known_steps()[0]}' first"
        )
    return DatabaseTooNew(
        f"the database is at step '{step}', which this version of Luxx does not know: it was used "
        "with a newer version; start that version, or restore a backup made with this one"
    )
