"""The drive of a run with several turns: reads its log and continues by the orchestration of its kind."""

from functools import partial

import msgspec
import structlog
from sqlalchemy import bindparam, select
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from luxx.errors import Unavailable
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import CancelSignal, WallTime
from luxx.runs.engine.driver import OnQuestionAsked
from luxx.runs.log.events import LostRun, RunLog, read_log
from luxx.runs.models import RunRow
from luxx.runs.orchestration.drive import OrchestratedDrive
from luxx.runs.orchestration.interface import Loaders, Orchestration, RunHead
from luxx.runs.orchestration.shared_log import SharedLog
from luxx.runs.turn.context import RunServices
from luxx.runs.turn.turn import INTERNAL_ERROR, TurnServices
from luxx.wire.event import LoggedEvent
from luxx.wire.run import ENDED, RunKind, RunStatus

_runs = table_of(RunRow)
_head = select(*(_runs.c[name] for name in RunHead.__struct_fields__)).where(
    _runs.c.id == bindparam("run_id"), _runs.c.fence == bindparam("fence")
)

logger = structlog.get_logger()


class OrchestratedRuns:
    """Drives the runs of the kinds that have a loader."""

    def __init__(
        self,
        services: RunServices,
        turn_services: TurnServices,
        loaders: Loaders,
        on_question: OnQuestionAsked,
    ) -> None:
        self._services = services
        self._turn_services = turn_services
        self._loaders = loaders
        self._on_question = on_question

    async def drive(self, kind: RunKind, run_id: str, fence: int, signal: CancelSignal) -> None:
        """Continues the run from the end of its log until it ends, pauses or waits for a person.

        Returns at once if this process no longer owns the run. Raises LostRun if another process claims it.
        """
        services = self._services
        loaded = await services.store.read(lambda session: self._load(session, kind, run_id, fence))
        if loaded is None:
            return
        head, orchestration, events = loaded
        if head.is_cancelled:
            signal.fire()
        notify = partial(services.notify, run_id, None)  # In every process: members may listen there.
        notify()
        with (
            services.hub.driven(run_id, head.last_seq, fence) as channel,
            services.metrics.run(kind) as record_end,
        ):
            # The signal of the run interrupts its turns, which shield their own appends.
            run_log = RunLog(
                services.store, channel, CancelSignal(), run_id=run_id, fence=fence, seq=head.last_seq,
                on_status=notify,
            )  # fmt: skip
            log = SharedLog(run_log, orchestration.apply)
            wall_time = WallTime(
                services.store, signal, run_id=run_id, fence=fence,
                limit=services.config.limits.seconds_per_run, earlier_seconds=head.driven_seconds,
                is_recorded=True,
            )  # fmt: skip
            async with wall_time:
                drive = OrchestratedDrive(head, orchestration, log, channel, signal, wall_time, services)
                drive.recover(events)
                await self._run_or_fail(drive)
                if drive.status not in ENDED:
                    await wall_time.save()
                services.storage.add(head.user_id, run_log.stored_total)
            if drive.status in ENDED:
                record_end(drive.status.value, log.usage)
        if drive.status == RunStatus.WAITING:
            await self._on_question(head.user_id)

    def _load(
        self, session: Session, kind: RunKind, run_id: str, fence: int
    ) -> tuple[RunHead, Orchestration, list[LoggedEvent]] | None:
        connection = session.connection()
        row = connection.execute(_head, {"run_id": run_id, "fence": fence}).one_or_none()
        if row is None:
            return None
        if kind not in self._loaders:
            raise Unavailable(f"this server cannot drive a run of the kind {kind}", kind="kind_unknown")
        head = msgspec.convert(row, RunHead, from_attributes=True)
        return head, self._loaders[kind](session, head), read_log(connection, run_id)

    async def _run_or_fail(self, drive: OrchestratedDrive) -> None:
        try:
            await drive.run(self._turn_services)
        except (LostRun, OperationalError, InterfaceError):
            # Another process owns the run, or the database is unavailable: the run continues later.
            raise
        except Exception:
            head, services = drive.head, self._services
            logger.exception("run_failed", run_id=head.id)
            await drive.stop_tasks()
            status = await services.fail_run(head.id, head.fence, INTERNAL_ERROR)
            drive.status = status or drive.status
            services.notify(head.id, None)
        finally:
            await drive.stop_tasks()
