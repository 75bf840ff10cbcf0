"""The run that writes one page of an artifact anew: one turn without tools, whose answer is the page.

The version is made and checked after the turn, and written in the transaction of the events that end the run.
"""

from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.context.messages import PastMessage
from luxx.errors import LuxxError, ProviderFailed
from luxx.features.artifacts.new_page import NewPage, PageRegeneration, request_decoder
from luxx.runs.log.events import LogEntry
from luxx.runs.log.failure import FailedRun, RunFailure
from luxx.runs.orchestration.interface import (
    Decision,
    End,
    NotYet,
    TurnStart,
    Work,
)
from luxx.runs.orchestration.single_turn import SingleTurn
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import TurnState
from luxx.runs.turn.turn_log import (
    CANCELLED,
    Ending,
    ending_events,
    ending_for,
    failure_ending,
    message_origin,
)
from luxx.wire.artifacts import ArtifactUpdated
from luxx.wire.event import CostUpdate, Event, LoggedEvent
from luxx.wire.message import UserContent
from luxx.wire.run import RunStatus, StopReason
from luxx.wire.turn import CHAT_TURN, Usage, steps_text
from luxx.wire.turn_event import Warning

UNCHANGED = "The answer of the model is the page as it is, so no version was made."


class RegenerationOrchestration(SingleTurn):
    """One run in one drive. See `Orchestration`."""

    def __init__(self, head: RunHead, pages: PageRegeneration) -> None:
        super().__init__()
        self._head, self._pages = head, pages
        self._request = request_decoder.decode(head.request)
        self._usage = Usage()
        self._end: End | None = None

    def apply(self, logged: LoggedEvent) -> None:
        super().apply(logged)
        if isinstance(logged.event, CostUpdate):
            self._usage = logged.event.usage

    def turn(self) -> TurnStart:
        return TurnStart(
            turn=CHAT_TURN,
            request=self._request.request,
            past=[PastMessage(user=UserContent(text=self._request.question))],
            tainted_by="read_artifact" if self._request.is_tainted else None,
        )

    def after(self, state: TurnState, ending: Ending) -> Decision:
        return Work(partial(self._finish, state, ending)) if self._end is None else self._end

    async def _finish(self, state: TurnState, ending: Ending) -> None:
        """Makes the end of the run, with the version if the turn has a whole answer."""
        if ending.status != RunStatus.COMPLETED or ending.error is not None:
            self._end = self._end_with(ending)
            return
        try:
            if ending.stop_reason != StopReason.FINISHED:
                raise ProviderFailed(
                    "the page was not changed, because the model's answer is not whole: "
                    f"{ending.stop_reason.value}"
                )
            model = message_origin(self._request.request, state, ending)["model"] or "model"
            page = await self._pages.make(self._head, self._request, steps_text(state.steps), model)
        except LuxxError as error:
            self._end = self._end_with(failure_ending(error))
            return
        self._end = self._end_with(ending, page=page)

    def _end_with(self, ending: Ending, page: NewPage | None = None) -> End:
        origin = None
        entries: list[LogEntry] = []
        if self._answer is not None:
            origin = message_origin(self._request.request, self._answer[0], ending)
        if page is not None:
            draft = page.draft
            entries.append(
                ArtifactUpdated(
                    artifact_id=draft.artifact_id,
                    version=draft.number,
                    pages_changed=draft.pages_changed,
                    problems=page.checked.problems,
                )
            )
        elif ending.status == RunStatus.COMPLETED and ending.error is None:
            entries.append(Warning(message=UNCHANGED))
        return End(
            entries=[*entries, *ending_events("", self._usage, ending, origin)],
            status=ending.status,
            stop_reason=ending.stop_reason.value,
            error=ending.error,
            write=None if page is None else partial(self._write, page),
            on_written=None if page is None else partial(self._count, page),
        )

    def _write(self, page: NewPage, connection: Connection) -> None:
        try:
            self._pages.write(page, connection)
        except NotYet:
            self._end = None  # It is made again from what the artifact is now.
            raise

    def _count(self, page: NewPage) -> None:
        self._pages.service.storage.add(page.owner_id, page.size)

    def on_stop(self, error: LuxxError | None) -> End:
        return self._end_with(CANCELLED if error is None else ending_for(error))


def load_regeneration(
    session: Session, head: RunHead, *, pages: Callable[[], PageRegeneration]
) -> RegenerationOrchestration:
    """The orchestration of a run of the kind `artifact`."""
    del session  # Its request has what it needs of the database.
    return RegenerationOrchestration(head, pages())


def fail_regeneration(connection: Connection, run: FailedRun, error: LuxxError) -> RunFailure:
    """Ends a run that cannot be driven; the artifact stays as it is."""
    del connection
    events: list[Event] = [*ending_events("", run.usage, failure_ending(error))]
    return RunFailure(events=events, status=RunStatus.FAILED)
