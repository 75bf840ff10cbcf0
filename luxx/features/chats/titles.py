"""Titles: after the first answer of a conversation, a side run (`side_runs.py`) writes a title in place of
the first words.

Each conversation is asked for once. The title is stored only where the first words still stand and nobody has
typed a title.
"""

import re
from functools import partial
from importlib.resources import files

from sqlalchemy import Connection, bindparam, null, update
from sqlalchemy.orm import Session

from luxx.domain.conversations.access import shortened
from luxx.domain.conversations.models import ConversationRow, TitleFrom
from luxx.domain.conversations.search_index import index_title
from luxx.errors import InvalidInput
from luxx.features.chats.side_runs import SideTurn, SideWork, plain_lines, unquoted
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunRow
from luxx.runs.orchestration.interface import Orchestration, Write
from luxx.runs.turn.run_rows import RunHead
from luxx.wire.event import CallPurpose
from luxx.wire.orchestration_event import TitleComplete
from luxx.wire.run import RunKind, RunStatus

_conversations = table_of(ConversationRow)
_ask = (
    update(_conversations)
    .where(
        _conversations.c.id == bindparam("b_id"),
        _conversations.c.import_id.is_(None),
        _conversations.c.title_from == TitleFrom.WORDS.value,
    )
    .values(title_from=TitleFrom.ASKED.value)
)
_set_title = (
    update(_conversations)
    .where(
        _conversations.c.id == bindparam("b_id"),
        _conversations.c.import_id.is_(None),
        _conversations.c.title_from == TitleFrom.ASKED.value,
        _conversations.c.title == bindparam("b_before"),
    )
    .values(title=bindparam("b_title"), title_from=null())
)


def _claim(connection: Connection, answered: RunRow) -> bool:
    return connection.execute(_ask, {"b_id": answered.subject_id}).rowcount == 1


TITLE_WORK = SideWork(
    kind=RunKind.TITLE,
    prompt=files("luxx.features.chats").joinpath("title.md").read_text("utf-8").strip(),
    claim=_claim,
)


class TitleOrchestration(SideTurn):
    """One run in one drive. See `Orchestration`."""

    complete = TitleComplete
    purpose = CallPurpose.TITLE

    def read(self, answer: str) -> tuple[TitleComplete, Write]:
        title = read_title(answer)
        if not title:
            raise InvalidInput("it has no title", kind="answer_unusable")
        return TitleComplete(status=RunStatus.COMPLETED.value, title=title), partial(self._store, title)

    def _store(self, title: str, connection: Connection) -> None:
        values = {"b_id": self._head.subject_id, "b_before": self._request.before, "b_title": title}
        if connection.execute(_set_title, values).rowcount:
            index_title(
                connection, user_id=self._head.user_id, conversation_id=self._head.subject_id, title=title
            )


_label = re.compile(r"^(?:title|titel|titre|título|titolo|标题|標題)\s*[:：]\s*", re.IGNORECASE)


def read_title(answer: str) -> str:
    """The first line of an answer that has words, as plain text of at most TITLE_LENGTH characters; empty if
    it has none."""
    for line in plain_lines(answer):
        title = unquoted(_label.sub("", line).strip())
        if any(character.isalnum() for character in title):
            return shortened(title)
    return ""


def load_title(session: Session, head: RunHead) -> Orchestration:
    """The orchestration of a run of the kind `title`."""
    del session  # Its request has what it needs of the database.
    return TitleOrchestration(head)
