"""Artifacts in the export of one user's data and its import into another server, and in a backup."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from backup.sample_data import NOON, config_of, data_paths_of, fill, initialise, rows_of, store_of
from backup.test_bad_archives import members_of
from backup.test_user_export import with_member
from luxx.app.cli.backup_commands import features_of
from luxx.app.core_services import SUBJECT_READERS
from luxx.domain.backup.backup import DataPaths, create_backup
from luxx.domain.backup.restore import restore
from luxx.domain.backup.user_export import export_user
from luxx.domain.backup.user_import import import_user
from luxx.domain.conversations.models import ConversationRow
from luxx.errors import LuxxError
from luxx.features.artifacts.models import ArtifactRow, ArtifactVersionRow
from luxx.features.artifacts.rows import Version, read_version
from luxx.features.artifacts.user_export import artifact_export
from luxx.infra.config.schema import ArtifactsConfig, FilesConfig

EVERYTHING = artifact_export(ArtifactsConfig(), 0)
TABLES = ("artifacts", "artifact_versions", "artifact_parts")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataPaths]:
    """A server with ann, who has a report of two versions and a program."""
    data_paths = data_paths_of(tmp_path_factory.mktemp("export") / "here")
    initialise(data_paths)
    fill(data_paths)
    with store_of(data_paths) as store:
        store.write_now(lambda session: session.execute(update(ArtifactVersionRow).values(created_at=NOON)))
    yield data_paths
    data_paths.close()


@pytest.fixture(scope="module")
def archive(here: DataPaths, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("archive") / "ann.zip"
    export_user(here, "ann", path, features_of(config_of(path.parent)))
    return path.read_bytes()


def imported(there: DataPaths, path: Path, export: Any = EVERYTHING) -> list[str]:
    """What the import says about artifacts."""
    with store_of(there) as store:
        notes = import_user(there, store, path, None, FilesConfig(), features=[export]).notes
    return [note for note in notes if "artifact" in note and "does not know" not in note]


def found(there: DataPaths) -> dict[str, tuple[Any, list[Version], list[Any]]]:
    """The artifacts by their names, with their versions."""

    def work(session: Any) -> Any:
        artifacts: dict[str, Any] = {}
        for row in session.scalars(select(ArtifactRow)):
            numbers = range(1, row.head + 1)
            versions = [read_version(session.connection(), row.id, number) for number in numbers]
            query = select(ArtifactVersionRow).where(ArtifactVersionRow.artifact_id == row.id)
            artifacts[row.name] = (row, versions, session.scalars(query).all())
            session.expunge_all()
        return artifacts

    with store_of(there) as store:
        return store.read_now(work)


def content(version: Version) -> Any:
    problems, settings = version.problems, version.settings
    return version.number, version.pages, settings, problems, version.author_kind, version.author_name


def test_artifacts_are_imported_with_all_versions_and_their_conversation(
    archive: bytes, here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    (tmp_path / "ann.zip").write_bytes(archive)
    assert imported(there, tmp_path / "ann.zip") == []
    before, after = found(here), found(there)
    assert set(after) == {"Lage 概况", "tool"}
    for name, (row, versions, rows) in after.items():
        old, old_versions, _ = before[name]
        assert [content(one) for one in versions] == [content(one) for one in old_versions]
        assert (row.type, row.head, row.stored_bytes) == (old.type, old.head, old.stored_bytes)
        assert (row.created_at, row.updated_at) == (old.created_at, old.updated_at)
        assert (row.is_tainted, row.run_id, row.user_id) == (True, None, 1)
        assert row.id != old.id
        assert {(one.created_at, one.run_id, one.call_id, one.author_id) for one in rows} == {
            (NOON, None, None, None)
        }
    with store_of(there) as store:
        conversation = store.read_now(lambda session: session.scalars(select(ConversationRow.id)).one())
    assert after["Lage 概况"][0].conversation_id == conversation
    assert after["tool"][0].conversation_id is None
    first, second = after["Lage 概况"][1]
    assert (first.entries[0].id, second.pages_changed) == (second.entries[0].id, [2])


def test_an_export_with_artifacts_that_no_server_has_written_is_refused_whole(
    archive: bytes, there: DataPaths, tmp_path: Path
) -> None:
    person = json.loads(members_of(archive)["person.json"])
    report, program = person["features"]["artifacts"]
    version = program["versions"][0]
    sheet = program | {
        "type": "sheet",
        "parts": ['{"name": "A"}'],
        "versions": [version | {"pages": [{"part": 0}]}],
    }

    def paths(*given: str) -> Any:
        return [program | {"versions": [version | {"pages": [{"part": 0, "path": path} for path in given]}]}]

    wrong: list[Any] = [
        {},
        [report | {"type": "film"}],
        [report | {"name": ""}],
        [report | {"parts": []}],
        [report | {"parts": [" ", " ", " "]}],
        [report | {"versions": [report["versions"][0] | {"pages": []}]}],
        [report | {"versions": [report["versions"][0] | {"pages": [{"part": -1}]}]}],
        [report | {"versions": [report["versions"][0] | {"theme": "<script>"}]}],
        [report | {"versions": [report["versions"][0] | {"author_kind": "root"}]}],
        [report, sheet],
        [sheet | {"parts": ["junk"]}],
        [sheet | {"parts": ["[" * 5000]}],
        [sheet | {"type": "chart", "parts": ["{}"]}],
        paths("../up"),
        paths("a", "A"),
        paths("a", "a/b"),
        paths(""),
    ]
    for number, value in enumerate(wrong):
        person["features"]["artifacts"] = value
        path = tmp_path / f"{number}.zip"
        path.write_bytes(with_member(archive, "person.json", json.dumps(person).encode()))
        with pytest.raises(LuxxError, match=r"^the artifacts in it cannot be read \("):
            imported(there, path)
    assert found(there) == {}
    with store_of(there) as store:
        assert store.read_now(lambda session: session.scalars(select(ConversationRow)).all()) == []


def test_what_is_larger_than_this_server_allows_is_left_out_with_a_note(
    archive: bytes, there: DataPaths, tmp_path: Path
) -> None:
    path = tmp_path / "ann.zip"
    path.write_bytes(archive)
    one_page = artifact_export(ArtifactsConfig(max_pages=1), 0)
    pages = "was left out: an artifact has at most 1 pages (artifacts.max_pages)"
    report, program = imported(there, path, one_page)
    assert report.startswith(f"the artifact Lage 概况 {pages}")
    assert program.startswith(f"the artifact tool {pages}")
    assert found(there) == {}

    person = json.loads(members_of(archive)["person.json"])
    report_of_file, _ = person["features"]["artifacts"]
    large = report_of_file | {"name": "large", "parts": [f"# {'x' * 400_000}"] * 3}
    person["features"]["artifacts"] = [report_of_file, large, large, report_of_file | {"left_out": 4}]
    path.write_bytes(with_member(archive, "person.json", json.dumps(person).encode()))
    full = "the artifact large was left out: the user may store 1 MiB (limits.storage_mb_per_user)"
    older = "4 older versions of the artifact Lage 概况 were left out: the export was too large"
    assert imported(there, path, artifact_export(ArtifactsConfig(max_source_kb=900), 1)) == [
        full,
        full,
        older,
    ]
    assert set(found(there)) == {"Lage 概况"}


def test_a_large_export_keeps_the_newest_versions(
    here: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The newest version of the report fits, the one before has another page.
    monkeypatch.setattr("luxx.features.artifacts.user_export.MAX_BYTES", 45)
    export_user(here, "ann", tmp_path / "ann.zip", [EVERYTHING])
    artifacts = json.loads(members_of((tmp_path / "ann.zip").read_bytes())["person.json"])["features"][
        "artifacts"
    ]
    shown = {one["name"]: (len(one["versions"]), one.get("left_out", 0)) for one in artifacts}
    assert shown == {"Lage 概况": (1, 1), "tool": (1, 0)}
    assert artifacts[0]["versions"][0]["note"] == "by hand"


def test_a_backup_keeps_artifacts_but_not_the_files_made_of_them(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    create_backup(here, tmp_path / "all.zip")
    restore(there, tmp_path / "all.zip", SUBJECT_READERS, replace=True)
    before, after = rows_of(here), rows_of(there)
    assert {name: len(before[name]) for name in TABLES} == dict(zip(TABLES, (2, 3, 5), strict=True))
    assert {name: after[name] for name in TABLES} == {name: before[name] for name in TABLES}
    assert after["artifact_renders"] == []
