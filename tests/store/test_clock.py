"""Deletion by age uses the clock of the database."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from luxx.infra.clock import utc_now
from luxx.infra.store import tables
from luxx.infra.store.engine import open_engine, resolve_url
from store.conftest import numbers
from store.databases import new_database


@pytest.fixture
def engine(postgresql: str) -> Iterator[Engine]:
    engine = open_engine(resolve_url(new_database(postgresql, f"clock{next(numbers)}"), Path()))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("days", [-90, 90])
def test_nothing_is_deleted_by_a_clock_that_differs_from_the_database(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    with Session(engine) as session:
        monkeypatch.setattr(tables, "utc_now", lambda: datetime.now(UTC) + timedelta(days=days))
        assert tables.deletion_time(session) is None


def test_the_clock_of_the_database_counts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(engine) as session:
        monkeypatch.setattr(tables, "utc_now", lambda: datetime.now(UTC) + timedelta(minutes=50))
        now = tables.deletion_time(session)
    assert now is not None
    assert now.tzinfo is not None
    assert abs(now - utc_now()) < timedelta(minutes=1)
