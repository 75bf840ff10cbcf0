"""One server per data directory and per SQLite file, wherever the file is."""

from pathlib import Path

import pytest

from luxx.errors import ConfigError
from luxx.infra.data_permissions import DataDirLock


def check_lock_is_refused(lock: DataDirLock, what: Path) -> None:
    with pytest.raises(ConfigError, match=f"another Luxx server is using {what};"):
        lock.take()


@pytest.mark.parametrize("owner_comes_first", [True, False])
def test_a_database_in_the_data_directory_of_another_server_is_refused(
    tmp_path: Path, owner_comes_first: bool
) -> None:
    file = tmp_path / "one" / "luxx.db"
    owner, other = DataDirLock(tmp_path / "one", file), DataDirLock(tmp_path / "two", file)
    first, second = (owner, other) if owner_comes_first else (other, owner)
    first.take()
    check_lock_is_refused(second, tmp_path / "one")
    first.release()
    second.take()
    second.release()


def test_a_database_outside_the_data_directory_has_one_server(tmp_path: Path) -> None:
    first, second = (DataDirLock(tmp_path / name, tmp_path / "all" / "a.db") for name in ("one", "two"))
    neighbour = DataDirLock(tmp_path / "three", tmp_path / "all" / "b.db")
    first.take()
    neighbour.take()
    check_lock_is_refused(second, tmp_path / "all" / "a.db")
    first.release()
    second.take()
    second.release()
    neighbour.release()
