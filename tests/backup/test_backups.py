"""A restored backup equals what was backed up, on the same kind of database and on the other one."""

import itertools
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from migrated_databases import POSTGRESQL_HEAVY
from sqlalchemy import insert, select, text
from store.conftest import numbers
from store.databases import new_database
from store.test_migrations import add_old_subjects
from store.test_revision_0015 import FILES as OLD_FILES
from store.test_revision_0015 import check_contents
from store.test_search import find, index_of, is_sound

from backup.sample_data import (
    KEY,
    SECRET,
    data_paths_of,
    files_of,
    fill,
    initialise,
    rows_of,
    store_of,
)
from backup.test_bad_archives import changed, with_manifest
from luxx.app.core_services import SUBJECT_READERS
from luxx.domain.accounts.authentication import caller_without_sign_in
from luxx.domain.accounts.models import User
from luxx.domain.backup.backup import DataPaths, create_backup, last_backup
from luxx.domain.backup.restore import restore
from luxx.errors import LuxxError
from luxx.features.knowledge.indexing import reindex_chunks
from luxx.features.knowledge.search import search_chunks
from luxx.features.memory.lexical import reindex_memory
from luxx.features.memory.models import MemoryScopeRow
from luxx.features.memory.scopes import visible_scopes
from luxx.features.memory.service import FactFilter, facts_in
from luxx.features.memory.views import read_facts
from luxx.features.tasks.changes import add_task
from luxx.features.tasks.models import NewTask
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import open_engine
from luxx.infra.store.migrate import migrate
from luxx.infra.store.search_words import SearchKind
from luxx.infra.store.upgrade import current_step, known_steps, newest_step
from luxx.providers.models import ProviderRow
from luxx.providers.queries import key_identity

