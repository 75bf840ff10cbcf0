"""Databases for the engine: SQLite, where a process is alone, and a PostgreSQL that many share."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from prepared import prepare_at
from store.databases import new_database, postgresql_server

SCENARIO_SECONDS = 60.0

numbers = itertools.count()

RunScenario = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgresql_server(tmp_path_factory.mktemp("pg")) as url:
        yield url


@pytest.fixture
def shared_url(postgresql: str) -> str:
    """The URL of a database that several processes may share, with nothing in its tables."""
    return prepare_at(new_database(postgresql, f"engine{next(numbers)}"))


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with nothing in its tables."""
    if request.param == "sqlite":
        return prepare_at(f"sqlite:///{tmp_path}/t.db")
    return str(request.getfixturevalue("shared_url"))


@pytest.fixture
def run() -> RunScenario:
    """Runs a test's story, within bounds."""

    def within_bounds(scenario: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(SCENARIO_SECONDS):
                await scenario

        asyncio.run(bounded())

    return within_bounds
