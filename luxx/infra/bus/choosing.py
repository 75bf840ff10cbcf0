"""Chooses the bus: local for a SQLite database, Redis if a URL is configured, else PostgreSQL."""

import hashlib
import hmac

from sqlalchemy import Engine

from luxx.infra.bus.core import Bus, LocalBus
from luxx.infra.bus.network import BusTransport, NetworkBus
from luxx.infra.bus.postgresql import PostgresqlTransport
from luxx.infra.bus.redis import RedisTransport
from luxx.infra.observe import Metrics


def choose_transport(engine: Engine, url: str, secret: str) -> BusTransport | None:
    """The connection to other processes; None for SQLite. Raises ConfigError for a wrong `url`."""
    if engine.dialect.name == "sqlite":
        return None
    if not url:
        return PostgresqlTransport(engine)
    # Servers with the same secret belong together; other installations may use the same Redis.
    return RedisTransport(url, hmac.new(secret.encode(), b"luxx bus", hashlib.sha256).hexdigest()[:16])


def choose_bus(process: str, engine: Engine, url: str, secret: str, metrics: Metrics) -> Bus:
    """The bus of this process, not yet open."""
    transport = choose_transport(engine, url, secret)
    return LocalBus(process) if transport is None else NetworkBus(process, transport, metrics)
