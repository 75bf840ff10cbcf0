"""Databases that commit 1412cd0 made, at revision 0015, open and end with the schema of a new database.

`revision_0015/` holds a SQLite file with two users, a conversation and a run, a backup of it that this commit
made, and the tables of an empty PostgreSQL as pg_dump wrote them. One migration replaced the fifteen of then.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, text

from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.migrate import migrate
from luxx.infra.store.upgrade import current_step, newest_step, upgrade_database
from luxx.wire.tool import CommandPermission
from store.databases import new_database
from store.test_search import find

assert Services  # Importing it imports every table there is.

ANN = Caller(user_id=2, tenant_id=1, username="ann", permission_level=CommandPermission.WRITE, sign_in_id="s")
FILES = Path(__file__).parent / "revision_0015"


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    """A database as the old version left it."""
    if database_url.startswith("sqlite"):
        (tmp_path / "t.db").write_bytes(gzip.decompress((FILES / "luxx.db.gz").read_bytes()))
    engine = open_engine(resolve_url(database_url, tmp_path))
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            connection.exec_driver_sql(gzip.decompress((FILES / "postgresql.sql.gz").read_bytes()).decode())
    yield engine
    engine.dispose()


@pytest.fixture
def new_engine(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[Engine]:
    """An empty database of the same kind."""
    url = f"sqlite:///{tmp_path}/new.db"
    if engine.dialect.name == "postgresql":
        url = new_database(request.getfixturevalue("postgresql"), f"new_{engine.url.database}")
    new_engine = open_engine(resolve_url(url, tmp_path))
    yield new_engine
    new_engine.dispose()


@pytest.mark.parametrize("step", ["0015", newest_step()])
def test_an_old_database_has_the_schema_of_a_new_one(engine: Engine, new_engine: Engine, step: str) -> None:
    assert current_step(engine) == "0015"
    migrate(engine, to=step)
    migrate(new_engine, to=step)
    old, new = schema(engine), schema(new_engine)
    assert old.keys() == new.keys()
    for name, part in new.items():
        assert old[name] == part, name
    assert len(new) > 25


def test_what_was_in_an_old_database_is_found_after_a_start(tmp_path: Path) -> None:
    (tmp_path / "t.db").write_bytes(gzip.decompress((FILES / "luxx.db.gz").read_bytes()))
    engine = open_engine(resolve_url("sqlite:///./t.db", tmp_path))
    assert upgrade_database(engine) == newest_step()
    store = Store(engine)
    try:
        check_contents(store)
    finally:
        store.close()


def check_contents(store: Store) -> None:
    """The conversation of the old version, and what the later migration counted of it."""

    def read(session: Any) -> list[Any]:
        users = "SELECT username FROM users ORDER BY id"
        sizes = "SELECT stored_bytes FROM runs"
        return [list(session.scalars(text(statement))) for statement in (users, sizes)]

    users, sizes = store.read_now(read)
    assert users == ["admin", "ann"]
    assert sizes == [15 + 21 + 89]  # Its event, its question, its answer.
    assert find(store, "tigers", who=ANN).total == find(store, '"green tea"', who=ANN).total == 1


def schema(engine: Engine) -> dict[str, Any]:
    """Tables, columns in their order, keys, constraints, indexes and triggers, by name."""
    return sqlite_schema(engine) if engine.dialect.name == "sqlite" else postgresql_schema(engine)


def sqlite_schema(engine: Engine) -> dict[str, Any]:
    objects: dict[str, Any] = {}
    with engine.connect() as connection:
        inspector = inspect(connection)
        rows = connection.execute(text("SELECT type, name, tbl_name, sql FROM sqlite_master")).all()
        for type_, name, table, sql in rows:
            if type_ == "table" and not name.startswith(("search_index", "sqlite_")):
                objects[name] = {
                    "columns": connection.exec_driver_sql(f"PRAGMA table_xinfo({name})").all(),
                    "primary key": inspector.get_pk_constraint(name),
                    "foreign keys": by_name(inspector.get_foreign_keys(name)),
                    "unique": by_name(inspector.get_unique_constraints(name)),
                    "checks": by_name(inspector.get_check_constraints(name)),
                    "is autoincrement": "AUTOINCREMENT" in sql,
                }
            elif sql and type_ != "table":
                objects[f"{type_} {name}"] = (table, " ".join(sql.split()))
            elif name == "search_index":
                objects[name] = sql
    return objects


def by_name(constraints: list[Any]) -> list[Any]:
    """In the order of their names, those without a name by what they say."""
    return sorted(constraints, key=lambda one: (one["name"] or "", repr(one)))


POSTGRESQL_QUERIES = {
    "columns": (
        "SELECT table_name, ordinal_position, column_name, data_type, character_maximum_length, is_nullable, "
        "column_default FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
    ),
    "constraints": (
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2"
    ),
    "indexes": (
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2"
    ),
    "sequences": (
        "SELECT sequencename, data_type::text, start_value, increment_by FROM pg_sequences "
        "WHERE schemaname = 'public' ORDER BY 1"
    ),
}


def postgresql_schema(engine: Engine) -> dict[str, Any]:
    objects: dict[str, Any] = {}
    with engine.connect() as connection:
        for kind, query in POSTGRESQL_QUERIES.items():
            for name, *rest in connection.execute(text(query)).all():
                objects.setdefault(f"{kind} of {name}", []).append(rest)
    return objects
