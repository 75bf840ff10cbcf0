"""Rows of runs that have ended, for what follows from their end; `events.py` inserts them.

The readers: `streams/notices.py`; `features/chats/queue.py`, if messages wait;
`features/patterns/learning.py`, where the tenant learns patterns; `features/chats/side_runs.py`, where a
model names conversations or proposes next messages.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Select, String, bindparam, exists, func, insert, literal, or_, select
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.accounts.models import Tenant, UserSettings
from luxx.domain.conversations.models import ConversationRow, TitleFrom
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.runs.models import RunRow
from luxx.wire.model_settings import TitleMode
from luxx.wire.run import RunKind, RunStatus

NOTICES, QUEUE, PATTERNS, TITLES = "notices", "queue", "patterns", "titles"
FOLLOW_UPS = "follow_ups"


class RunEndedRow(Base):
    """A run that has ended, until `reader` has done what follows from that. `process` is who ended it.

    The transaction that ends the run inserts it. A reader whose work is rows deletes it in the transaction
    of these rows; one that notifies others deletes it afterwards, so they may be notified twice.
    """

    __tablename__ = "run_ended"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    reader: Mapped[str] = mapped_column(String(20), primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    status: Mapped[str] = mapped_column(String(20))
    subject_id: Mapped[str] = mapped_column(String(36))
    parent_run_id: Mapped[str | None] = mapped_column(String(36))
    user_id: Mapped[int] = mapped_column()
    tenant_id: Mapped[int] = mapped_column()
    process: Mapped[str | None] = mapped_column(String(64))
    ended_at: Mapped[datetime] = mapped_column(UtcDateTime)


_ended, _runs, _tenants = table_of(RunEndedRow), table_of(RunRow), table_of(Tenant)
_conversations, _settings = table_of(ConversationRow), table_of(UserSettings)
_copied = ("kind", "subject_id", "parent_run_id", "user_id", "tenant_id")


def _ending(reader: str, *conditions: Any) -> Select[Any]:
    """The row of an ending for a reader, if the conditions hold."""
    return select(
        _runs.c.id,
        literal(reader, literal_execute=True),
        bindparam("b_status", type_=_ended.c.status.type),
        bindparam("b_now", type_=_ended.c.ended_at.type),
        _runs.c.owner,
        *(_runs.c[name] for name in _copied),
    ).where(_runs.c.id == bindparam("b_id"), _runs.c.fence == bindparam("b_fence"), *conditions)


_learns = exists().where(_tenants.c.id == _runs.c.tenant_id, _tenants.c.learn_patterns)
_unrecorded = exists().where(_conversations.c.id == _runs.c.subject_id, _conversations.c.record.is_(False))
"""At the end of the run: a switch that is turned on later does not count for it."""

_learned_from = _runs.c.kind.in_([RunKind.CHAT.value, RunKind.TASK.value])
_to_learn_from = (_learned_from, _runs.c.parent_run_id.is_(None), _learns, ~_unrecorded)
_of_kept_chat = (
    _conversations.c.id == _runs.c.subject_id,
    _conversations.c.temporary_minutes.is_(None),
)
_is_untitled = exists().where(*_of_kept_chat, _conversations.c.title_from == TitleFrom.WORDS.value)
_names_a_model = (
    _settings.c.user_id == _runs.c.user_id,
    _tenants.c.id == _runs.c.tenant_id,
    _settings.c.lost_title_provider.is_(None),
    or_(
        _settings.c.title_provider_id.is_not(None),
        _tenants.c.title_provider_id.is_not(None) & _tenants.c.lost_title_provider.is_(None),
    ),
)
_is_answered = (
    _runs.c.kind == RunKind.CHAT.value,
    _runs.c.parent_run_id.is_(None),
    bindparam("b_status", type_=_ended.c.status.type) == RunStatus.COMPLETED.value,
)
_wants_titles = exists().where(
    *_names_a_model, func.coalesce(_settings.c.titles, TitleMode.ON) == TitleMode.ON
)
_wants_follow_ups = exists().where(*_names_a_model, _settings.c.follow_ups.is_(True))
_to_title = (*_is_answered, _is_untitled, _wants_titles)
_to_follow_up = (*_is_answered, exists().where(*_of_kept_chat), _wants_follow_ups)
_columns = ["run_id", "reader", "status", "ended_at", "process", *_copied]
INSERT_ENDED = {
    QUEUE: insert(_ended).from_select(_columns, _ending(QUEUE)),
    NOTICES: insert(_ended).from_select(
        _columns,
        _ending(NOTICES).union_all(
            _ending(PATTERNS, *_to_learn_from),
            _ending(TITLES, *_to_title),
            _ending(FOLLOW_UPS, *_to_follow_up),
        ),
    ),
}
"""By the reader that asks for it; patterns are learned from what is announced."""
