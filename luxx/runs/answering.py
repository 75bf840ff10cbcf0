"""The stored answer of a run, for who waits for it without following it, or why there is none."""

from typing import Any

from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.conversations.service import own_message
from luxx.conversations.views import MessageView, message_view
from luxx.errors import Conflict, ProviderFailed, Unavailable
from luxx.runs.events import read_last_error
from luxx.runs.idle import waits_below
from luxx.runs.spending import nothing_fits
from luxx.runs.views import own_run, run_view
from luxx.wire.run import ENDED, Run, RunStatus, StopReason

UNFINISHED = "the answer is not finished; follow its run"
UNDER_WAY = frozenset({RunStatus.QUEUED, RunStatus.RUNNING})


def where(run: Run) -> dict[str, Any]:
    """The run and the message, as errors name them."""
    return {"run_id": run.id, "message_id": run.message_id}


def answer_of(session: Session, caller: Caller, run_id: str) -> MessageView | None:
    """The answer of a run that has ended; None while it is under way.

    Raises as `RunService.answer`; a subagent that waits for a person is as good as the run that does.
    """
    run = run_view(own_run(session, caller, run_id))
    asks = run.id if run.status == RunStatus.WAITING else None
    if run.status in UNDER_WAY:
        asks = waits_below(session.connection(), run.id)
        if asks is None:
            return None
    if asks is not None:
        raise Conflict(
            f"the run waits for a person; answer what GET /runs/{asks}/questions shows",
            kind="run_waiting",
            detail=where(run),
        )
    if run.status not in ENDED or run.message_id is None:
        raise Unavailable(UNFINISHED, kind="run_active", detail=where(run))
    if run.status == RunStatus.FAILED:
        said = read_last_error(session.connection(), run.id)
        kind = said.code if said is not None else None
        raise ProviderFailed(run.error or "the run failed", kind=kind, detail=where(run))
    message = message_view(own_message(session, caller, run.message_id))
    if run.stop_reason in (StopReason.TOKENS, StopReason.COST) and not message.steps:
        raise nothing_fits(read_last_error(session.connection(), run.id), where(run))
    return message
