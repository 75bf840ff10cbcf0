"""Databases for the engine: SQLite, where a process is alone, and a PostgreSQL that many share."""

import itertools
from pathlib import Path

import pytest
from migrated_databases import POSTGRESQL_HEAVY, new_ready_database, prepare_at

numbers = itertools.count()


@pytest.fixture
def shared_url(postgresql: str) -> str:
    """The URL of a database that several processes may share, with nothing in its tables."""
    return new_ready_database(postgresql, f"engine{next(numbers)}")


@pytest.fixture(params=POSTGRESQL_HEAVY)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with nothing in its tables."""
    if request.param == "sqlite":
        return prepare_at(f"sqlite:///{tmp_path}/t.db")
    return str(request.getfixturevalue("shared_url"))
