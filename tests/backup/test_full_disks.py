"""On a full disk a backup fails; no incomplete backup is reported as made."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backup.sample_data import data_paths_of, fill, initialise
from luxx.domain.backup.backup import create_backup
from luxx.domain.backup.folders import pack, unpack
from luxx.domain.backup.user_export import export_user
from luxx.errors import LuxxError

MIB = 2**20


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """The system refuses writes past this size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("full_path", ["archive", "spool"])
def test_a_backup_that_cannot_be_written_fails_and_leaves_no_archive(tmp_path: Path, full_path: str) -> None:
    data_paths = data_paths_of(tmp_path / "here")
    initialise(data_paths)
    fill(data_paths)
    # Zeros take little space in the archive, but are written in full to the spool.
    large = bytes(12 * MIB) if full_path == "spool" else os.urandom(4 * MIB)
    (data_paths.workspaces.path_of(1) / "large").write_bytes(large)
    out = tmp_path / "out"
    out.mkdir()
    for write in (
        lambda: create_backup(data_paths, out / "backup.zip"),
        lambda: export_user(data_paths, "ann", out / "ann.zip"),
    ):
        most = (11 if full_path == "spool" else 5) * MIB
        with limit_file_size(most), pytest.raises(LuxxError, match="could not be written"):
            write()
        assert list(out.iterdir()) == []
    data_paths.close()


def test_a_missing_spool_is_not_treated_as_a_deleted_file(tmp_path: Path) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    (folder / "large").write_bytes(bytes(9 * MIB))
    with (tmp_path / "out.tar").open("wb") as out, pytest.raises(OSError, match="No such file"):
        pack(folder, out, tmp_path / "nowhere")


def test_a_file_with_a_time_in_the_far_future_is_restored(tmp_path: Path) -> None:
    """If this file system stores such times; otherwise the time is one of this century."""
    memory = Path("/dev/shm")
    folder = (memory if memory.is_dir() else tmp_path) / f"luxx-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "late").write_text("late")
        os.utime(folder / "late", (10**13, 10**13))
        with (tmp_path / "out.tar").open("wb") as out:
            pack(folder, out, tmp_path)
    finally:
        (folder / "late").unlink()
        folder.rmdir()
    (tmp_path / "to").mkdir()
    with (tmp_path / "out.tar").open("rb") as file:
        assert unpack(file, tmp_path / "to") == 1
    assert (tmp_path / "to" / "late").read_text() == "late"
