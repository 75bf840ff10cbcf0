"""Every test of a store runs on SQLite and on PostgreSQL."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from migrated_databases import new_ready_database, prepare_at

from luxx.infra.store.engine import Store, open_engine, resolve_url
from store.databases import metadata, new_database

numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/t.db"
    return new_database(request.getfixturevalue("postgresql"), f"t{next(numbers)}")


@pytest.fixture(params=["sqlite", "postgresql"])
def ready_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database at the newest step, with nothing in its tables."""
    if request.param == "sqlite":
        return prepare_at(f"sqlite:///{tmp_path}/t.db")
    return new_ready_database(request.getfixturevalue("postgresql"), f"ready{next(numbers)}")


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    """An open store with the tests' own tables."""
    engine = open_engine(resolve_url(database_url, tmp_path))
    metadata.create_all(engine)
    store = Store(engine)
    yield store
    store.close()
