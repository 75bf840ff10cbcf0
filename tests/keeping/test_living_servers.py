"""A restore under servers that are up is refused, and one that fails has taken nothing from anybody."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from store.conftest import numbers, postgresql
from store.databases import new_database

from keeping.homes import config_of, files_of, fill, home_of, move_in, rows_of
from luxx.domain.backup import staging
from luxx.domain.backup.backup import Home, back_up
from luxx.domain.backup.restore import restore
from luxx.errors import LuxxError
from luxx.infra.store.lock import DataDirLock
from luxx.runs.engine.processes import ProcessKind, forget, register, take_one, this_process

pytestmark = pytest.mark.heavy

__all__ = ["postgresql"]

SERVER = this_process("a-server", ProcessKind.SERVE)


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A home on PostgreSQL with a backup of it beside."""
    url = new_database(request.getfixturevalue("postgresql"), f"living{next(numbers)}")
    made = home_of(tmp_path / "home", url)
    move_in(made)
    fill(made)
    back_up(made, tmp_path / "backup.zip")
    yield made
    made.close()


def come_up(home: Home) -> None:
    with home.engine.begin() as connection:
        register(connection, SERVER, 60.0)


def go_down(home: Home) -> None:
    with home.engine.begin() as connection:
        forget(connection, SERVER.id)


def all_of(home: Home) -> Any:
    """Rows and files; each folder with its number and the time when it was last made, moved or named."""
    places = {path.name: (path.stat().st_ino, path.stat().st_ctime_ns) for path in home.root.iterdir()}
    with home.engine.connect() as connection:
        schemas = connection.scalars(text("SELECT nspname FROM pg_namespace ORDER BY 1")).all()
    return {**rows_of(home), "processes": []}, files_of(home), places, schemas


def refused(home: Home, path: Path, match: str) -> None:
    before = all_of(home)
    for replace in (False, True):
        with pytest.raises(LuxxError, match=match):
            restore(home, path, replace=replace)
    assert all_of(home) == before


def test_servers_that_are_up_are_named_and_nothing_is_changed(home: Home, tmp_path: Path) -> None:
    come_up(home)
    refused(home, tmp_path / "backup.zip", f"in use by serve .*:{os.getpid()}; stop all")
    go_down(home)
    assert restore(home, tmp_path / "backup.zip", replace=True).files == 4


def test_a_server_with_another_data_directory_is_noticed_by_its_sqlite_file(tmp_path: Path) -> None:
    file = tmp_path / "shared" / "luxx.db"
    home = Home(config_of(tmp_path / "home", f"sqlite:///{file}"))
    file.parent.mkdir()
    move_in(home)
    fill(home)
    back_up(home, tmp_path / "backup.zip")
    before = rows_of(home), files_of(home)
    server = DataDirLock(tmp_path / "elsewhere", file)
    server.take()
    with pytest.raises(LuxxError, match="another Luxx server is using"):
        restore(home, tmp_path / "backup.zip", replace=True)
    assert (rows_of(home), files_of(home)) == before
    server.release()
    assert restore(home, tmp_path / "backup.zip", replace=True).files == 4


def test_a_server_that_was_killed_is_none_once_its_lease_is_over(home: Home, tmp_path: Path) -> None:
    with home.engine.begin() as connection:
        register(connection, SERVER, -1.0)
    assert restore(home, tmp_path / "backup.zip", replace=True).files == 4


def test_a_server_that_comes_up_during_a_restore_is_noticed_before_files_are_moved(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path_of = home.workspaces.path_of
    before = all_of(home)
    is_up = False

    def start(user_id: int) -> Path:
        nonlocal is_up
        if not is_up:
            is_up = True
            come_up(home)
        return path_of(user_id)

    monkeypatch.setattr(home.workspaces, "path_of", start)
    with pytest.raises(LuxxError, match="in use by serve"):
        restore(home, tmp_path / "backup.zip", replace=True)
    monkeypatch.undo()
    assert is_up
    assert all_of(home) == before


def test_tables_in_use_are_waited_for_before_files_are_moved(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PATIENCE", "200ms")
    other = home_of(tmp_path / "home", home.url.render_as_string(hide_password=False))
    with other.engine.connect() as reader:
        reader.execute(text("SELECT count(*) FROM usage_records"))
        before = all_of(home)
        with pytest.raises(LuxxError, match="the tables are in use"):
            restore(home, tmp_path / "backup.zip", replace=True)
        assert all_of(home) == before
    other.close()


def test_files_that_cannot_be_put_back_are_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody makes the workspace anew while the disk refuses the last rename."""
    home = home_of(tmp_path / "home")
    move_in(home)
    fill(home)
    back_up(home, tmp_path / "backup.zip")
    ours = home.workspaces.path_of(7)
    ours.mkdir()
    (ours / "dear").write_text("dear")
    real = os.replace

    def replace(source: Any, target: Any, **more: Any) -> None:
        if str(target) == str(home.database_file) and str(source).endswith("luxx.db"):
            ours.mkdir()
            (ours / "late").write_text("an upload")
            raise OSError(5, "Input/output error")
        real(source, target, **more)

    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(LuxxError, match=r"Input/output.*move what is in .*\.restore-\w+/replaced"):
        restore(home, tmp_path / "backup.zip", replace=True)
    monkeypatch.undo()
    assert files_of(home)
    (kept,) = home.root.glob(".restore-*")
    assert [path.name for path in kept.iterdir()] == ["replaced"]
    with pytest.raises(LuxxError, match="--replace"):
        restore(home, tmp_path / "backup.zip")
    assert (kept / "replaced" / ours.name / "dear").read_text() == "dear"
    assert (ours / "late").read_text() == "an upload"
    restore(home, tmp_path / "backup.zip", replace=True)
    assert not kept.exists()


def take(connection: Connection, owner: str) -> tuple[str, int]:
    """A process takes up the one run that is going on."""
    run_id = connection.scalar(text("SELECT id FROM runs"))
    connection.execute(text("UPDATE runs SET owner = NULL"))
    ((taken, fence),) = [
        (each.run_id, each.fence) for each in take_one(connection, owner, str(run_id), is_alone=False)
    ]
    return taken, fence


def test_a_driver_that_was_left_over_cannot_append_to_a_run_that_was_restored(
    home: Home, tmp_path: Path
) -> None:
    """Its process was frozen for longer than its lease; the run was taken up twice after the backup."""
    with home.engine.begin() as connection:
        left = {take(connection, owner)[1] for owner in ("one", "another")}
    for _ in range(2):
        restore(home, tmp_path / "backup.zip", replace=True)
        with home.engine.begin() as connection:
            row = connection.execute(text("SELECT owner, fence FROM runs")).one()
            assert row.owner is None
            assert row.fence not in left
            left.add(row.fence)
            fence = take(connection, "a new one")[1]
        assert fence not in left
        left.add(fence)
