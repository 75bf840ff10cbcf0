"""A database in which simulated rooms take place."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from migrated_databases import prepare_at
from sample_user import add_user
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from luxx.infra.store.engine import open_engine, resolve_url


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("simulated_rooms")
    engine = open_engine(resolve_url(prepare_at(f"sqlite:///{path}/t.db"), path))
    with Session(engine) as session:
        add_user(session)
        session.commit()
    yield engine
    engine.dispose()
