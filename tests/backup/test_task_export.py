"""Tasks, templates and prompts in the export of one user's data and its import into another server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session
from store.test_search import find

from backup.sample_data import NOON, data_paths_of, fill, initialise, store_of
from backup.test_bad_archives import members_of
from backup.test_user_export import with_member
from luxx.app.cli.backup_commands import FEATURES
from luxx.domain.accounts.authentication import caller_without_sign_in
from luxx.domain.accounts.models import User
from luxx.domain.backup.backup import DataPaths
from luxx.domain.backup.user_export import export_of, export_user
from luxx.domain.backup.user_import import UserImportResult, import_user
from luxx.domain.conversations.models import ProjectRow
from luxx.errors import LuxxError
from luxx.features.prompts import PROMPTS
from luxx.features.tasks.models import TaskRow, TaskTemplateRow
from luxx.features.tasks.user_export import read_tasks
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import FilesConfig
from luxx.infra.store.search_words import SearchKind
from luxx.providers.models import ProviderRow

LEFT_OUT = "the results of tasks were left out, because their runs stay on the other server"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[DataPaths]:
    data_paths = data_paths_of(tmp_path / "here")
    initialise(data_paths)
    fill(data_paths)
    yield data_paths
    data_paths.close()


def import_archive(data_paths: DataPaths, path: Path, **more: Any) -> UserImportResult:
    with store_of(data_paths) as store:
        return import_user(data_paths, store, path, None, FilesConfig(), **({"features": FEATURES} | more))


def tasks_of(data_paths: DataPaths) -> Any:
    """What an export of ann's tasks has, and the names of their projects."""

    def work(session: Session) -> Any:
        user = session.get_one(User, 1)
        projects = session.execute(select(ProjectRow.id, ProjectRow.name).order_by(ProjectRow.id)).all()
        exported = read_tasks(session, caller_without_sign_in(user), [row.id for row in projects])
        names = [None if task.project is None else projects[task.project].name for task in exported.tasks]
        return msgspec.to_builtins(exported), names

    with store_of(data_paths) as store:
        return store.read_now(work)


def test_tasks_and_templates_are_imported_with_their_graphs_and_projects(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    def add_provider(session: Session) -> None:
        session.execute(insert(ProviderRow).values(
            user_id=1, tenant_id=1, name="p", provider_type="openai", api_key="", created_at=NOON,
            updated_at=NOON,
        ))  # fmt: skip

    with store_of(there) as store:
        store.write_now(add_provider)
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    result = import_archive(there, tmp_path / "ann.zip")
    assert [note for note in result.notes if "task" in note] == [LEFT_OUT]
    (before, project_before), (after, project_after) = tasks_of(here), tasks_of(there)
    (task,) = before["tasks"]
    assert (task["document"]["agent"], task["document"]["provider"]) == ("Writer ✍", "p")
    answered_by = {"provider_name": None, "model": None}
    expected = {"status": "completed", "output": "Notes ✍", "error": None, "finish": None, **answered_by}
    assert task["results"] == {"read": expected}
    assert task["result"] == "Done."
    assert after == {**before, "tasks": [{**task, "result": None, "results": {}}]}
    assert project_after == project_before == ["a project"]

    def is_shared(session: Session) -> list[bool]:
        return list(session.scalars(select(TaskTemplateRow.is_shared)))

    with store_of(there) as store:
        assert store.read_now(is_shared) == [False]
        assert [(hit.kind, hit.task_name) for hit in find(store, "报告 write").hits] == [
            ("task", "Report 报告")
        ]
        assert find(store, "done", kind=SearchKind.TASK).hits == [], "results are not imported"


def test_what_does_not_exist_on_the_other_server_is_left_out_with_a_note(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    good = (tmp_path / "ann.zip").read_bytes()
    person = json.loads(members_of(good)["person.json"])
    person["agents"] = []
    (tmp_path / "less.zip").write_bytes(with_member(good, "person.json", json.dumps(person).encode()))
    result = import_archive(there, tmp_path / "less.zip")
    assert [note for note in result.notes if "task" in note] == [
        "the task Report 报告: there is no provider named 'p'; it was left out",
        "the task Report 报告: there is no agent named 'Writer ✍'; it was left out",
        LEFT_OUT,
    ]
    (task,) = tasks_of(there)[0]["tasks"]
    assert {"agent", "provider"}.isdisjoint(task["document"])
    assert [step["id"] for step in task["document"]["steps"]] == ["read", "write"]


def test_an_unknown_feature_is_left_out_with_a_note(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    result = import_archive(there, tmp_path / "ann.zip", features=())
    assert "'tasks' was left out: this version does not know it" in result.notes
    assert tasks_of(there)[0] == {"tasks": [], "templates": []}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"document": {"version": 1, "name": "x"}}, "cannot be read"),
        ({"project": "first"}, "cannot be read"),
        ({"results": []}, "cannot be read"),
    ],
)
def test_wrong_tasks_leave_nothing(
    here: DataPaths, there: DataPaths, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    refuse_changed(here, there, tmp_path, change, reason)


def test_a_wrong_graph_leaves_nothing(here: DataPaths, there: DataPaths, tmp_path: Path) -> None:
    steps = [{"id": "a", "name": "A", "depends_on": ["b"]}]
    document = {"version": 1, "name": "Wrong", "goal": "Go.", "steps": steps}
    refuse_changed(here, there, tmp_path, {"document": document}, "Wrong in it is not valid")


def refuse_changed(
    here: DataPaths, there: DataPaths, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    good = (tmp_path / "ann.zip").read_bytes()
    person = json.loads(members_of(good)["person.json"])
    person["features"]["tasks"]["tasks"][0] |= change
    (tmp_path / "bad.zip").write_bytes(with_member(good, "person.json", json.dumps(person).encode()))
    with pytest.raises(LuxxError, match=reason):
        import_archive(there, tmp_path / "bad.zip")
    with store_of(there) as store:
        for row in (TaskRow, ProjectRow, TaskTemplateRow):
            assert (
                store.read_now(lambda session, row=row: session.scalar(select(func.count()).select_from(row)))
                == 0
            )


def test_tasks_of_others_are_not_exported(here: DataPaths, tmp_path: Path) -> None:
    def give_to_ben(session: Session) -> None:
        ann = {column.key: getattr(session.get(User, 1), column.key) for column in User.__table__.columns}
        session.execute(insert(User).values(ann | {"id": 2, "username": "Ben", "username_key": "ben"}))
        session.execute(update(TaskRow).values(user_id=2, updated_at=utc_now()))
        session.execute(update(TaskTemplateRow).values(user_id=2, updated_at=utc_now()))

    with store_of(here) as store:
        store.write_now(give_to_ben)
    assert tasks_of(here)[0] == {"tasks": [], "templates": []}


def test_prompts_are_imported_and_a_taken_name_is_left_out(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    assert [note for note in import_archive(there, tmp_path / "ann.zip").notes if "prompt" in note] == []
    again = import_archive(there, tmp_path / "ann.zip")
    assert [note for note in again.notes if "prompt" in note] == [
        "the prompt translate was left out: the name is taken, or there are too many"
    ]

    def prompts(session: Session) -> Any:
        caller = caller_without_sign_in(session.get_one(User, 1))
        return msgspec.to_builtins(export_of(PROMPTS).read(session, caller, []))

    with store_of(here) as one, store_of(there) as other:
        assert one.read_now(prompts) == other.read_now(prompts) != []
