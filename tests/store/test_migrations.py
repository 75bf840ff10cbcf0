"""Migrations: they lead to the models, run once among many processes, never go back, and copy
SQLite first.
"""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, MetaData, insert, inspect, text
from structlog.testing import capture_logs

from luxx.app.container import Services
from luxx.errors import DatabaseTooNew, DatabaseTooOld, UpgradeFailed
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.migrate import SCRIPTS, migrate
from luxx.infra.store.tables import Base
from luxx.infra.store.upgrade import current_step, known_steps, newest_step, upgrade_database
from store.test_search import ANN, find, index_of, is_sound

assert Services  # Importing `Services` imports every table.


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(resolve_url(database_url, tmp_path))
    yield engine
    engine.dispose()


def differences(engine: Engine) -> list[Any]:
    def is_ours(name: str | None, type_: str, _parents: Any) -> bool:
        return type_ != "table" or name in Base.metadata.tables or name == "alembic_version"

    def is_made_here(item: Any, _name: str | None, type_: str, *_more: Any) -> bool:
        """Whether the object belongs to this dialect: the models also have indexes for the other one.

        The foreign keys of SQLite have their own test: SQLAlchemy reads no name and no ON DELETE of those
        that ADD COLUMN made.
        """
        if type_ == "foreign_key_constraint" and engine.dialect.name == "sqlite":
            return False
        condition = getattr(item, "_ddl_if", None) if type_ == "index" else None
        return condition is None or condition.dialect == engine.dialect.name

    opts = {"compare_type": True, "include_name": is_ours, "include_object": is_made_here}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=opts)
        return list(compare_metadata(context, Base.metadata))


def test_the_foreign_keys_of_sqlite_are_those_of_the_models(tmp_path: Path) -> None:
    engine = open_engine(resolve_url("sqlite:///t.db", tmp_path))
    migrate(engine)
    expected = {
        (table.name, key.parent.name, key.column.table.name, key.ondelete or "NO ACTION")
        for table in Base.metadata.sorted_tables
        for key in table.foreign_keys
    }
    with engine.connect() as connection:
        stored = {
            (table.name, row["from"], row["table"], row["on_delete"])
            for table in Base.metadata.sorted_tables
            for row in connection.exec_driver_sql(f"PRAGMA foreign_key_list({table.name})").mappings()
        }
    engine.dispose()
    assert stored == expected


def test_an_empty_database_is_migrated_to_the_newest_step_once(engine: Engine) -> None:
    assert current_step(engine) is None
    assert migrate(engine).after == newest_step()
    assert current_step(engine) == newest_step()
    tables = set(inspect(engine).get_table_names())
    assert migrate(engine).after == newest_step()
    assert set(inspect(engine).get_table_names()) == tables
    assert {"users", "conversations", "messages", "runs", "run_events"} <= tables


def test_the_names_of_the_files_are_the_steps_in_order() -> None:
    """A start reads the steps from the file names, without loading Alembic."""
    walked = ScriptDirectory(str(SCRIPTS)).walk_revisions()
    assert known_steps() == [step.revision for step in walked][::-1]


@pytest.mark.heavy
def test_a_start_without_migrations_does_not_load_alembic() -> None:
    """Alembic takes 11 MB for good once it is loaded, and a server needs it for a second."""
    code = (
        "import sys, luxx.app.cli.serving_commands; "
        "print([name for name in ('alembic', 'mako') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


def test_a_separate_process_migrates_a_database_and_keeps_a_copy(engine: Engine) -> None:
    with capture_logs() as logs:
        assert upgrade_database(engine) == newest_step() == upgrade_database(engine)
    assert [(each["event"], each["before"], each["after"]) for each in logs] == [
        ("database_migrated", None, newest_step())
    ]


def test_the_process_copies_a_database_of_the_previous_version(engine: Engine) -> None:
    up_to(engine, known_steps()[-2])
    with capture_logs() as logs:
        assert upgrade_database(engine) == current_step(engine) == newest_step()
    copied = [each["to"] for each in logs if each["event"] == "database_copied"]
    assert [Path(each).exists() for each in copied] == [True] * (engine.dialect.name == "sqlite")


def test_a_failed_process_gives_the_reason_and_leaves_the_database(engine: Engine) -> None:
    up_to(engine, "0015")  # The next step adds a column to the table of runs.
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE runs RENAME TO walks"))
    with pytest.raises(UpgradeFailed, match=f"'0015' to '{newest_step()}'.*runs") as refused:
        upgrade_database(engine)
    assert "\n" not in refused.value.message
    assert current_step(engine) == "0015"


def up_to(engine: Engine, step: str) -> None:
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(SCRIPTS))
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        command.upgrade(settings, step)


