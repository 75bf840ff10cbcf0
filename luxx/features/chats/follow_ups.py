"""Follow-ups: after a whole answer, a side run (`side_runs.py`) proposes up to three next messages, for those
who have turned this on.

They belong to the newest answer of the conversation, whose row keeps them; those of the next answer take
their place. There are none once the conversation has untrusted content: what is proposed may be the wish of
whoever wrote that.
"""

from functools import partial
from importlib.resources import files

import msgspec
from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.orm import Session

from luxx.domain.conversations.access import PATH_TO_ROOT
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.errors import InvalidInput
from luxx.features.chats.side_runs import SideTurn, SideWork, plain_lines, unquoted
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow, RunRow
from luxx.runs.orchestration.interface import Orchestration, Write
from luxx.runs.turn.run_rows import RunHead
from luxx.wire.event import CallPurpose
from luxx.wire.message import FollowUps
from luxx.wire.orchestration_event import FollowUpsComplete
from luxx.wire.run import RunKind, RunStatus

MOST = 3
MAX_CHARACTERS = 200
"""A longer line is no short message; it is left out."""

_conversations, _messages = table_of(ConversationRow), table_of(MessageRow)
_events = table_of(RunEventRow)
_is_newest = (
    _conversations.c.id == bindparam("b_id"),
    _conversations.c.import_id.is_(None),
    _conversations.c.temporary_minutes.is_(None),
    _conversations.c.selected_leaf_id == bindparam("b_message"),
)
_newest = select(_conversations.c.id).where(*_is_newest)
_tainted = (
    select(_events.c.run_id).where(_events.c.run_id == bindparam("run"), _events.c.type == "tainted").limit(1)
)
_tainted_before = (
    select(_messages.c.id)
    .join(PATH_TO_ROOT, PATH_TO_ROOT.c.id == _messages.c.id)
    .where(_messages.c.content.contains('"is_untrusted":true', autoescape=True))
    .limit(1)
)
"""A step of an earlier answer. Within a text, the quotation marks of this JSON are escaped."""

_set_follow_ups = update(_conversations).where(*_is_newest).values(follow_ups=bindparam("b_texts"))


def _claim(connection: Connection, answered: RunRow) -> bool:
    values = {"b_id": answered.subject_id, "b_message": answered.message_id}
    if connection.scalar(_newest, values) is None:
        return False
    of_run = connection.scalar(_tainted, {"run": answered.id})
    return of_run is None and connection.scalar(_tainted_before, {"leaf_id": answered.message_id}) is None


FOLLOW_UP_WORK = SideWork(
    kind=RunKind.FOLLOW_UPS,
    prompt=files("luxx.features.chats").joinpath("follow_ups.md").read_text("utf-8").strip(),
    claim=_claim,
)


class FollowUpOrchestration(SideTurn):
    """One run in one drive. See `Orchestration`."""

    complete = FollowUpsComplete
    purpose = CallPurpose.FOLLOW_UPS

    def read(self, answer: str) -> tuple[FollowUpsComplete, Write]:
        texts = read_follow_ups(answer)
        if not texts:
            raise InvalidInput("it has no message", kind="answer_unusable")
        event = FollowUpsComplete(status=RunStatus.COMPLETED.value, follow_ups=texts)
        return event, partial(self._store, texts)

    def _store(self, texts: list[str], connection: Connection) -> None:
        message_id = self._request.message_id
        stored = msgspec.json.encode(FollowUps(message_id=message_id, texts=texts)).decode()
        values = {"b_id": self._head.subject_id, "b_message": message_id, "b_texts": stored}
        connection.execute(_set_follow_ups, values)


def read_follow_ups(answer: str) -> list[str]:
    """The first MOST different lines of an answer, as plain text."""
    lines = (unquoted(line) for line in plain_lines(answer))
    return list(dict.fromkeys(line for line in lines if 0 < len(line) <= MAX_CHARACTERS))[:MOST]


def load_follow_ups(session: Session, head: RunHead) -> Orchestration:
    """The orchestration of a run of the kind `follow_ups`."""
    del session  # Its request has what it needs of the database.
    return FollowUpOrchestration(head)
