"""A restore is refused while servers run, and a failed restore changes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from store.conftest import numbers
from store.databases import new_database

from backup.sample_data import config_of, data_paths_of, files_of, fill, initialise, rows_of
from luxx.app.core_services import SUBJECT_READERS
from luxx.domain.backup import staging
from luxx.domain.backup.backup import DataPaths, create_backup
from luxx.domain.backup.restore import restore
from luxx.errors import LuxxError
from luxx.infra.data_permissions import DataDirLock
from luxx.runs.engine.processes import ProcessKind, claim_one, register, this_process, unregister

pytestmark = pytest.mark.heavy


SERVER = this_process("a-server", ProcessKind.SERVE)


@pytest.fixture
def data_paths(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DataPaths]:
    """Data paths on PostgreSQL, with a backup of them."""
    url = new_database(request.getfixturevalue("postgresql"), f"living{next(numbers)}")
    data_paths = data_paths_of(tmp_path / "home", url)
    initialise(data_paths)
    fill(data_paths)
    create_backup(data_paths, tmp_path / "backup.zip")
    yield data_paths
    data_paths.close()


def register_process(data_paths: DataPaths) -> None:
    with data_paths.engine.begin() as connection:
        register(connection, SERVER, 60.0)


def unregister_process(data_paths: DataPaths) -> None:
    with data_paths.engine.begin() as connection:
        unregister(connection, SERVER.id)


def all_of(data_paths: DataPaths) -> Any:
    """Rows and files; each folder with its inode and its last change."""
    inodes = {path.name: (path.stat().st_ino, path.stat().st_ctime_ns) for path in data_paths.root.iterdir()}
    with data_paths.engine.connect() as connection:
        schemas = connection.scalars(text("SELECT nspname FROM pg_namespace ORDER BY 1")).all()
    return {**rows_of(data_paths), "processes": []}, files_of(data_paths), inodes, schemas


def check_restore_is_refused(data_paths: DataPaths, path: Path, match: str) -> None:
    before = all_of(data_paths)
    for replace in (False, True):
        with pytest.raises(LuxxError, match=match):
            restore(data_paths, path, SUBJECT_READERS, replace=replace)
    assert all_of(data_paths) == before


def test_a_restore_names_running_servers_and_changes_nothing(data_paths: DataPaths, tmp_path: Path) -> None:
    register_process(data_paths)
    check_restore_is_refused(
        data_paths, tmp_path / "backup.zip", f"in use by serve .*:{os.getpid()}; stop all"
    )
    unregister_process(data_paths)
    assert restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS, replace=True).files == 4


def test_a_server_with_another_data_directory_is_detected_by_its_sqlite_file(tmp_path: Path) -> None:
    file = tmp_path / "shared" / "luxx.db"
    data_paths = DataPaths(config_of(tmp_path / "home", f"sqlite:///{file}"))
    file.parent.mkdir()
    initialise(data_paths)
    fill(data_paths)
    create_backup(data_paths, tmp_path / "backup.zip")
    before = rows_of(data_paths), files_of(data_paths)
    server = DataDirLock(tmp_path / "elsewhere", file)
    server.take()
    with pytest.raises(LuxxError, match="another Luxx server is using"):
        restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS, replace=True)
    assert (rows_of(data_paths), files_of(data_paths)) == before
    server.release()
    assert restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS, replace=True).files == 4


def test_a_killed_server_does_not_count_after_its_lease(data_paths: DataPaths, tmp_path: Path) -> None:
    with data_paths.engine.begin() as connection:
        register(connection, SERVER, -1.0)
    assert restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS, replace=True).files == 4


def test_a_server_that_starts_during_a_restore_is_detected_before_files_are_moved(
    data_paths: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path_of = data_paths.workspaces.path_of
    before = all_of(data_paths)
    is_up = False

    def start(user_id: int) -> Path:
        nonlocal is_up
        if not is_up:
            is_up = True
            register_process(data_paths)
        return path_of(user_id)

    monkeypatch.setattr(data_paths.workspaces, "path_of", start)
    with pytest.raises(LuxxError, match="in use by serve"):
        restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS, replace=True)
    monkeypatch.undo()
    assert is_up
    assert all_of(data_paths) == before


def test_a_restore_waits_for_tables_in_use_before_files_are_moved(
    data_paths: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LOCK_TIMEOUT", "200ms")
    other = data_paths_of(tmp_path / "home", data_paths.url.render_as_string(hide_password=False))
    with other.engine.connect() as reader:
        reader.execute(text("SELECT count(*) FROM usage_records"))
        before = all_of(data_paths)
        with pytest.raises(LuxxError, match="the tables are in use"):
            restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS, replace=True)
        assert all_of(data_paths) == before
    other.close()


def test_files_that_cannot_be_put_back_are_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workspace is created again while the disk refuses the last rename."""
    data_paths = data_paths_of(tmp_path / "home")
    initialise(data_paths)
    fill(data_paths)
    create_backup(data_paths, tmp_path / "backup.zip")
    ours = data_paths.workspaces.path_of(7)
    ours.mkdir()
    (ours / "dear").write_text("dear")
    real = os.replace

    def replace(source: Any, target: Any, **more: Any) -> None:
        if str(target) == str(data_paths.database_file) and str(source).endswith("luxx.db"):
            ours.mkdir()
            (ours / "late").write_text("an upload")
            raise OSError(5, "Input/output error")
        real(source, target, **more)

    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(LuxxError, match=r"Input/output.*move the content of .*\.restore-\w+/replaced"):
        restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS, replace=True)
    monkeypatch.undo()
    assert files_of(data_paths)
    (kept_folder,) = data_paths.root.glob(".restore-*")
    assert [path.name for path in kept_folder.iterdir()] == ["replaced"]
    with pytest.raises(LuxxError, match="--replace"):
        restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS)
    assert (kept_folder / "replaced" / ours.name / "dear").read_text() == "dear"
    assert (ours / "late").read_text() == "an upload"
    restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS, replace=True)
    assert not kept_folder.exists()


def take(connection: Connection, owner: str) -> tuple[str, int]:
    """A process takes over the run in progress."""
    run_id = connection.scalar(text("SELECT id FROM runs WHERE finished_at IS NULL"))
    connection.execute(text("UPDATE runs SET owner = NULL"))
    ((taken, fence),) = [
        (each.run_id, each.fence) for each in claim_one(connection, owner, str(run_id), is_alone=False)
    ]
    return taken, fence


def test_a_driver_from_before_the_restore_cannot_append_to_a_restored_run(
    data_paths: DataPaths, tmp_path: Path
) -> None:
    """Its process was frozen for longer than its lease; the run was taken over twice after the backup."""
    with data_paths.engine.begin() as connection:
        left = {take(connection, owner)[1] for owner in ("one", "another")}
    for _ in range(2):
        restore(data_paths, tmp_path / "backup.zip", SUBJECT_READERS, replace=True)
        with data_paths.engine.begin() as connection:
            row = connection.execute(text("SELECT owner, fence FROM runs WHERE finished_at IS NULL")).one()
            assert row.owner is None
            assert row.fence not in left
            left.add(row.fence)
            fence = take(connection, "a new one")[1]
        assert fence not in left
        left.add(fence)
