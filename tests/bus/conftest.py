"""Every test of a bus runs on a real PostgreSQL and on a real Redis."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from store.databases import new_database

from bus.redis_server import RedisServer, redis_server
from luxx.infra.bus.network import NetworkBus, choose_bus
from luxx.infra.observe import Metrics
from luxx.infra.store.engine import open_engine, resolve_url

SECRET = "a secret that all servers of one database share, not those of another test"
numbers = itertools.count()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


class BusBackend:
    """What the buses of one kind need: a database and, for one kind, a Redis."""

    def __init__(self, database_url: str, redis: RedisServer | None, folder: Path) -> None:
        self.redis = redis
        self._secret = f"{SECRET}: {database_url}"
        self._engine = open_engine(resolve_url(database_url, folder))
        self._admin = create_engine(self._engine.url, isolation_level="AUTOCOMMIT")

    def bus(self, process: str) -> NetworkBus:
        """A bus that is not open yet."""
        url = "" if self.redis is None else self.redis.url
        bus = choose_bus(process, self._engine, url, self._secret, Metrics())
        assert isinstance(bus, NetworkBus)
        return bus

    def cut_all(self) -> None:
        """Cuts every connection of every bus."""
        if self.redis is not None:
            self.redis.kill()
            self.redis.start()
            return
        with self._admin.connect() as connection:
            terminate = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'luxx bus'"
            )
            assert connection.scalars(text(terminate)).all()

    def close(self) -> None:
        self._engine.dispose()
        self._admin.dispose()


@pytest.fixture(params=["postgresql", "redis"])
def backend(request: pytest.FixtureRequest, postgresql: str, tmp_path: Path) -> Iterator[BusBackend]:
    redis: RedisServer | None = request.getfixturevalue("redis") if request.param == "redis" else None
    backend = BusBackend(new_database(postgresql, f"bus{next(numbers)}"), redis, tmp_path)
    yield backend
    backend.close()