def add_old_subjects(engine: Engine) -> dict[str, str]:
    """A user with an indexed title, two rooms and a task with steps, as step 0022 stores them; their ids."""
    ids = {name: new_id() for name in ("talk", "room", "other room", "task")}
    now = utc_now().replace(tzinfo=None)
    times = {"created_at": now, "updated_at": now}
    owner = {"user_id": ANN.user_id, "tenant_id": 1}
    user = {
        "id": ANN.user_id, "tenant_id": 1, "username": "ann", "username_key": "ann", "password_hash": "x",
        "must_change_password": False, "role": "user", "permission_level": 1, "workspace_path": "",
        "is_active": True, "created_at": now,
    }  # fmt: skip
    talk = {"id": ids["talk"], "user_id": ANN.user_id, "title": "otters", "tags": "[]", "pinned": False}
    words = f"'conversation={ANN.user_id}':1 'otters':2"
    if engine.dialect.name == "sqlite":
        words = f"conversation={ANN.user_id} otters"
    rooms = [
        {"id": ids[name], **owner, **times, "title": name, "task": task, "max_rounds": 1, "policy": "{}",
         "current_round": 0}
        for name, task in (("room", "Otters 水獭"), ("other room", "Beavers"))
    ]  # fmt: skip
    task = {
        "id": ids["task"], **owner, **times, "name": "Count", "goal": "All otters", "max_concurrent_steps": 1,
        "require_approval": False, "metadata": "{}", "result": "Ninety",
    }  # fmt: skip
    step = {
        "task_id": ids["task"], "goal": "", "depends_on": "[]", "require_approval": False,
        "status": "pending", "tool_calls": "[]", "attempts": 0, "usage": "{}",
    }  # fmt: skip
    steps = [
        step | {"id": "b", "position": 1, "name": "Dive"},
        step | {"id": "a", "position": 0, "name": "Look"},
    ]
    tables = MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        for name, rows in (
            ("tenants", [{"id": 1, "name": "t", "is_default": True, "created_at": now}]),
            ("users", [user]),
            ("conversations", [talk | times | {"archived": False}]),
            ("search_texts", [{"user_id": ANN.user_id, "conversation_id": ids["talk"], "words": words}]),
            ("chat_rooms", rooms),
            ("tasks", [task]),
            ("task_steps", steps),
        ):
            connection.execute(insert(tables.tables[name]), rows)
    return ids


def test_the_rooms_and_tasks_of_an_older_version_are_found_after_the_upgrade(engine: Engine) -> None:
    up_to(engine, "0022")
    ids = add_old_subjects(engine)
    upgrade_database(engine)
    store = Store(engine)
    hits = find(store, "an otter").hits
    assert {(hit.kind, hit.conversation_id, hit.room_id, hit.task_id) for hit in hits} == {
        ("conversation", ids["talk"], None, None),
        ("room", None, ids["room"], None),
        ("task", None, None, ids["task"]),
    }
    assert [hit.task_name for hit in find(store, '"otters look dive ninety"').hits] == ["Count"]
    assert [hit.room_title for hit in find(store, "水獭").hits] == ["room"]
    assert {hit.room_id for hit in find(store, "room").hits} == {ids["other room"], ids["room"]}
    assert len(index_of(store)) == 4
    assert is_sound(store)
    for table in ("chat_rooms", "tasks", "conversations"):
        store.write_now(lambda session, table=table: session.execute(text(f"DELETE FROM {table}")) and None)
    assert index_of(store) == find(store, "otters").hits == []
    assert is_sound(store)
    store.close()


def test_what_was_stored_before_plans_checks_and_queues_has_none_of_them(engine: Engine) -> None:
    up_to(engine, "0039")
    ids = add_old_subjects(engine)
    now = utc_now().replace(tzinfo=None)
    owner = {"user_id": ANN.user_id, "tenant_id": 1}
    tables = MetaData()
    tables.reflect(engine, only=["runs", "usage_records"])
    run = {
        "id": new_id(), **owner, "kind": "chat", "subject_id": ids["talk"], "status": "waiting",
        "usage": "{}", "last_seq": 0, "request": "{}", "fence": 1, "is_cancelled": False, "created_at": now,
    }  # fmt: skip
    used = {
        **owner, "run_id": run["id"], "kind": "chat", "subject_id": ids["talk"], "model": "old",
        "prompt_tokens": 5, "completion_tokens": 1, "cached_tokens": 0, "cache_write_tokens": 0,
        "reasoning_tokens": 0, "is_estimated": False, "created_at": now,
    }  # fmt: skip
    with engine.begin() as connection:
        for name, row in (("runs", run), ("usage_records", used)):
            connection.execute(insert(tables.tables[name]), row)
    upgrade_database(engine)
    with engine.connect() as connection:
        for query, found in (
            ("SELECT planning, queue_paused, queue_problem, sliding_window FROM conversations",
             (None, False, None, None)),
            ("SELECT is_planned, status FROM runs", (False, "waiting")),
            ("SELECT purpose, prompt_tokens FROM usage_records", ("answer", 5)),
            ("SELECT count(*) FROM queued_messages", (0,)),
            ("SELECT count(*) FROM prompt_parts", (0,)),
            ("SELECT count(*) FROM run_prompt_parts", (0,)),
            ("SELECT count(*) FROM provider_failures", (0,)),
        ):  # fmt: skip
            assert tuple(connection.execute(text(query)).one()) == found, query
    assert differences(engine) == []


