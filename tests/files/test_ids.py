"""Ids of files, on SQLite and PostgreSQL: one per path and user, for paths of any bytes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import delete, func, select
from store.conftest import database_url

from luxx.domain.accounts.models import User
from luxx.domain.files import service as rows
from luxx.domain.files.service import FileRow
from luxx.domain.files.storage import FileEntry
from luxx.infra.clock import new_id
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.models import ProviderRow

__all__ = ["database_url"]
assert ProviderRow.__tablename__ == "llm_providers"  # settings point at it
LONG = "/".join(["ü" * 120] * 16)
ODD = "a\udcff\n'b"


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(resolve_url(database_url, tmp_path))
    make_ready(engine)
    store = Store(engine)
    store.write_now(add_user)
    yield store
    store.close()


def entry(path: str) -> FileEntry:
    return FileEntry(path=path, is_folder=False, size=2**40, modified_ns=2**62)


def ids(store: Store, *paths: str, user_id: int = 1) -> dict[str, str]:
    rows_found = store.read_now(lambda session: rows.find_rows(session.connection(), user_id, paths))
    return {path: row.id for path, row in rows_found.items()}


@pytest.mark.parametrize("path", ["a.txt", LONG, ODD], ids=["plain", "long", "odd"])
def test_a_path_gets_one_id_and_keeps_it(store: Store, path: str) -> None:
    for _ in range(2):
        store.write_now(
            lambda session: rows.add_missing_ids(session.connection(), 1, [entry(path), entry("b")])
        )
        first = ids(store, path, "b", "c")
        assert set(first) == {path, "b"}
        assert ids(store, path)[path] == first[path]
    assert store.read_now(lambda session: rows.path_of(session.connection(), 1, first[path])) == path
    assert store.read_now(lambda session: session.scalar(select(func.count()).select_from(FileRow))) == 2


def test_an_id_belongs_to_its_user_only(store: Store) -> None:
    store.write_now(lambda session: rows.add_missing_ids(session.connection(), 1, [entry("a")]))
    file_id = ids(store, "a")["a"]
    assert ids(store, "a", user_id=2) == {}
    for user_id, asked in ((2, file_id), (1, new_id()), (1, "x" * 5000), (1, "'; --")):
        path = store.read_now(
            lambda session, user_id=user_id, asked=asked: rows.path_of(session.connection(), user_id, asked)
        )
        assert path is None


def test_an_upload_gets_a_new_id_and_the_old_one_is_unknown(store: Store) -> None:
    store.write_now(lambda session: rows.add_missing_ids(session.connection(), 1, [entry("a")]))
    old = ids(store, "a")["a"]
    new = store.write_now(lambda session: rows.record_upload(session.connection(), 1, entry("a"), "0" * 64))
    assert ids(store, "a") == {"a": new}
    assert store.read_now(lambda session: rows.path_of(session.connection(), 1, old)) is None
    store.write_now(lambda session: rows.delete_id(session.connection(), 1, "a"))
    assert ids(store, "a") == {}


def test_ids_of_a_deleted_user_are_deleted(store: Store) -> None:
    store.write_now(lambda session: rows.add_missing_ids(session.connection(), 1, [entry("a")]))
    store.write_now(lambda session: session.execute(delete(User)))
    assert ids(store, "a") == {}
