"""Archives that are truncated, damaged, too new or malicious: refused with a sentence, and nothing
changes.
"""

import io
import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backup.sample_data import data_paths_of, fill, initialise
from luxx.app.core_services import SUBJECT_READERS
from luxx.domain.backup.backup import DataPaths, create_backup
from luxx.domain.backup.folders import pack, unpack
from luxx.domain.backup.restore import restore
from luxx.errors import LuxxError

Members = dict[str, bytes]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A valid backup."""
    folder = tmp_path_factory.mktemp("good")
    data_paths = data_paths_of(folder / "here")
    initialise(data_paths)
    fill(data_paths)
    create_backup(data_paths, folder / "backup.zip")
    data_paths.close()
    return (folder / "backup.zip").read_bytes()


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> DataPaths:
    """Data paths into which no restore succeeds."""
    return data_paths_of(tmp_path_factory.mktemp("there"))


def check_restore_is_refused(there: DataPaths, content: bytes, match: str = ".") -> str:
    path = there.data_dir.parent / "backup.zip"
    path.write_bytes(content)
    with pytest.raises(LuxxError, match=match) as caught:
        restore(there, path, SUBJECT_READERS)
    left = [each for each in there.data_dir.rglob("*") if each.name != "server.lock"]
    assert left == []
    assert list(there.root.rglob("*")) == []
    assert "\n" not in caught.value.message
    return caught.value.message


def members_of(content: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def has_equal_member(good: bytes, damaged: bytes, name: str) -> bool:
    """Whether the member of this name unpacks to the same bytes in both archives."""
    try:
        with zipfile.ZipFile(io.BytesIO(damaged)) as archive:
            return archive.read(name) == members_of(good)[name]
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return False


def pack_archive(members: Members) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def changed(good: bytes, name: str, content: bytes) -> bytes:
    """The archive with another member, whose size and hash are in its manifest."""
    members = members_of(good) | {name: content}
    manifest = json.loads(members["manifest.json"])
    parts = [each["member"] for each in (*manifest["tables"], *manifest["workspaces"])]
    for each in (*parts, manifest["secret"]):
        if each["name"] == name:
            each |= {"size": len(content), "sha256": sha256(content).hexdigest()}
    return pack_archive(members | {"manifest.json": json.dumps(manifest).encode()})


def with_manifest(good: bytes, **manifest_values: Any) -> bytes:
    members = members_of(good)
    manifest = json.loads(members["manifest.json"]) | manifest_values
    return pack_archive(members | {"manifest.json": json.dumps(manifest).encode()})


@given(st.floats(0, 1, exclude_max=True))
@settings(max_examples=15, deadline=None)
def test_an_archive_that_was_cut_anywhere_is_refused(there: DataPaths, good: bytes, fraction: float) -> None:
    check_restore_is_refused(there, good[: int(fraction * len(good))])


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
@settings(max_examples=15, deadline=None)
def test_a_changed_byte_in_rows_or_files_is_detected(
    there: DataPaths, good: bytes, fraction: float, mask: int
) -> None:
    damaged = bytearray(good)
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        info = archive.getinfo("workspaces/1.tar")
    at = info.header_offset + 100 + int(fraction * (info.compress_size - 100))
    damaged[at] ^= mask
    # Some changes give another compressed form of the same bytes: a run of zeros has many.
    assume(not has_equal_member(good, bytes(damaged), "workspaces/1.tar"))
    check_restore_is_refused(there, bytes(damaged), r"workspaces/1\.tar")


def test_a_newer_format_or_database_is_refused_with_the_version_to_install(
    there: DataPaths, good: bytes
) -> None:
    assert "install a newer Luxx" in check_restore_is_refused(
        there, with_manifest(good, version=2, luxx="9.1", more={}), r"9\.1"
    )
    assert "newer" in check_restore_is_refused(
        there, with_manifest(good, step="9999", luxx="9.1"), r"9999.*9\.1"
    )


def test_other_files_are_refused(there: DataPaths, good: bytes) -> None:
    check_restore_is_refused(there, b"", "not a complete ZIP")
    check_restore_is_refused(there, b"PK\x03\x04 nothing", "not a complete ZIP")
    check_restore_is_refused(there, pack_archive({"a": b"b"}), "not a Luxx archive")
    check_restore_is_refused(there, with_manifest(good, format="luxx.user"), "luxx.backup")
    check_restore_is_refused(
        there, pack_archive(members_of(good) | {"more": b"x"}), "not those that its manifest names"
    )
    check_restore_is_refused(there, pack_archive({"manifest.json": b"[" * 100_000}), "manifest")
    check_restore_is_refused(
        there, pack_archive({"manifest.json": b'{"format":"luxx.backup","version":1}'}), "manifest"
    )


@pytest.mark.heavy
def test_rows_that_differ_from_the_manifest_are_refused(there: DataPaths, good: bytes) -> None:
    users = members_of(good)["tables/users.jsonl"]
    check_restore_is_refused(
        there,
        pack_archive(members_of(good) | {"tables/users.jsonl": users + b"\n"}),
        "does not match the manifest",
    )
    check_restore_is_refused(there, changed(good, "tables/users.jsonl", users + users), "users")
    check_restore_is_refused(
        there, changed(good, "tables/users.jsonl", b"[1]\n"), "users that cannot be read"
    )
    check_restore_is_refused(
        there, changed(good, "tables/users.jsonl", b'{"a":1}\n'), "users that cannot be read"
    )
    check_restore_is_refused(there, changed(good, "tables/users.jsonl", b""), "0 rows of users")
    check_restore_is_refused(
        there, changed(good, "tables/users.jsonl", users.replace(b"[1,", b"[1%s," % (b"0" * 30))), "users"
    )
    runs = members_of(good)["tables/runs.jsonl"]
    check_restore_is_refused(
        there, changed(good, "tables/runs.jsonl", runs.replace(b"0.30000000000000004", b"1" * 400)), "runs"
    )
    check_restore_is_refused(there, with_manifest(good, sequences={"users": 10**30}), "manifest")
    # The archive is complete, but a row refers to a missing user, which is detected at the end.
    other = users.replace(b"[1,", b"[9,")
    check_restore_is_refused(there, changed(good, "tables/users.jsonl", other), "FOREIGN KEY")


def test_unknown_tables_and_columns_are_refused(there: DataPaths, good: bytes) -> None:
    tables = json.loads(members_of(good)["manifest.json"])["tables"]
    odd = [each | {"name": "oddities"} if each["name"] == "projects" else each for each in tables]
    check_restore_is_refused(there, with_manifest(good, tables=odd), "oddities")
    wild = [each | {"name": 'x"; DROP TABLE users; --'} for each in tables]
    check_restore_is_refused(there, with_manifest(good, tables=wild), "manifest")
    for each in tables:
        each["columns"] = [{"name": "oddity", "kind": "text"}, *each["columns"][1:]]
    check_restore_is_refused(there, with_manifest(good, tables=tables), "oddity")


def test_an_archive_larger_than_the_free_disk_is_refused_before_unpacking(
    there: DataPaths, good: bytes
) -> None:
    manifest = json.loads(members_of(good)["manifest.json"])
    manifest["workspaces"][0]["member"]["size"] = 2**60
    assert "are free" in check_restore_is_refused(
        there, with_manifest(good, workspaces=manifest["workspaces"])
    )


def test_an_archive_that_unpacks_to_more_than_declared_is_not_read_further(
    there: DataPaths, good: bytes
) -> None:
    bomb = pack_archive(members_of(good) | {"workspaces/1.tar": bytes(300_000_000)})
    assert len(bomb) < 10_000_000
    check_restore_is_refused(there, bomb, r"workspaces/1\.tar does not match")


def tar_of(*entries: tuple[str, dict[str, Any]], content: bytes = b"x") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, fields in entries:
            info = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(info, field, value)
            info.size = len(content) if info.type == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "above": lambda: tar_of(("../../escaped", {})),
    "absolute": lambda: tar_of(("/tmp/escaped-by-a-test", {})),
    "inside": lambda: tar_of(("a/../../escaped", {})),
    "dot": lambda: tar_of(("./a", {})),
    "link": lambda: tar_of(("a", {"type": tarfile.SYMTYPE, "linkname": "/etc"}), ("a/passwd", {})),
    "hard link": lambda: tar_of(("a", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})),
    "device": lambda: tar_of(("a", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})),
    "pipe": lambda: tar_of(("a", {"type": tarfile.FIFOTYPE})),
    "twice": lambda: tar_of(("a", {}), ("a", {})),
    "file and folder": lambda: tar_of(("a", {}), ("a/b", {})),
    "deep": lambda: tar_of(("a/" * 500 + "b", {})),
    "long": lambda: tar_of(("a" * 300, {})),
    "huge name": lambda: tar_of(("a" * 5_000_000, {})),
    "cut": lambda: tar_of(("a", {}), content=b"x" * 5000)[:2000],
    "no tar": lambda: b"nothing" * 1000,
    "wild time": lambda: tar_of(("a", {"pax_headers": {"mtime": "1e999"}})),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_members_outside_the_folder_or_of_another_type_are_refused(
    there: DataPaths, good: bytes, kind: str
) -> None:
    check_restore_is_refused(there, changed(good, "workspaces/1.tar", HOSTILE[kind]()))
    assert not (there.data_dir.parent / "escaped").exists()
    assert not Path("/tmp/escaped-by-a-test").exists()


def test_a_failure_at_the_last_rename_is_undone(
    tmp_path: Path, good: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses the last of the renames, when `replace` has moved everything else."""
    data_paths = data_paths_of(tmp_path / "home")
    initialise(data_paths)
    fill(data_paths)
    before = (
        data_paths.secret(),
        data_paths.database_file.read_bytes(),
        sorted(map(str, data_paths.root.rglob("*"))),
    )
    path = tmp_path / "backup.zip"
    path.write_bytes(good)
    real = os.replace

    def replace(source: Any, target: Any, **more: Any) -> None:
        if str(target) == str(data_paths.database_file) and str(source).endswith("luxx.db"):
            raise OSError(5, "Input/output error")
        real(source, target, **more)

    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(OSError, match="Input/output"):
        restore(data_paths, path, SUBJECT_READERS, replace=True)
    after = (
        data_paths.secret(),
        data_paths.database_file.read_bytes(),
        sorted(map(str, data_paths.root.rglob("*"))),
    )
    assert after == before


def test_a_file_that_grows_while_it_is_read_is_complete_and_reported(tmp_path: Path) -> None:
    """A file that grows with every read, like a log."""
    folder = tmp_path / "from"
    folder.mkdir()
    log = folder / "log"
    log.write_bytes(b"line\n" * 1_000_000)

    class Busy(io.BytesIO):
        def write(self, data: Any) -> int:
            with log.open("ab") as more:
                more.write(b"line\n")
            return super().write(data)

    out = Busy()
    assert pack(folder, out, tmp_path).files == 1
    out.seek(0)
    (tmp_path / "to").mkdir()
    assert unpack(out, tmp_path / "to") == 1
    assert set((tmp_path / "to" / "log").read_bytes().splitlines()) == {b"line"}
