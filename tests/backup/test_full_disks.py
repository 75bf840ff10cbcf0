"""Where nothing more can be written there is no backup: none that lacks something and says it was made."""

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
def no_file_larger_than(size: int) -> Iterator[None]:
    """The system refuses to write past it, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("full_path", ["archive", "spool"])
def test_what_cannot_be_written_makes_a_backup_fail_and_leaves_no_file_out(
    tmp_path: Path, full_path: str
) -> None:
    data_paths = data_paths_of(tmp_path / "here")
    initialise(data_paths)
    fill(data_paths)
    # Of zeros nothing much is left in the archive, but they are copied whole on their way.
    large = bytes(12 * MIB) if full_path == "spool" else os.urandom(4 * MIB)
    (data_paths.workspaces.path_of(1) / "large").write_bytes(large)
    out = tmp_path / "out"
    out.mkdir()
    for write in (
        lambda: create_backup(data_paths, out / "backup.zip"),
        lambda: export_user(data_paths, "ann", out / "ann.zip"),
    ):
        most = (11 if full_path == "spool" else 5) * MIB
        with no_file_larger_than(most), pytest.raises(LuxxError, match="could not be written"):
            write()
        assert list(out.iterdir()) == []
    data_paths.close()


def test_a_spool_that_is_gone_is_no_file_that_was_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    (folder / "large").write_bytes(bytes(9 * MIB))
    with (tmp_path / "out.tar").open("wb") as out, pytest.raises(OSError, match="No such file"):
        pack(folder, out, tmp_path / "nowhere")


def test_a_file_of_the_far_future_comes_back(tmp_path: Path) -> None:
    """Where the file system of this machine holds such times; else it is one of this century."""
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
