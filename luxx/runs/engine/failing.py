"""Ends a run that cannot be driven as failed, without a message.

For a run whose log cannot be read, whose message cannot be stored, or which crashed its process too often.
Without this, processes would claim it again and again.
"""

from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, insert, null, select

from luxx.domain.conversations.models import ConversationRow
from luxx.domain.usage.reserve import charge_orphaned_reserve
from luxx.infra.clock import timestamp, utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.log.events import LostRun
from luxx.runs.models import RunEventRow, RunRow
from luxx.runs.question_rows import close_questions
from luxx.runs.subagents import cancel_subagents
from luxx.wire.delta import Usage
from luxx.wire.event import Done, DoneStatus, ErrorEvent
from luxx.wire.run import RunStatus, StopReason

_runs = table_of(RunRow)
_conversations = table_of(ConversationRow)
_encode = msgspec.json.Encoder().encode
_owned_run = select(_runs.c.last_seq, _runs.c.message_id, _runs.c.usage).where(
    _runs.c.id == bindparam("run_id"), _runs.c.fence == bindparam("fence")
)


def fail_run(connection: Connection, run_id: str, fence: int, *, error: str, kind: str) -> None:
    """Ends the run with the events `error` and `done` and releases its conversation, if it has this fence.

    Raises LostRun if another process claims it meanwhile.
    """
    run = connection.execute(_owned_run, {"run_id": run_id, "fence": fence}).one_or_none()
    if run is None:
        return
    usage = msgspec.json.decode(run.usage, type=Usage)
    events = _last_events(run_id, run.message_id or "", usage, error=error, kind=kind)
    rows: list[dict[str, Any]] = [
        {"run_id": run_id, "seq": seq, "type": event.__struct_config__.tag, "data": _encode(event)}
        for seq, event in enumerate(events, run.last_seq + 1)
    ]
    connection.execute(insert(table_of(RunEventRow)), rows)
    ended = connection.execute(
        _runs.update()
        .where(_runs.c.id == run_id, _runs.c.fence == fence)
        .values(
            status=RunStatus.FAILED.value,
            phase=null(),
            stop_reason=StopReason.ERROR.value,
            error=error,
            last_seq=rows[-1]["seq"],
            owner=null(),
            stored_bytes=_runs.c.stored_bytes + sum(len(row["data"]) for row in rows),
            finished_at=utc_now(),
        )
    )
    if ended.rowcount != 1:
        raise LostRun(run_id)
    close_questions(connection, run_id)
    cancel_subagents(connection, run_id)
    connection.execute(_conversations.update().where(_conversations.c.run_id == run_id).values(run_id=null()))
    charge_orphaned_reserve(connection, run_id)


def _last_events(
    run_id: str, message_id: str, usage: Usage, *, error: str, kind: str
) -> list[ErrorEvent | Done]:
    now = timestamp()
    return [
        ErrorEvent(run_id=run_id, timestamp=now, message=error, code=kind),
        Done(
            run_id=run_id,
            timestamp=now,
            message_id=message_id,
            token_count=usage.completion_tokens,
            usage=usage,
            status=DoneStatus.FAILED,
        ),
    ]
