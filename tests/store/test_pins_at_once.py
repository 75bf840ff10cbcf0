"""The texts that prompts begin with: one process deletes unused ones, another begins to use one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from migrated_databases import new_ready_database
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from luxx.infra.clock import utc_now
from luxx.infra.store.engine import open_engine, resolve_url
from luxx.runs.models import RunRow
from luxx.runs.turn.pins import Pins, delete_unused_pins, read_pins, store_pins
from luxx.wire.run import RunKind, RunStatus
from luxx.wire.tool import ToolSpec

PINS = Pins(tools=[ToolSpec(name="file_read", description="Reads a file.", parameters={})], skills="Skills.")


@pytest.fixture
def engine(postgresql: str, tmp_path: Path) -> Iterator[Engine]:
    """A database with a run that works, and with texts that only an ended run has used."""
    engine = open_engine(resolve_url(new_ready_database(postgresql, "pins"), tmp_path))
    with engine.begin() as connection:
        # Without the user and the tenant of the runs, also in the connections that are opened later.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("ALTER DATABASE pins SET session_replication_role = replica"))
        with Session(connection) as session:
            for run_id, status in (("works", RunStatus.RUNNING), ("ended", RunStatus.COMPLETED)):
                session.add(
                    RunRow(
                        id=run_id, user_id=1, tenant_id=1, kind=RunKind.CHAT, subject_id="s", status=status,
                        request="{}", created_at=utc_now(),
                    )
                )  # fmt: skip
            session.flush()
        store_pins(connection, "ended", "", 1, PINS)
    engine.dispose()
    yield engine
    engine.dispose()


@pytest.mark.heavy
def test_texts_that_a_run_begins_to_use_while_unused_ones_are_deleted_are_kept(engine: Engine) -> None:
    with ThreadPoolExecutor(1) as thread:
        with engine.begin() as begins:
            store_pins(begins, "works", "", 1, PINS)
            with engine.begin() as deletes:
                delete_unused_pins(deletes)
        with engine.connect() as connection:
            assert read_pins(connection, "works", "") == PINS
            assert read_pins(connection, "ended", "") is None
        with engine.begin() as again:
            again.execute(text("DELETE FROM run_prompt_parts"))
        with engine.connect() as begins:
            with engine.begin() as deletes:
                delete_unused_pins(deletes)
                stored = thread.submit(store_pins, begins, "works", "", 1, PINS)
            stored.result(20)
            begins.commit()
            assert read_pins(begins, "works", "") == PINS