def test_skills_that_said_they_are_for_people_are_for_people(engine: Engine) -> None:
    """Until 0076 a warning said that this had no effect."""
    up_to(engine, "0075")
    had = "disable-model-invocation has no effect here: models can activate it too"
    folder = "its name is a, but its folder's is b; the name counts"
    warnings = [had, f"{had}; {folder}", folder, None]
    now = utc_now().replace(tzinfo=None)
    rows = [{"id": str(number), "warning": warning, "now": now} for number, warning in enumerate(warnings)]
    with engine.begin() as connection:
        tenant = "INSERT INTO tenants (id, name, is_default, created_at) VALUES (1, 't', true, :now)"
        connection.execute(text(tenant), {"now": now})
        connection.execute(
            text(
                "INSERT INTO skills (id, tenant_id, scope, name, description, tags, trigger_type, triggers,"
                " warning, enabled, digest, origin, created_at, updated_at)"
                " VALUES (:id, 1, 'tenant', :id, 'd', '[]', 'hybrid', '[]', :warning, true, 'd', 'api',"
                " :now, :now)"
            ),
            rows,
        )
    upgrade_database(engine)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT is_for_people, warning FROM skills ORDER BY id"))
        assert [(bool(row[0]), row[1]) for row in found] == [
            (True, None), (True, folder), (False, folder), (False, None),
        ]  # fmt: skip


def test_the_default_provider_of_a_tenant_is_the_one_that_was_in_force(engine: Engine) -> None:
    up_to(engine, "0036")
    now = utc_now().replace(tzinfo=None)
    tenants = [
        {"id": number, "name": str(number), "is_default": number == 1, "created_at": now, "lost": lost}
        for number, lost in ((1, "gone"), (2, "gone"), (3, None))
    ]
    people = [{"id": number, "tenant_id": 2 if number == 5 else 1, "name": f"u{number}", "now": now}
              for number in range(1, 6)]  # fmt: skip
    providers = [
        {"id": 1, "user_id": 1, "shared": False, "default": True, "enabled": True, "type": "openai"},
        {"id": 2, "user_id": 2, "shared": True, "default": True, "enabled": True, "type": "demo"},
        {"id": 3, "user_id": 3, "shared": True, "default": True, "enabled": False, "type": "openai"},
        {"id": 4, "user_id": 4, "shared": True, "default": True, "enabled": True, "type": "openai"},
        {"id": 5, "user_id": 5, "shared": True, "default": False, "enabled": True, "type": "openai"},
    ]
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tenants (id, name, is_default, created_at, lost_default_provider) "
                "VALUES (:id, :name, :is_default, :created_at, :lost)"
            ),
            tenants,
        )
        connection.execute(
            text(
                "INSERT INTO users (id, tenant_id, username, username_key, password_hash,"
                " must_change_password, role, permission_level, workspace_path, is_active, created_at)"
                " VALUES (:id, :tenant_id, :name, :name, 'x', false, 'user', 1, '', true, :now)"
            ),
            people,
        )
        connection.execute(
            text(
                "INSERT INTO llm_providers (id, user_id, tenant_id, name, provider_type, base_url, api_key, "
                "default_model, is_default, is_shared, enabled, created_at, updated_at) "
                "VALUES (:id, :user_id, (SELECT tenant_id FROM users WHERE users.id = :user_id), 'p', :type, "
                "'', '', '', :default, :shared, :enabled, :now, :now)"
            ),
            [row | {"now": now} for row in providers],
        )
    upgrade_database(engine)
    stored = "SELECT id, default_provider_id, lost_default_provider FROM tenants ORDER BY id"
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(text(stored))]
    assert rows == [(1, 4, None), (2, None, "gone"), (3, None, None)]


def test_the_migrations_create_the_schema_of_the_models(engine: Engine) -> None:
    migrate(engine)
    assert differences(engine) == []
    assert set(Base.metadata.tables) <= set(inspect(engine).get_table_names())


