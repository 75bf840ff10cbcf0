"""Starts tasks at their `start_at`, in whichever process is up: each once.

That a task was started and its run are written in one transaction, so a process that is killed leaves a task
either to be started or with a run, which other processes continue. A task that cannot be started gets a run
that is paused with the reason, which notifies its owner; `resume` continues it.
"""

from dataclasses import dataclass

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.errors import LuxxError, Unavailable
from luxx.features.tasks.models import TaskRow
from luxx.features.tasks.proposals import fail_task
from luxx.features.tasks.running import TaskRunService
from luxx.features.tasks.times import take_start, tasks_to_start
from luxx.infra.clock import new_id
from luxx.runs.admission import newest_run
from luxx.runs.log.failure import write_failure
from luxx.runs.turn.run_rows import RunOwner, insert_run, new_run
from luxx.wire.run import ENDED, RunKind, RunStatus

INTERNAL_ERROR = LuxxError("an internal error; the server log has the details")

logger = structlog.get_logger()


class _NotDue(Exception):
    """Another process has started the task, or a person has changed its time."""


@dataclass(frozen=True, slots=True)
class TaskSchedule:
    """One per process."""

    runs: TaskRunService

    async def start_due(self) -> None:
        """Starts the tasks whose time has come; called after each heartbeat."""
        for task_id, user_id in await self.runs.admission.services.store.read(tasks_to_start):
            try:
                await self._start(task_id, user_id)
            except (_NotDue, OperationalError, InterfaceError):
                continue  # The next heartbeat finds it if it is still due.
            except Unavailable:
                return  # This server stops; another one, or its next start, starts them.
            except LuxxError as error:
                await self._refuse(task_id, error)
            except Exception:
                logger.exception("task_not_started", task_id=task_id)
                await self._refuse(task_id, INTERNAL_ERROR)

    async def _start(self, task_id: str, user_id: int) -> None:
        store = self.runs.admission.services.store
        caller = await store.read_rows(lambda connection: user_as_caller(connection, user_id))

        def take(session: Session, task: TaskRow) -> None:
            if not take_start(session, task.id):
                raise _NotDue

        run = await self.runs.start_prepared(caller, task_id, take)
        logger.info("task_started_at_its_time", task_id=task_id, run_id=run.id)

    async def _refuse(self, task_id: str, error: LuxxError) -> None:
        """Gives the task a paused run with the reason. Where it has one in progress or paused, or nothing is
        left to execute, its state says so already."""

        def work(session: Session) -> RunOwner | None:
            task = session.get(TaskRow, task_id, with_for_update=True)
            if task is None or not take_start(session, task_id):
                return None
            run = newest_run(session, task)
            if error.kind == "nothing_to_execute" or (run is not None and run.status not in ENDED):
                return None
            owner = RunOwner(task.user_id, task.tenant_id)
            connection = session.connection()
            refused = new_run(run_id, task.id, RunStatus.QUEUED, kind=RunKind.TASK)
            insert_run(connection, refused, "{}", owner, self.runs.admission.engine.process)
            task.run_id = run_id
            session.flush()
            reason = LuxxError(f"this task was not started at its time: {error.message}", kind=error.kind)
            write_failure(connection, {RunKind.TASK: fail_task}, run_id, 0, reason)
            return owner

        run_id = new_id()
        services = self.runs.admission.services
        owner = await services.store.write(work)
        logger.warning("task_start_refused", task_id=task_id, kind=error.kind)
        if owner is not None:
            services.notify(run_id, owner.user_id)
