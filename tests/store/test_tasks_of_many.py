"""Tasks on both databases: status and filters as SQL, versions, two changes at once, deletion."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_user import add_user
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.skills.files import SkillCopies
from luxx.domain.skills.layers import SkillLayers
from luxx.domain.skills.registry import SkillDirectories
from luxx.errors import NotFound
from luxx.features.tasks.checks import ReferenceChecker
from luxx.features.tasks.graph import TaskStepStatus
from luxx.features.tasks.models import (
    NewTask,
    NewTaskStep,
    TaskRow,
    TaskStatus,
    TaskStepChanges,
    TaskStepRow,
    TaskVersionRow,
)
from luxx.features.tasks.queries import TaskFilter
from luxx.features.tasks.service import TaskService
from luxx.infra.bus.core import Bus
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.models import RunRow
from luxx.runs.service import delete_runs
from luxx.tools.core import ToolRegistry
from luxx.tools.sources import ToolSources
from luxx.wire.tool import CommandPermission

assert Services  # Importing `Services` imports every table.
ANN = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id=""
)
STEPS = [NewTaskStep(id="a", name="A"), NewTaskStep(id="b", name="B", depends_on=["a"])]


async def never_stop(_caller: Caller, run_id: str) -> None:
    raise AssertionError(f"the run {run_id} has ended")


@pytest.fixture
def tasks(ready_url: str, tmp_path: Path) -> Iterator[TaskService]:
    store = Store(open_engine(resolve_url(ready_url, tmp_path)))
    store.write_now(add_user)
    layers = SkillLayers(SkillDirectories([], tmp_path), SkillCopies(tmp_path), Bus("one"))
    references = ReferenceChecker(ToolSources(ToolRegistry()), layers)
    yield TaskService(store, references, stop_run=never_stop, delete_runs=delete_runs)
    store.close()


def add_run(session: Session, task_id: str, status: str) -> None:
    run_id = new_id()
    session.execute(insert(RunRow).values(
        id=run_id, user_id=1, tenant_id=1, kind="task", subject_id=task_id, status=status, request="{}",
        created_at=utc_now(),
    ))  # fmt: skip
    session.execute(update(TaskRow).where(TaskRow.id == task_id).values(run_id=run_id))


async def test_status_and_text_filter_the_list(tasks: TaskService) -> None:
    ids: dict[str, str] = {}
    for status in ("none", "running", "waiting", "completed", "cancelled"):
        created = await tasks.create(ANN, NewTask(name=f"100% {status}", goal="ÄRGER", steps=STEPS))
        ids[status] = created.id
        if status != "none":
            await tasks.store.write(lambda session, status=status: add_run(session, ids[status], status))
    failed = TaskStepRow.task_id == ids["completed"], TaskStepRow.id == "b"
    await tasks.store.write(
        lambda session: session.execute(
            update(TaskStepRow).where(*failed).values(status=TaskStepStatus.FAILED.value)
        )
    )

    async def found(**filters: Any) -> list[str]:
        items, total = await tasks.list_page(ANN, TaskFilter(**filters), page=1, page_size=100)
        assert total == len(items)
        return [task.name.removeprefix("100% ") for task in items]

    assert await found(status=TaskStatus.PENDING) == ["none"]
    assert await found(status=TaskStatus.RUNNING) == ["running"]
    assert await found(status=TaskStatus.BLOCK) == ["waiting"]
    assert await found(status=TaskStatus.FAILED) == ["completed"]
    assert await found(status=TaskStatus.TERMINATED) == ["cancelled"]
    assert await found(status=TaskStatus.COMPLETED) == []
    assert await found(q="00% wai") == ["waiting"]
    assert len(await found(q="ärger")) == 5
    assert await found(q="0%%") == []
    (item,), _ = await tasks.list_page(ANN, TaskFilter(q="100% com"), page=1, page_size=1)
    assert item.step_counts == {"pending": 1, "failed": 1}


async def test_changes_at_once_all_count_and_each_keeps_a_version(tasks: TaskService) -> None:
    created = await tasks.create(ANN, NewTask(name="t", goal="g", steps=STEPS))
    added = [tasks.add_steps(ANN, created.id, [NewTaskStep(name=f"n{number}")]) for number in range(8)]
    changed = [
        tasks.update_step(ANN, created.id, "a", TaskStepChanges(goal=f"goal {number}")) for number in range(8)
    ]
    await asyncio.gather(*added, *changed)
    steps = (await tasks.get(ANN, created.id)).steps
    assert [step.id for step in steps] == ["a", "b", *(f"s{number}" for number in range(1, 9))]
    versions, total = await tasks.versions(ANN, created.id, page=1, page_size=100)
    assert [version.number for version in versions] == list(range(16, 0, -1))
    assert total == 16


async def test_deleting_a_task_deletes_what_belongs_to_it(tasks: TaskService) -> None:
    created = await tasks.create(ANN, NewTask(name="t", goal="g", steps=STEPS))
    other = await tasks.create(ANN, NewTask(name="other", goal="g", steps=STEPS))
    await tasks.delete_step(ANN, created.id, "b")
    for status in ("failed", "completed"):
        await tasks.store.write(lambda session, status=status: add_run(session, created.id, status))
    await tasks.delete(ANN, created.id)
    with pytest.raises(NotFound):
        await tasks.get(ANN, created.id)
    assert await counts(tasks.store) == [1, 2, 0, 0]
    assert (await tasks.get(ANN, other.id)).steps[1].id == "b"
    await tasks.store.write(lambda session: session.execute(delete(User).where(User.id == 1)))
    assert await counts(tasks.store) == [0, 0, 0, 0]


async def counts(store: Store) -> list[int]:
    """The rows of tasks, steps, versions and runs."""
    tables = (TaskRow, TaskStepRow, TaskVersionRow, RunRow)
    return await store.read(
        lambda session: [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]
    )
