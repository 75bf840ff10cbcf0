"""Which bus a process has: none where it is alone with a SQLite database, else Redis or the database."""

import hashlib
import hmac

from sqlalchemy import Engine

from luxx.infra.bus.core import Bus, LocalBus
from luxx.infra.bus.network import Wire, WiredBus
from luxx.infra.bus.postgresql import PostgresqlWire
from luxx.infra.bus.redis import RedisWire
from luxx.infra.observe import Metrics


def choose_wire(engine: Engine, url: str, secret: str) -> Wire | None:
    """What joins this process with others; None where it is alone. Raises ConfigError for a wrong `url`."""
    if engine.dialect.name == "sqlite":
        return None
    if not url:
        return PostgresqlWire(engine)
    # Servers that share a secret belong together; others may use the same Redis.
    return RedisWire(url, hmac.new(secret.encode(), b"luxx bus", hashlib.sha256).hexdigest()[:16])


def choose_bus(process: str, engine: Engine, url: str, secret: str, metrics: Metrics) -> Bus:
    """The bus of this process, not yet open."""
    wire = choose_wire(engine, url, secret)
    return LocalBus(process) if wire is None else WiredBus(process, wire, metrics)
