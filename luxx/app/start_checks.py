"""Checks of a start: can the directories be used, does the database answer, is the secret key valid.

They run before a command creates or changes anything, so that a refused start leaves no files behind.
"""

import os
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from luxx.errors import ConfigError
from luxx.infra.config.schema import Config
from luxx.infra.secrets import find_secret
from luxx.infra.store.engine import database_error, open_engine, resolve_url, sqlite_file
from luxx.infra.store.upgrade import current_step, known_steps, unknown_step_error


def check_start(config: Config, *, needs_data: bool = False) -> None:
    """Raises ConfigError, DatabaseTooNew or DatabaseTooOld with what has to be changed; changes nothing.

    `needs_data`: the command works on the data of a server, so a missing or empty database is refused.
    """
    data_dir = Path(config.data_dir)
    _check_directory(data_dir, "the data directory", "give another one with --data-dir")
    root, fix = Path(config.workspace.root), "set workspace.root to a directory that the server may write"
    _check_directory(root, "workspace.root", fix)
    url = resolve_url(config.database.url, data_dir)
    file = sqlite_file(url)
    if config.app.secret_key or file is None:
        find_secret(config.app.secret_key, data_dir, is_shared=file is None)
    if file is not None:
        _check_file(file)
    if file is not None and not file.exists():
        if needs_data:
            raise ConfigError(_no_database(str(file)))
        return
    step = _step_of_database(config, data_dir)
    if step is not None and step not in known_steps():
        raise unknown_step_error(step)
    if step is None and needs_data:
        raise ConfigError(_no_database(str(file) if file else f"database '{url.database}' on {url.host}"))


def _step_of_database(config: Config, data_dir: Path) -> str | None:
    engine = open_engine(resolve_url(config.database.url, data_dir))
    try:
        return current_step(engine)
    except SQLAlchemyError as error:
        raise database_error(error, engine.url) from error
    finally:
        engine.dispose()


def _no_database(name: str) -> str:
    return (
        f"there is no Luxx database at {name}; give the data directory of the server with --data-dir, or "
        "start the server once before"
    )


def _check_directory(path: Path, name: str, fix: str) -> None:
    try:
        existing = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror or error}; {fix}") from error
    if not existing.is_dir():
        raise ConfigError(f"{name} {path}: {existing} is a file, not a directory; {fix}")
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK if path.exists() else os.W_OK | os.X_OK):
        problem = "is not writable" if path.exists() else f"cannot be created in {existing}"
        raise ConfigError(f"{name} {path} {problem} for this user; {fix}")


def _check_file(file: Path) -> None:
    fix = "change database.url, or give another --data-dir"
    if file.is_dir():
        raise ConfigError(f"the database {file} is a directory, not a file; {fix}")
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        raise ConfigError(f"the database {file} is not writable for this user; {fix}")
    if not file.exists():
        _check_directory(file.parent, "the directory of the database", fix)
