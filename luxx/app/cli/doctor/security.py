"""Checks of `luxx doctor` on secrets, file permissions and open registration."""

import os
import shlex
import stat
from pathlib import Path

from sqlalchemy.orm import Session

from luxx.app.cli.doctor.runtime import Finding
from luxx.errors import LuxxError
from luxx.infra.config.schema import Config
from luxx.infra.data_permissions import SecuredPaths, open_to_others
from luxx.infra.secrets import MIN_SECRET_BYTES, SECRET_FILE, Vault, is_too_short
from luxx.infra.store.engine import resolve_url, sqlite_file
from luxx.providers.keys import secret_key_problem
from luxx.providers.queries import has_no_daily_limit, open_registration_warning


def examine_secret(config: Config, data_dir: Path) -> Finding:
    """The source of the secret key, its length and the mode of its file."""
    part, file = "secret", data_dir / SECRET_FILE
    configured = config.app.secret_key
    if configured:
        if not is_too_short(configured):
            return Finding(part=part, text="app.secret_key is set")
        text = f"app.secret_key has {len(configured.encode())} bytes and needs {MIN_SECRET_BYTES}"
        return Finding(part=part, is_bad=True, text=text, fix="create one with `openssl rand -hex 32`")
    if config.database.type == "postgresql":
        text = "app.secret_key is not set; with PostgreSQL every server needs it, with the same value"
        return Finding(
            part=part, is_bad=True, text=text, fix="put `openssl rand -hex 32` into APP_SECRET_KEY"
        )
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except FileNotFoundError:
        return Finding(part=part, text=f"not set; the first start creates one in {file}")
    except OSError as error:
        return Finding(
            part=part, is_bad=True, text=f"{file}: {error.strerror}", fix=f"let the server read {file}"
        )
    if mode & 0o077:
        text = f"other users can read {file} (mode {mode:04o})"
        return Finding(part=part, is_bad=True, text=text, fix=f"chmod 600 {file}")
    return Finding(part=part, text=f"stored in {file}, readable by its owner only")


def examine_permissions(config: Config, data_dir: Path) -> list[Finding]:
    """The stored files that other users of this machine may read."""
    try:
        database = sqlite_file(resolve_url(config.database.url, data_dir))
    except LuxxError:
        return []  # The finding about the database reports it.
    paths = SecuredPaths(data_dir=data_dir, database=database, workspaces=Path(config.workspace.root))
    open_paths = [shlex.quote(str(path)) for path in open_to_others(paths)]
    if not open_paths:
        text = "other users of this machine cannot read the stored data"
        return [Finding(part="permissions", text=text)]
    shown = ", ".join(open_paths[:3]) + (" and more" if len(open_paths) > 3 else "")
    text = f"other users of this machine can read or list {shown}"
    rights = "go-rw" if os.geteuid() == 0 else "go-rwx"
    fix = f"chmod {rights} {' '.join(open_paths[:3])}, or start Luxx as their owner, which does it"
    return [Finding(part="permissions", is_bad=True, text=text, fix=fix)]


def examine_sealed(session: Session, config: Config, secret: str) -> list[Finding]:
    """A finding if the secret key cannot decrypt the stored provider keys."""
    if not secret:
        return []  # The findings about the providers report the missing key.
    problem = secret_key_problem(session, Vault(secret, previous=config.app.previous_secret_keys))
    if problem is None:
        return []
    text, _, fix = problem.partition("; ")
    return [Finding(part="secret key", is_bad=True, text=text, fix=fix)]


def examine_registration(session: Session, config: Config) -> list[Finding]:
    """A finding if newly registered users may spend without a limit."""
    text = open_registration_warning(session, config.auth, config.limits)
    if text is None:
        return []
    fix = "set limits.tokens_per_day or limits.cost_per_day, or auth.allow_registration to false"
    is_bad = has_no_daily_limit(config.auth, config.limits)
    return [Finding(part="registration", is_bad=is_bad, text=text, fix=fix if is_bad else "")]
