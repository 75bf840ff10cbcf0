"""The drive of a chat's run, which is one turn: reads its log, continues the turn, writes how it ended.

`drive` can start at any point of a run and any number of times, in the process that holds the run's fence: it
uses the log, not memory. `engine/driver.py` starts it.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import structlog
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from luxx.domain.conversations.path import read_path
from luxx.domain.conversations.prompt import PastMessage
from luxx.errors import LuxxError
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import CancelSignal, WallTime
from luxx.runs.log.events import LostRun, RunLog, read_log
from luxx.runs.models import RunRow
from luxx.runs.turn.context import RunContext, RunServices
from luxx.runs.turn.ending import close_chat
from luxx.runs.turn.resources import RunInputs
from luxx.runs.turn.spending import Spending
from luxx.runs.turn.state import (
    ChatRequest,
    NextAction,
    RunSpec,
    TurnState,
    decide,
    fold,
    initial_state,
    with_fallback,
)
from luxx.runs.turn.turn import INTERNAL_ERROR, Turn, TurnServices
from luxx.runs.turn.turn_log import TurnLog
from luxx.wire.message import UserContent
from luxx.wire.run import RunKind

OnQuestionAsked = Callable[[int], Awaitable[None]]
"""Called with the user's id when a run begins to wait: a new rule may already allow what the run asks for."""

DriveOther = Callable[[RunKind, str, int, CancelSignal], Awaitable[None]]
"""Drives a run of another kind (`runs/orchestration/runs.py`)."""

logger = structlog.get_logger()

_runs = table_of(RunRow)
_run = select(
    _runs.c.user_id,
    _runs.c.tenant_id,
    _runs.c.subject_id,
    _runs.c.message_id,
    _runs.c.is_cancelled,
    _runs.c.driven_seconds,
    _runs.c.request,
    _runs.c.last_seq,
    _runs.c.kind,
).where(_runs.c.id == bindparam("run_id"), _runs.c.fence == bindparam("fence"))
_request = msgspec.json.Decoder(ChatRequest)


def read_spec(connection: Connection, run_id: str, fence: int) -> RunSpec | RunKind | None:
    """The specification of a chat's run; of another its kind; None if it was deleted or claimed elsewhere."""
    run = connection.execute(_run, {"run_id": run_id, "fence": fence}).one_or_none()
    if run is None:
        return None
    if run.kind != RunKind.CHAT:
        return RunKind(run.kind)
    request = _request.decode(run.request)
    if run.message_id is None and request.delegated is None and request.given is None:
        return None
    return RunSpec(
        run_id=run_id,
        user_id=run.user_id,
        tenant_id=run.tenant_id,
        conversation_id=run.subject_id,
        message_id=run.message_id or "",
        fence=fence,
        is_cancelled=run.is_cancelled,
        driven_seconds=run.driven_seconds,
        request=request,
        past=_past_messages(connection, request),
        events=read_log(connection, run_id) if run.last_seq else [],
    )


def _past_messages(connection: Connection, request: ChatRequest) -> list[PastMessage]:
    if request.delegated is not None:
        return [PastMessage(user=UserContent(text=request.delegated.task))]
    if request.given is not None:
        return request.given.past
    return read_path(connection, request.parent_id, with_images=request.takes_images)


class RunLoop:
    """Drives the runs of chats, and passes on the others."""

    def __init__(
        self,
        services: RunServices,
        turn_services: TurnServices,
        drive_other: DriveOther,
        on_question: OnQuestionAsked,
    ) -> None:
        self._services = services
        self._turn_services = turn_services
        self._drive_other = drive_other
        self._on_question = on_question

    async def drive(self, run_id: str, fence: int, signal: CancelSignal) -> None:
        """Continues the run from the end of its log until it ends or waits for a person.

        Returns at once if this process no longer owns the run. Raises LostRun if another process claims it.
        """
        services = self._services
        loaded = await services.store.read(lambda session: self._load(session, run_id, fence))
        if loaded is None:
            return
        if isinstance(loaded, RunKind):
            await self._drive_other(loaded, run_id, fence, signal)
            return
        spec, state, inputs = loaded
        if spec.is_cancelled:
            signal.fire()
        notify = partial(services.notify, run_id, spec.user_id)
        # The run may have been queued or lost before, so its phase has changed.
        notify()
        with (
            services.hub.driven(run_id, state.seq, fence) as channel,
            services.metrics.run(RunKind.CHAT) as record_end,
        ):
            run_log = RunLog(
                services.store, channel, signal, run_id=run_id, fence=fence, seq=state.seq, on_status=notify
            )
            log = TurnLog(run_log, state)
            async with self._wall_time(spec, signal) as wall_time:
                run = RunContext(
                    services=services,
                    spec=spec,
                    log=log,
                    channel=channel,
                    signal=signal,
                    spending=Spending(services.config.limits, spec, log),
                    wall_time=wall_time,
                )
                turn = Turn(run, self._turn_services, partial(close_chat, spec), is_recovered=fence > 1)
                await self._proceed_or_fail(turn, inputs)
                if not turn.status:
                    await wall_time.save()
                services.storage.add(spec.user_id, run_log.stored_total)
            if turn.status:
                record_end(turn.status, turn.usage or log.state.usage)
        if not turn.status and decide(log.state) == NextAction.WAIT:
            await self._on_question(spec.user_id)

    def _load(
        self, session: Session, run_id: str, fence: int
    ) -> tuple[RunSpec, TurnState, RunInputs | LuxxError] | RunKind | None:
        spec = read_spec(session.connection(), run_id, fence)
        if not isinstance(spec, RunSpec):
            return spec
        state = fold(spec.events, initial_state(spec))
        spec = with_fallback(spec, state)
        try:
            return spec, state, self._turn_services.resources.read(session, spec)
        except LuxxError as error:
            return spec, state, error

    def _wall_time(self, spec: RunSpec, signal: CancelSignal) -> WallTime:
        return WallTime(
            self._services.store,
            signal,
            run_id=spec.run_id,
            fence=spec.fence,
            limit=self._services.config.limits.seconds_per_run,
            earlier_seconds=spec.driven_seconds,
        )

    async def _proceed_or_fail(self, turn: Turn, inputs: RunInputs | LuxxError) -> None:
        """Runs the turn; if its ending cannot be stored, writes only the row and the last events."""
        try:
            await turn.run.spending.recover_reservation()
            await turn.proceed(inputs)
        except (LostRun, OperationalError, InterfaceError):
            # Another process owns the run, or the database is unavailable: the run continues later.
            raise
        except Exception:
            spec = turn.run.spec
            logger.exception("run_failed_permanently", run_id=spec.run_id)
            await self._services.fail_run(spec.run_id, spec.fence, INTERNAL_ERROR)
            self._services.notify(spec.run_id, spec.user_id)
