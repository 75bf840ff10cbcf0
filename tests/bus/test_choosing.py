"""Which bus a process uses, what `luxx doctor` reports of it, and which settings are refused."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from store.databases import new_database

from bus.redis_server import RedisServer
from luxx.app.cli.doctor.checks import Finding, examine_installation
from luxx.errors import ConfigError
from luxx.infra.bus.core import Bus
from luxx.infra.bus.network import NetworkBus, choose_bus
from luxx.infra.config.schema import (
    AppConfig,
    Config,
    DatabaseConfig,
    HubConfig,
    LocalConfig,
    WorkspaceConfig,
)
from luxx.infra.observe import Metrics
from luxx.infra.store.engine import open_engine, resolve_url
from luxx.infra.store.migrate import migrate

SECRET = "a secret that all servers of one database share, long enough"


def choose_bus_for(url: str, hub_url: str, folder: Path) -> object:
    engine = open_engine(resolve_url(url, folder))
    try:
        return choose_bus("one", engine, hub_url, SECRET, Metrics())
    finally:
        engine.dispose()


def test_a_process_with_sqlite_uses_the_local_bus_whatever_is_configured(tmp_path: Path) -> None:
    for hub_url in ("", "redis://127.0.0.1:1/0"):
        bus = choose_bus_for("sqlite:///./t.db", hub_url, tmp_path)
        assert type(bus) is Bus
        assert bus.is_alone


@pytest.mark.heavy
def test_a_process_with_sqlite_loads_no_driver_of_a_bus() -> None:
    code = (
        "import sys, luxx.app.container; loaded = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(loaded & {'psycopg', 'redis'}))"
    )
    environ = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environ
    )
    assert finished.stdout == "[]\n"


@pytest.mark.parametrize("hub_url", ["http://127.0.0.1", "redis://127.0.0.1:six/0", "nonsense"])
def test_a_wrong_url_is_refused_with_its_key(hub_url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hub\.url"):
        choose_bus_for("postgresql://luxx:pw@127.0.0.1:9/luxx", hub_url, tmp_path)


def test_the_password_of_a_bus_is_not_logged() -> None:
    assert "pass-word" not in repr(Config(hub=HubConfig(url="redis://:pass-word@127.0.0.1:1/0")))


def check_bus(folder: Path, database_url: str, hub_url: str) -> Finding:
    config = Config(
        data_dir=str(folder / "data"),
        app=AppConfig(port=0, secret_key=SECRET),
        database=DatabaseConfig(type="postgresql", url=database_url),
        workspace=WorkspaceConfig(root=str(folder / "workspaces")),
        local=LocalConfig(enabled=False),
        hub=HubConfig(url=hub_url),
    )
    return next(finding for finding in asyncio.run(examine_installation(config, {})) if finding.part == "bus")


def test_doctor_tests_the_bus(postgresql: str, redis: RedisServer, tmp_path: Path) -> None:
    url = new_database(postgresql, "doctor")
    engine = open_engine(resolve_url(url, tmp_path))
    migrate(engine)
    engine.dispose()
    assert "PostgreSQL" in check_bus(tmp_path, url, "").text
    assert "Redis" in check_bus(tmp_path, url, redis.url).text
    away = check_bus(tmp_path, url, "redis://:pass-word@127.0.0.1:9/0")
    assert away.is_bad
    assert "pass-word" not in str(away)


async def test_a_bus_whose_server_is_away_at_the_start_is_retried(redis: RedisServer, tmp_path: Path) -> None:
    """The process starts without the bus and connects to it later."""

    engine = open_engine(resolve_url("postgresql://luxx:pw@127.0.0.1:9/luxx", tmp_path))
    bus = choose_bus("one", engine, redis.url, SECRET, Metrics())
    assert isinstance(bus, NetworkBus)
    is_up = asyncio.Event()
    bus.on_reconnect(is_up.set)
    redis.kill()
    try:
        await bus.open()
        assert not bus.is_up
    finally:
        await asyncio.to_thread(redis.start)
    async with asyncio.timeout(30):
        await is_up.wait()
    assert bus.is_up
    await bus.close()
    engine.dispose()