DATABASES = ("sqlite", "postgresql")
LONG = 140_000_000
"""Characters; twice as many in a backup, where each of them is escaped."""


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Creates data paths: `make("postgresql", "there")`."""
    made: list[DataPaths] = []

    def one(kind: str, name: str, *, secret: str = "") -> DataPaths:
        server = request.getfixturevalue("postgresql") if kind == "postgresql" else ""
        url = new_database(server, f"keep{next(numbers)}") if server else ""
        data_paths = data_paths_of(tmp_path / name, url, secret=secret)
        made.append(data_paths)
        return data_paths

    yield one
    for data_paths in made:
        data_paths.close()


def _passages_about_the_gate(session: Any) -> list[str]:
    scope_id = session.scalar(select(MemoryScopeRow.id).where(MemoryScopeRow.base_id.is_not(None)))
    found = search_chunks(session.connection(), [scope_id], "gate", MemoryConfig(), limit=5)
    return [item.text for item in found.items]


@pytest.mark.heavy
@pytest.mark.parametrize(("source", "target"), list(itertools.product(DATABASES, DATABASES)))
def test_all_rows_and_files_are_restored_on_either_database(
    make: Any, tmp_path: Path, source: str, target: str
) -> None:
    here, there = make(source, "here"), make(target, "there")
    initialise(here)
    fill(here)
    backup = create_backup(here, tmp_path / "backup.zip")
    restored = restore(
        there, tmp_path / "backup.zip", SUBJECT_READERS, remake=[reindex_memory, reindex_chunks]
    )
    assert rows_of(there) == rows_of(here)
    assert files_of(there) == files_of(here)
    assert restored.files == 4
    assert sorted(each.partition(" ")[0] for each in backup.left_out) == ["workspaces/1.tar:"] * 2
    assert oct((tmp_path / "backup.zip").stat().st_mode & 0o777) == "0o600"
    with store_of(there) as store:
        row = store.read_now(lambda session: session.get(ProviderRow, 3))
        assert Vault(there.secret()).open(row.api_key, identity=key_identity(3)) == KEY
        assert [hit.message_id is None for hit in find(store, '"机器学习"').hits] == [True]
        assert store.read_now(_passages_about_the_gate) == ["The gate has code 4711."]
        assert [(hit.kind, hit.room_title) for hit in find(store, '"会议" "well"').hits] == [
            ("room", "Talk 会议")
        ]
        assert [(hit.kind, hit.task_name) for hit in find(store, '"read" "done"').hits] == [
            ("task", "Report 报告")
        ]
        assert store.read_now(lambda session: remembered(session, "器学习")) == ["Zoë loves 机器学习."]
        assert len(find(store, "findable").hits) == len(find(store, "学习").hits) - 1 == 1
        assert store.read_now(lambda session: session.scalar(text("SELECT owner FROM runs"))) is None
        # The id of a deleted user is never used again: the path of a workspace contains it.
        assert store.write_now(new_user) == 42
        restored_user = store.read_now(lambda session: session.get(User, 1))
        assert restored_user.workspace_path == str(there.workspaces.path_of(1))


def remembered(session: Any, query: str) -> list[str]:
    connection = session.connection()
    scopes = visible_scopes(connection, caller_without_sign_in(session.get(User, 1)))
    ids = connection.scalars(facts_in(connection, scopes, FactFilter(q=query))).all()
    return [fact.text for fact in read_facts(connection, scopes, ids)]


def new_user(session: Any) -> int:
    new = insert(User).values(
        tenant_id=1, username="new", username_key="new", password_hash="x", role="user", permission_level=1,
        created_at=utc_now(),
    )  # fmt: skip
    return int(session.execute(new.returning(User.id)).scalar_one())


@pytest.mark.heavy
@pytest.mark.parametrize("kind", DATABASES)
def test_existing_data_is_refused_unless_it_may_be_replaced(make: Any, tmp_path: Path, kind: str) -> None:
    here, there = make("sqlite", "here"), make(kind, "there")
    for data_paths in (here, there):
        initialise(data_paths)
        fill(data_paths)
    other = there.workspaces.prepare(7)
    (other / "of somebody in no backup").write_text("x")
    create_backup(here, tmp_path / "backup.zip")
    before = rows_of(there), files_of(there), there.secret()
    with pytest.raises(LuxxError, match="--replace"):
        restore(there, tmp_path / "backup.zip", SUBJECT_READERS)
    assert (rows_of(there), files_of(there), there.secret()) == before
    restore(
        there, tmp_path / "backup.zip", SUBJECT_READERS, replace=True, remake=[reindex_memory, reindex_chunks]
    )
    assert rows_of(there) == rows_of(here)
    assert files_of(there) == files_of(here)
    assert not other.exists()
    assert [each for each in there.root.iterdir() if each.name.startswith(".")] == []


def _older_steps() -> list[Any]:
    """All steps; the tests of each change take the oldest, each sixteenth, and the two newest.

    Each step from an older to a newer one, with rows, has its tests in `tests/store/test_migrations.py`.
    """
    steps = known_steps()
    short = {*steps[::16], *steps[-2:]}
    return [step if step in short else pytest.param(step, marks=pytest.mark.long) for step in steps]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", DATABASES)
@pytest.mark.parametrize("step", _older_steps())
def test_a_backup_of_an_older_version_is_migrated(make: Any, tmp_path: Path, kind: str, step: str) -> None:
    here, there = make("sqlite", "here", secret=SECRET), make(kind, "there", secret=SECRET)
    engine = open_engine(here.url)
    migrate(engine, to=step)
    with engine.begin() as connection:
        now = "2026-03-04 12:30:15.000000"
        connection.execute(text("DELETE FROM tenants"))
        tenant = "INSERT INTO tenants (id, name, is_default, created_at) VALUES (1, 'old', 1, :now)"
        connection.execute(text(tenant), {"now": now})
        user = (
            "INSERT INTO users (id, tenant_id, username, username_key, password_hash, must_change_password, "
            "role, permission_level, workspace_path, is_active, created_at) "
            "VALUES (5, 1, 'ann', 'ann', 'x', 0, 'user', 1, '', 1, :now)"
        )
        connection.execute(text(user), {"now": now})
        talk = (
            "INSERT INTO conversations (id, user_id, title, tags, pinned, archived, created_at, updated_at)"
        )
        connection.execute(text(f"{talk} VALUES ('c', 5, 'old title', '[]', 0, 0, :now, :now)"), {"now": now})
        connection.execute(
            text("INSERT INTO search_texts (user_id, conversation_id, words) VALUES (5, 'c', '')")
        )
    engine.dispose()
    assert create_backup(here, tmp_path / "backup.zip").step == step
    restore(there, tmp_path / "backup.zip", SUBJECT_READERS)
    assert current_step(there.engine) == newest_step()
    assert rows_of(there)["conversations"][0][0] == "c"
    with there.engine.connect() as connection:
        assert "old" in str(connection.scalar(text("SELECT words FROM search_texts")))


@pytest.mark.parametrize("kind", POSTGRESQL_HEAVY)
def test_the_rooms_and_tasks_in_a_backup_of_an_older_version_are_found(
    make: Any, tmp_path: Path, kind: str
) -> None:
    """That version indexed no rooms and tasks: the backup has no index rows of them."""
    here, there = make("sqlite", "here", secret=SECRET), make(kind, "there", secret=SECRET)
    engine = open_engine(here.url)
    migrate(engine, to="0022")
    ids = add_old_subjects(engine)
    engine.dispose()
    create_backup(here, tmp_path / "backup.zip")
    restore(there, tmp_path / "backup.zip", SUBJECT_READERS)
    with store_of(there) as store:
        (talk, room, task) = find(store, "otters").hits
        found = (talk.conversation_id, room.room_id, task.task_id)
        assert found == (ids["talk"], ids["room"], ids["task"])
        assert [row.id for row in index_of(store)] == [1, 2, 3, 4]
        assert sorted(str(hit.room_title) for hit in find(store, "room").hits) == ["other room", "room"]
        caller = caller_without_sign_in(store.read_now(lambda session: session.get(User, 1)))
        store.write_now(lambda session: add_task(session, caller, NewTask(name="Otters", goal="g")) and None)
        assert [hit.task_name for hit in find(store, "otters", kind=SearchKind.TASK).hits] == [
            "Otters",
            "Count",
        ]
        assert is_sound(store)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", DATABASES)
def test_a_backup_that_commit_1412cd0_made_is_restored(make: Any, tmp_path: Path, kind: str) -> None:
    archive = OLD_FILES / "backup.zip"
    with zipfile.ZipFile(archive) as members:
        secret = members.read("secret_key").decode()
    there = make(kind, "there", secret=secret if kind == "postgresql" else "")
    restore(there, archive, SUBJECT_READERS)
    assert current_step(there.engine) == newest_step()
    with store_of(there) as store:
        check_contents(store)


def test_a_backup_of_a_development_version_is_refused(make: Any, tmp_path: Path) -> None:
    old = tmp_path / "old.zip"
    old.write_bytes(with_manifest((OLD_FILES / "backup.zip").read_bytes(), step="0007"))
    with pytest.raises(LuxxError, match=r"step '0007'.*development version"):
        restore(make("sqlite", "there"), old, SUBJECT_READERS)


def test_the_manifest_of_a_backup_lists_its_contents(make: Any, tmp_path: Path) -> None:
    here = make("sqlite", "here")
    initialise(here)
    fill(here)
    backup = create_backup(here, tmp_path / "backup.zip")
    with zipfile.ZipFile(tmp_path / "backup.zip") as archive:
        claimed_count = json.loads(archive.read("manifest.json"))
        assert sorted(archive.namelist()) == sorted(
            ["manifest.json", *(each.name for each in backup.members)]
        )
        users = archive.read("tables/users.jsonl").decode().splitlines()
    assert (claimed_count["format"], claimed_count["version"], claimed_count["step"]) == (
        "luxx.backup",
        1,
        newest_step(),
    )
    assert [json.loads(line)[2] for line in users] == ["ann"]
    assert "'words'" not in str(claimed_count)
    last = last_backup(here.data_dir)
    assert last is not None
    assert last.file == str(tmp_path / "backup.zip")


def test_an_existing_archive_is_never_overwritten(make: Any, tmp_path: Path) -> None:
    here = make("sqlite", "here")
    initialise(here)
    (tmp_path / "backup.zip").write_text("dear to somebody")
    with pytest.raises(LuxxError, match="already exists"):
        create_backup(here, tmp_path / "backup.zip")
    assert (tmp_path / "backup.zip").read_text() == "dear to somebody"
    assert [name for name in os.listdir(tmp_path) if "partial" in name] == []


def test_a_backup_without_a_database_is_refused_and_creates_none(make: Any, tmp_path: Path) -> None:
    with pytest.raises(LuxxError, match="no database"):
        create_backup(make("sqlite", "here"), tmp_path / "backup.zip")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_configured_secret_is_kept_and_keys_are_sealed_with_it(make: Any, tmp_path: Path) -> None:
    here, there = make("sqlite", "here"), make("sqlite", "there", secret=SECRET)
    initialise(here)
    fill(here)
    create_backup(here, tmp_path / "backup.zip")
    restored = restore(there, tmp_path / "backup.zip", SUBJECT_READERS)
    assert not there.secret_file.exists()
    assert any("sign in again" in note for note in restored.notes)


@pytest.mark.parametrize("kind", POSTGRESQL_HEAVY)
def test_a_backup_whose_secret_opens_no_provider_key_is_refused(make: Any, tmp_path: Path, kind: str) -> None:
    """The secret of the servers is in their environment; the backup command has none or has created
    another."""
    here = make(kind, "here", secret=SECRET)
    initialise(here)
    fill(here)
    another = "encrypted with a different app.secret_key"
    for secret, said in (("", "secret_key is not set"), ("short", another), ("x" * 32, another)):
        here.configured_secret = secret
        with pytest.raises(LuxxError, match=said):
            create_backup(here, tmp_path / "backup.zip")
    assert [name for name in os.listdir(tmp_path) if "backup" in name] == []
    assert last_backup(here.data_dir) is None
    here.configured_secret = SECRET
    with here.engine.begin() as connection:
        connection.execute(insert(ProviderRow).values(
            id=4, user_id=1, tenant_id=1, name="q", provider_type="openai", created_at=utc_now(),
            updated_at=utc_now(), api_key=Vault("y" * 32).seal(KEY, identity=key_identity(4)),
        ))  # fmt: skip
    (note,) = [each for each in create_backup(here, tmp_path / "backup.zip").left_out if "encrypted" in each]
    assert note.startswith("1 provider keys")


@pytest.mark.parametrize("kind", POSTGRESQL_HEAVY)
def test_a_restore_after_which_no_server_could_start_is_refused(make: Any, tmp_path: Path, kind: str) -> None:
    here, there = make("sqlite", "here"), make(kind, "there", secret=SECRET)
    initialise(here)
    fill(here)
    create_backup(here, tmp_path / "backup.zip")
    backup = (tmp_path / "backup.zip").read_bytes()
    (tmp_path / "empty.zip").write_bytes(changed(backup, "secret_key", b""))
    there.configured_secret = "short"
    with pytest.raises(LuxxError, match="has 5 bytes, but needs 32"):
        restore(there, tmp_path / "backup.zip", SUBJECT_READERS)
    there.configured_secret = ""
    with pytest.raises(LuxxError, match=r"app\.secret_key"):
        restore(there, tmp_path / "empty.zip", SUBJECT_READERS)
    assert not there.root.exists()
    assert not there.secret_file.exists()
    there.configured_secret = SECRET
    notes = restore(there, tmp_path / "empty.zip", SUBJECT_READERS).notes
    assert any(note.startswith("1 provider keys were encrypted") for note in notes)


@pytest.mark.heavy
def test_a_row_of_any_length_is_restored(make: Any, tmp_path: Path) -> None:
    """A row that a user can store must not prevent backups of the server."""
    here, there = make("sqlite", "here"), make("sqlite", "there")
    initialise(here)
    fill(here)
    which = "id = (SELECT min(id) FROM messages)"
    with here.engine.begin() as connection:
        connection.execute(text(f"UPDATE messages SET content = :long WHERE {which}"), {"long": '"' * LONG})
    backup = create_backup(here, tmp_path / "backup.zip")
    (member,) = [part.member for part in backup.tables if part.name == "messages"]
    assert member.size > 2 * LONG
    restore(there, tmp_path / "backup.zip", SUBJECT_READERS)
    with there.engine.connect() as connection:
        claimed_count = connection.scalar(
            text(f"SELECT content = :long FROM messages WHERE {which}"), {"long": '"' * LONG}
        )
    assert claimed_count == 1


def test_nul_characters_that_postgresql_cannot_store_are_counted(make: Any, tmp_path: Path) -> None:
    here, there = make("sqlite", "here"), make("postgresql", "there")
    initialise(here)
    fill(here)
    with here.engine.begin() as connection:
        connection.execute(text("UPDATE projects SET description = 'a' || char(0) || 'b'"))
    create_backup(here, tmp_path / "backup.zip")
    restored = restore(there, tmp_path / "backup.zip", SUBJECT_READERS)
    assert any(note.startswith("1 NUL") for note in restored.notes)
    assert rows_of(there)["projects"][0][3] == "a\ufffdb"
