"""Skills and agents of projects in the export of one user's data and its import into another server."""

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_user import add_user
from sqlalchemy import select, update

from backup.sample_data import SKILL_FILES, data_paths_of, fill, initialise, store_of
from backup.test_bad_archives import members_of
from backup.test_user_export import with_member
from luxx.app.cli.backup_commands import FEATURES
from luxx.domain.agents.models import AgentRow
from luxx.domain.backup.backup import DataPaths
from luxx.domain.backup.user_export import export_user
from luxx.domain.backup.user_import import import_user
from luxx.domain.conversations.models import ProjectRow
from luxx.domain.skills.files import read_files
from luxx.domain.skills.models import SkillRow
from luxx.errors import LuxxError
from luxx.infra.config.schema import FilesConfig


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The export of ann, whose project has a skill and an agent."""
    folder = tmp_path_factory.mktemp("export")
    here = data_paths_of(folder / "here")
    initialise(here)
    fill(here)
    of_project = update(AgentRow).values(
        project_id=select(ProjectRow.id).scalar_subquery(), is_shared=False, provider_id=None
    )
    with store_of(here) as store:
        store.write_now(lambda session: session.execute(of_project))
    export_user(here, "ann", folder / "ann.zip", FEATURES)
    here.close()
    return (folder / "ann.zip").read_bytes()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[DataPaths]:
    """Another server, with a user ann who has no data."""
    data_paths = data_paths_of(tmp_path / "there")
    initialise(data_paths)
    with store_of(data_paths) as store:
        store.write_now(add_user)
    yield data_paths
    data_paths.close()


def imported(there: DataPaths, path: Path) -> list[str]:
    with store_of(there) as store:
        return import_user(there, store, path, None, FilesConfig(), features=FEATURES).notes


def test_skills_of_projects_are_imported_byte_for_byte_and_without_their_review(
    archive: bytes, there: DataPaths, tmp_path: Path
) -> None:
    (tmp_path / "ann.zip").write_bytes(archive)
    assert not [note for note in imported(there, tmp_path / "ann.zip") if "skill" in note]

    def read(session: Any) -> Any:
        row = session.scalars(select(SkillRow)).one()
        assert session.get_one(ProjectRow, row.project_id).name == "a project"
        assert session.scalars(select(AgentRow.project_id)).all() == [row.project_id]
        assert (row.name, row.description, row.scope, row.user_id) == ("数据分析", "Reads.", "project", 1)
        assert (row.enabled, row.warning) == (False, "the folder has another name")
        assert (row.reviewed_digest, row.reviewed_by) == (None, None)
        return read_files(session, row.tenant_id, row.digest)

    with store_of(there) as store:
        assert store.read_now(read) == SKILL_FILES


def test_an_export_with_skills_that_no_server_has_written_is_refused_whole(
    archive: bytes, there: DataPaths, tmp_path: Path
) -> None:
    person = json.loads(members_of(archive)["person.json"])
    (skill,) = person["features"]["skills"]
    files = skill["files"]
    text = files["SKILL.md"]
    too_large = b64encode(b"x" * (1024 * 1024 + 1)).decode()
    wrong: list[Any] = [
        {},
        [skill | {"project": 7}],
        [skill | {"project": -1}],
        [skill, skill],
        [skill | {"files": {}}],
        [skill | {"files": {"SKILL.md": b64encode(b"no front matter").decode()}}],
        [skill | {"files": files | {"../up": text}}],
        [skill | {"files": files | {"skill.MD": text}}],
        [skill | {"files": files | {"a": text, "a/b": text}}],
        [skill | {"files": files | {"large": too_large}}],
    ]
    for number, value in enumerate(wrong):
        person["features"]["skills"] = value
        path = tmp_path / f"{number}.zip"
        path.write_bytes(with_member(archive, "person.json", json.dumps(person).encode()))
        with pytest.raises(LuxxError, match="skill"):
            imported(there, path)
    with store_of(there) as store:
        assert store.read_now(lambda session: session.scalars(select(SkillRow)).all()) == []