def test_every_foreign_key_has_an_ondelete_rule(engine: Engine) -> None:
    migrate(engine)
    inspector = inspect(engine)
    checked = 0
    for table in Base.metadata.tables:
        for key in inspector.get_foreign_keys(table):
            checked += 1
            if (table, key["constrained_columns"]) == ("messages", ["parent_id"]):
                # One statement deletes a message and its descendants: a cascade would be as deep as the
                # chain.
                continue
            if engine.dialect.name == "sqlite" and not key["name"]:
                continue  # ADD COLUMN made it; the test of SQLite's foreign keys compares its rule.
            assert key["options"].get("ondelete") in ("CASCADE", "SET NULL", "RESTRICT"), (table, key)
    assert checked > 5


def test_a_database_of_a_newer_version_is_refused_with_a_sentence(engine: Engine) -> None:
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseTooNew, match=r"9999.*newer version") as refused:
        migrate(engine)
    assert "\n" not in refused.value.message
    assert current_step(engine) == "9999"


@pytest.mark.parametrize("step", ["0001", "0014", "0016"])
def test_a_database_of_a_development_version_is_refused_with_a_sentence(engine: Engine, step: str) -> None:
    """One migration replaced those of development versions, with what they did to existing rows."""
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :step"), {"step": step})
    for upgrade in (migrate, upgrade_database):
        with pytest.raises(DatabaseTooOld, match=f"{step}.*development version") as refused:
            upgrade(engine)
        assert "\n" not in refused.value.message
    assert current_step(engine) == step


def test_processes_that_start_together_migrate_once(database_url: str, tmp_path: Path) -> None:
    """PostgreSQL allows many. On SQLite a data directory has one server, but `luxx migrate` may run beside
    it."""
    if database_url.startswith("sqlite"):
        open_engine(resolve_url(database_url, tmp_path)).connect().close()
    barrier = threading.Barrier(4)

    def start(_number: int) -> str:
        engine = open_engine(resolve_url(database_url, tmp_path))
        barrier.wait(20)
        try:
            return migrate(engine).after
        finally:
            engine.dispose()

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(start, range(4))) == {newest_step()}
    engine = open_engine(resolve_url(database_url, tmp_path))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar_one() == 1
    assert differences(engine) == []
    engine.dispose()


def test_a_sqlite_file_is_copied_before_it_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version with one more step makes our newest step an old one."""
    path = tmp_path / "t.db"
    engine = open_engine(resolve_url(f"sqlite:///{path}", tmp_path))
    before = migrate(engine).after
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE mark (word TEXT)"))
        connection.execute(text("INSERT INTO mark VALUES ('before')"))
    scripts = a_newer_version(tmp_path, before)
    monkeypatch.setattr("luxx.infra.store.migrate.SCRIPTS", scripts)
    assert migrate(engine).after == "next"
    copies = [each for each in tmp_path.iterdir() if each.name.startswith("t.db.before")]
    assert len(copies) == 1
    assert copies[0].stat().st_mode & 0o077 == 0
    with sqlite3.connect(copies[0]) as copy:
        assert copy.execute("SELECT version_num FROM alembic_version").fetchone() == (before,)
        assert copy.execute("SELECT word FROM mark").fetchall() == [("before",)]
        assert not copy.execute("SELECT name FROM sqlite_master WHERE name = 'added'").fetchall()
    copy.close()
    assert inspect(engine).has_table("added")
    assert migrate(engine).after == "next"
    assert len(list(tmp_path.glob("t.db.before*"))) == 1
    engine.dispose()


def test_a_step_that_fails_changes_nothing(database_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    engine = open_engine(resolve_url(database_url, tmp_path))
    before = migrate(engine).after
    broken = 'op.create_table("added", sa.Column("id", sa.Integer)); op.execute("NONSENSE")'
    monkeypatch.setattr("luxx.infra.store.migrate.SCRIPTS", a_newer_version(tmp_path, before, broken))
    with pytest.raises(Exception, match="NONSENSE"):
        migrate(engine)
    assert current_step(engine) == before
    assert not inspect(engine).has_table("added")
    engine.dispose()


def a_newer_version(
    folder: Path, before: str, change: str = 'op.create_table("added", sa.Column("id", sa.Integer))'
) -> Path:
    """Luxx's migration scripts and one more step, like those of the next version."""
    scripts = folder / "migrations"
    for source in SCRIPTS.rglob("*"):
        if source.is_file() and source.suffix in (".py", ".mako"):
            target = scripts / source.relative_to(SCRIPTS)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    (scripts / "versions" / "next_step.py").write_text(
        '"""The next step."""\n\nimport sqlalchemy as sa\nfrom alembic import op\n\n'
        f'revision = "next"\ndown_revision = "{before}"\n\n\ndef upgrade() -> None:\n    {change}\n'
    )
    return scripts
