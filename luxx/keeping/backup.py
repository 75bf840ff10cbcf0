"""A backup of a whole server while it serves: one state of the database, the secret, everybody's files.

What is in it stands in `manifest.py`; bringing it back is `restore.py`'s.
"""

from pathlib import Path

import msgspec
from sqlalchemy import Connection, text

from luxx import __version__
from luxx.clock import utc_now
from luxx.errors import LuxxError
from luxx.keeping.archive import ArchiveWriter, new_file
from luxx.keeping.folders import pack
from luxx.keeping.home import Home, LastBackup
from luxx.keeping.manifest import Manifest, TablePart, WorkspacePart
from luxx.keeping.rows import sequences_of, tables_of, write_rows
from luxx.store.upgrade import from_future, known_steps
from luxx.vault import Vault

FORMAT = "luxx.backup"
VERSION = 1
SECRET_MEMBER = "secret_key"
GIVE_IT = "give it as the servers have it, or the backup opens no provider key"


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    step: str
    tables: list[TablePart]
    sequences: dict[str, int]
    users: list[int]


def back_up(home: Home, path: Path) -> Manifest:
    """Writes all that a server keeps to a new file. Raises LuxxError, with no file made.

    The files come after the rows: what a row tells of is in the backup, or was deleted meanwhile.
    """
    if not home.has_database:
        raise LuxxError(f"there is no database {home.url.database} to back up")
    key = home.secret()
    if not key:
        raise LuxxError(f"app.secret_key is not set here; {GIVE_IT}")
    with new_file(path) as file, ArchiveWriter(file) as archive:
        with home.snapshot() as connection:
            rows = _write_tables(connection, archive)
            others = _sealed_with_another(connection, key)
        secret = archive.put(SECRET_MEMBER, key.encode())
        workspaces, left_out = _write_workspaces(home, rows.users, archive, path.parent)
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            luxx=__version__,
            step=rows.step,
            database=home.url.get_backend_name(),
            made_at=utc_now(),
            tables=rows.tables,
            sequences=rows.sequences,
            workspaces=workspaces,
            secret=secret,
            left_out=[*others, *left_out],
        )
        archive.finish(manifest)
    last = LastBackup(at=manifest.made_at, file=str(path.absolute()), size=path.stat().st_size)
    home.remember_backup(last)
    return manifest


def _write_tables(connection: Connection, archive: ArchiveWriter) -> _Rows:
    steps = known_steps()
    step = _step(connection)
    if step not in steps:
        raise from_future(step)
    parts: list[TablePart] = []
    for name, columns in tables_of(connection, is_newest=step == steps[-1]):
        member = f"tables/{name}.jsonl"
        with archive.open(member) as out:
            count = write_rows(connection, name, columns, out.write)
        parts.append(TablePart(name=name, columns=columns, rows=count, member=out.member(member)))
    names = [part.name for part in parts]
    users = [int(id_) for id_ in connection.scalars(text("SELECT id FROM users ORDER BY id"))]
    return _Rows(step=step, tables=parts, sequences=sequences_of(connection, names), users=users)


def _sealed_with_another(connection: Connection, key: str) -> list[str]:
    """Notes on provider keys that this secret does not open. Raises LuxxError where it opens none of them."""
    sealed = connection.scalars(text("SELECT api_key FROM llm_providers WHERE api_key != ''")).all()
    vault = Vault(key)
    others = sum(vault.needs_sealing_anew(str(each)) for each in sealed)
    if not others:
        return []
    if others == len(sealed):
        raise LuxxError(
            f"the provider keys are sealed with another app.secret_key than the one here; {GIVE_IT}"
        )
    return [f"{others} provider keys are sealed with another secret, which is not in the backup"]


def _step(connection: Connection) -> str:
    if not connection.dialect.has_table(connection, "alembic_version"):
        raise LuxxError("the database is empty; there is nothing to back up")
    return str(connection.scalar(text("SELECT version_num FROM alembic_version")))


def _write_workspaces(
    home: Home, users: list[int], archive: ArchiveWriter, spool: Path
) -> tuple[list[WorkspacePart], list[str]]:
    parts: list[WorkspacePart] = []
    left_out: list[str] = []
    for user_id in users:
        folder = home.workspaces.path_of(user_id)
        if not folder.exists():
            continue
        name = f"workspaces/{user_id}.tar"
        with archive.open(name) as out:
            packed = pack(folder, out, spool)
        parts.append(WorkspacePart(user_id=user_id, files=packed.files, member=out.member(name)))
        left_out += [f"{name}: {each}" for each in packed.left_out]
    return parts, left_out
