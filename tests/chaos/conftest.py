"""The databases of the chaos suite, and clusters on them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.cluster import Cluster
from chaos.postgres import Postgres, running_postgres

SCENE_SECONDS = 100.0

Play = Callable[..., None]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Cluster]:
    """One process on SQLite."""
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_cluster(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("several"), postgres.new_database(), webs=3) as cluster:
        yield cluster


@pytest.fixture
def several(shared_cluster: Cluster) -> Cluster:
    """Processes on one PostgreSQL, all of them well. Shared: leave nothing unfinished."""
    asyncio.run(shared_cluster.heal())
    return shared_cluster


@pytest.fixture
def play() -> Play:
    """Runs a scene on a cluster, within bounds; where it fails, the processes' own words are shown."""

    def run(cluster: Cluster, scene: Coroutine[Any, Any, None], seconds: float = SCENE_SECONDS) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(seconds):
                await scene

        try:
            asyncio.run(bounded())
        except BaseException:
            cluster.tell()
            raise

    return run
