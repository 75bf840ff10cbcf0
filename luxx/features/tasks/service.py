"""Tasks through the API: create, list, change, delete, their graphs, versions, export and import.

Each method is one transaction around the functions of `changes.py` and `queries.py`, which code with a
transaction of its own calls itself.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.features.tasks import changes
from luxx.features.tasks.checks import ReferenceChecker, TaskErrors
from luxx.features.tasks.document import TaskDocument, document_of, new_task_of
from luxx.features.tasks.graph import TaskGraph, TaskGraphView
from luxx.features.tasks.models import (
    NewTask,
    NewTaskStep,
    TaskChanges,
    TaskStepChanges,
    TaskStepView,
    TaskSummary,
    TaskVersion,
    TaskVersionSummary,
    TaskView,
)
from luxx.features.tasks.queries import (
    TaskFilter,
    graph_of_rows,
    graph_view,
    own_task,
    page_of_tasks,
    page_of_versions,
    statuses_of,
    step_row,
    step_rows,
    step_view,
    task_view,
    version_view,
)
from luxx.infra.field_errors import NOTHING_WRONG
from luxx.infra.store.engine import Store
from luxx.runs.models import RunRow, is_unended


@dataclass(frozen=True, slots=True)
class TaskService:
    """One per process. `stop_run` cancels a run of the caller and waits for its end; `delete_runs` deletes
    some runs of a subject and returns whether there may be more.
    """

    store: Store
    references: ReferenceChecker
    stop_run: Callable[[Caller, str], Awaitable[None]]
    delete_runs: Callable[[Session, str], bool]

    async def list_page(
        self, caller: Caller, task_filter: TaskFilter, *, page: int, page_size: int
    ) -> tuple[list[TaskSummary], int]:
        """The caller's matching tasks in the wanted order, and the number of matches."""
        return await self.store.read(
            lambda session: page_of_tasks(session, caller, task_filter, page=page, page_size=page_size)
        )

    async def create(self, caller: Caller, new: NewTask) -> TaskView:
        """Raises InvalidInput or NotFound with every problem; then nothing is created."""
        return await self.store.write(
            lambda session: task_view(
                session, changes.create_task(session, caller, new, self.references, TaskErrors())
            )
        )

    async def import_task(
        self, caller: Caller, document: TaskDocument, wrong: Mapping[str, str] = NOTHING_WRONG
    ) -> TaskView:
        """Creates a task from a document, unless fields of it are `wrong`. Raises what `create` raises."""

        def work(session: Session) -> TaskView:
            errors = TaskErrors(wrong)
            new = new_task_of(session, caller, document, errors)
            return task_view(session, changes.create_task(session, caller, new, self.references, errors))

        return await self.store.write(work)

    async def export(self, caller: Caller, task_id: str) -> TaskDocument:
        """The document of a task. Raises NotFound, as all methods that take an id."""
        return await self.store.read(
            lambda session: document_of(session, caller, own_task(session, caller, task_id))
        )

    async def get(self, caller: Caller, task_id: str) -> TaskView:
        return await self.store.read(lambda session: task_view(session, own_task(session, caller, task_id)))

    async def update(self, caller: Caller, task_id: str, new: TaskChanges) -> TaskView:
        """Sets the given fields; the graph has its own methods. Raises what `create` raises."""

        def work(session: Session) -> TaskView:
            row = own_task(session, caller, task_id, is_locked=True)
            changes.change_task(session, caller, row, new)
            return task_view(session, row)

        return await self.store.write(work)

    async def delete(self, caller: Caller, task_id: str) -> None:
        """Stops the active run, then deletes the task with its steps, versions and runs."""

        def active_run(session: Session) -> str | None:
            row = own_task(session, caller, task_id)
            return session.scalar(select(RunRow.id).where(RunRow.id == row.run_id, is_unended))

        def work(session: Session) -> bool:
            row = own_task(session, caller, task_id, is_locked=True)
            if self.delete_runs(session, row.id):
                return True
            session.delete(row)
            return False

        run_id = await self.store.read(active_run)
        if run_id is not None:
            await self.stop_run(caller, run_id)
        while await self.store.write(work):
            pass

    # The graph

    async def add_steps(self, caller: Caller, task_id: str, steps: list[NewTaskStep]) -> TaskView:
        """Adds steps. Raises Conflict while a run is in progress, and what `create` raises."""

        def work(session: Session) -> TaskView:
            row = own_task(session, caller, task_id, is_locked=True)
            changes.add_steps(session, caller, row, steps, self.references)
            return task_view(session, row)

        return await self.store.write(work)

    async def replace_graph(self, caller: Caller, task_id: str, steps: list[NewTaskStep]) -> TaskView:
        """Replaces all steps. Raises what `add_steps` raises."""

        def work(session: Session) -> TaskView:
            row = own_task(session, caller, task_id, is_locked=True)
            changes.replace_graph(session, caller, row, steps, self.references)
            return task_view(session, row)

        return await self.store.write(work)

    async def update_step(
        self, caller: Caller, task_id: str, step_id: str, new: TaskStepChanges
    ) -> TaskStepView:
        """Sets the given fields of a step. Raises what `add_steps` raises."""

        def work(session: Session) -> TaskStepView:
            row = own_task(session, caller, task_id, is_locked=True)
            changes.change_step(session, caller, row, step_id, new, self.references)
            return step_view(step_row(session, row, step_id))

        return await self.store.write(work)

    async def delete_step(self, caller: Caller, task_id: str, step_id: str) -> None:
        """Raises Conflict if another step depends on it, or while a run is in progress."""

        def work(session: Session) -> None:
            row = own_task(session, caller, task_id, is_locked=True)
            changes.delete_step(session, row, step_id)

        await self.store.write(work)

    async def graph(self, caller: Caller, task_id: str) -> TaskGraphView:
        def work(session: Session) -> TaskGraphView:
            return graph_view(step_rows(session, own_task(session, caller, task_id).id))

        return await self.store.read(work)

    async def plain_graph(self, caller: Caller, task_id: str) -> TaskGraph:
        """The graph itself, for drawings."""

        def work(session: Session) -> TaskGraph:
            return graph_of_rows(step_rows(session, own_task(session, caller, task_id).id))

        return await self.store.read(work)

    async def ready_steps(self, caller: Caller, task_id: str) -> list[TaskStepView]:
        """The pending steps whose dependencies are all completed, in their order."""

        def work(session: Session) -> list[TaskStepView]:
            rows = step_rows(session, own_task(session, caller, task_id).id)
            ready = set(graph_of_rows(rows).ready(statuses_of(rows)))
            return [step_view(row) for row in rows if row.id in ready]

        return await self.store.read(work)

    async def versions(
        self, caller: Caller, task_id: str, *, page: int, page_size: int
    ) -> tuple[list[TaskVersionSummary], int]:
        """The earlier graphs of a task, newest first, and their number."""

        def work(session: Session) -> tuple[list[TaskVersionSummary], int]:
            row = own_task(session, caller, task_id)
            return page_of_versions(session, row, page=page, page_size=page_size)

        return await self.store.read(work)

    async def version(self, caller: Caller, task_id: str, number: int) -> TaskVersion:
        return await self.store.read(
            lambda session: version_view(session, own_task(session, caller, task_id), number)
        )
