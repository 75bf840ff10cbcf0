"""A write that returned is on disk: after kill -9 of its process another process reads it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select, text

from luxx.infra.store.engine import Store, open_engine, resolve_url
from store.databases import notes, values

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("acknowledged", [1, 40, 400])
def test_every_acknowledged_write_survives_kill_9(
    database_url: str, tmp_path: Path, acknowledged: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "store.writer_process", database_url],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        said = [output.readline().strip() for _ in range(acknowledged)]
        process.send_signal(signal.SIGKILL)
        said += [line.strip() for line in output if line.endswith("\n")]
    assert process.wait(20) == -signal.SIGKILL
    store = Store(open_engine(resolve_url(database_url, tmp_path)))
    stored = values(store.read_now(lambda session: session.execute(select(notes.c.text)).all()))
    assert said[0]
    assert set(said) <= set(stored)
    assert len(stored) == len(set(stored))
    if store.is_sqlite:
        check = store.read_now(lambda session: session.execute(text("PRAGMA integrity_check")).scalar_one())
        assert check == "ok"
    store.close()
