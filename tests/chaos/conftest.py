"""The databases of the chaos suite, and clusters on them."""

import asyncio
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from chaos.cluster import Cluster
from chaos.postgres import Postgres, running_postgres
from luxx.infra.store.engine import open_engine, resolve_url
from luxx.infra.store.upgrade import upgrade_database

SCENARIO_SECONDS = 240.0
"""The time limit of a scenario on a machine with other work; what is promised has bounds of its own."""

QUICK_MODULES = {"test_durability_page.py"}
"""Run by `make test`; the others are heavy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A scenario and the start of its processes may take longer than other tests."""
    here = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SCENARIO_SECONDS * 2))
        if item.path.name not in QUICK_MODULES:
            item.add_marker(pytest.mark.heavy)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """When a scenario on a cluster fails, prints the logs of its processes."""
    try:
        return (yield)
    except BaseException:
        for value in pyfuncitem.funcargs.values():
            if isinstance(value, Cluster):
                value.print_logs()
        raise


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite database with the schema of this version."""
    file = tmp_path_factory.mktemp("migrated") / "luxx.db"
    engine = open_engine(resolve_url(f"sqlite:///{file}", file.parent))
    upgrade_database(engine)
    engine.dispose()
    return file


@pytest.fixture
def sqlite_folder(migrated_file: Path, tmp_path: Path) -> Path:
    """A folder with a copy of that database, which saves the only process of a cluster the migration."""
    (tmp_path / "web1").mkdir()
    shutil.copy(migrated_file, tmp_path / "web1")
    return tmp_path


@pytest.fixture
def alone(sqlite_folder: Path) -> Iterator[Cluster]:
    """One process on SQLite."""
    with Cluster(sqlite_folder) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_cluster(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("several")
    with Cluster(folder, postgres.new_database(), webs=3, workers=1) as cluster:
        yield cluster


@pytest.fixture
def several(shared_cluster: Cluster) -> Cluster:
    """Three servers and one worker on one PostgreSQL, all running. Shared: leave nothing unfinished."""
    asyncio.run(shared_cluster.restart_all())
    return shared_cluster


@pytest.fixture
def two_and_two(postgres: Postgres, tmp_path: Path) -> Iterator[Cluster]:
    """Two servers and two workers on one PostgreSQL."""
    with Cluster(tmp_path, postgres.new_database(), webs=2, workers=2) as cluster:
        yield cluster
