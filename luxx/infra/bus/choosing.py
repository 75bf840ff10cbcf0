"""Which bus a process has: none where it is alone with a SQLite database, else Redis or the database."""

import hashlib
import hmac

from sqlalchemy import Engine

from luxx.infra.bus.core import Bus, LocalBus
from luxx.infra.bus.network import BusTransport, NetworkBus
from luxx.infra.bus.postgresql import PostgresqlTransport
from luxx.infra.bus.redis import RedisTransport
from luxx.infra.observe import Metrics


def choose_transport(engine: Engine, url: str, secret: str) -> BusTransport | None:
    """What joins this process with others; None where it is alone. Raises ConfigError for a wrong `url`."""
    if engine.dialect.name == "sqlite":
        return None
    if not url:
        return PostgresqlTransport(engine)
    # Servers that share a secret belong together; others may use the same Redis.
    return RedisTransport(url, hmac.new(secret.encode(), b"luxx bus", hashlib.sha256).hexdigest()[:16])


def choose_bus(process: str, engine: Engine, url: str, secret: str, metrics: Metrics) -> Bus:
    """The bus of this process, not yet open."""
    transport = choose_transport(engine, url, secret)
    return LocalBus(process) if transport is None else NetworkBus(process, transport, metrics)
