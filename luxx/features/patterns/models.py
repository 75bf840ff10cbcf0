"""Rows of learned patterns: the words by which requests find them, the runs that they come from and that used
them, and what people changed. The database deletes the rows of a pattern with it.
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import Float, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.owned import SharedRow
from luxx.infra.clock import new_id
from luxx.infra.store.tables import Base, UtcDateTime
from luxx.wire.patterns import PatternStatus

NAME_LENGTH = 200
OWNER_LENGTH = 20
WORD_LENGTH = 50


class PatternRow(SharedRow):
    """`signature`, see `slots.py`: the words of the request and the kinds of its slots. `steps` is the JSON
    of a list of `PatternStep`, `tool_chains` of lists of names. `failures_in_row`: those since the last
    success; `used_at`: when a run last used it or it was last learned from one."""

    __tablename__ = "patterns"
    __table_args__ = (
        Index("ix_patterns_user_id_status", "user_id", "status"),
        Index("ix_patterns_tenant_id_is_shared", "tenant_id", "is_shared"),
        Index("ix_patterns_used_at", "used_at"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    description: Mapped[str] = mapped_column(Text, default="")
    signature: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(10), default=PatternStatus.DRAFT.value)
    steps: Mapped[str] = mapped_column(Text, default="[]")
    tool_chains: Mapped[str] = mapped_column(Text, default="[]")
    success_rate: Mapped[float] = mapped_column(Float, default=0.0)
    usage_count: Mapped[int] = mapped_column(default=0)
    success_count: Mapped[int] = mapped_column(default=0)
    failure_count: Mapped[int] = mapped_column(default=0)
    failures_in_row: Mapped[int] = mapped_column(default=0)
    avg_execution_time_ms: Mapped[int] = mapped_column(default=0)
    used_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PatternWordRow(Base):
    """A word of a pattern that is not archived. `owner`: `u` and the id of its user, or `t` and the id of the
    tenant with which it is shared."""

    __tablename__ = "pattern_words"
    __table_args__ = (Index("ix_pattern_words_owner_word", "owner", "word", "pattern_id"),)

    pattern_id: Mapped[str] = mapped_column(ForeignKey("patterns.id", ondelete="CASCADE"), primary_key=True)
    word: Mapped[str] = mapped_column(String(WORD_LENGTH), primary_key=True)
    owner: Mapped[str] = mapped_column(String(OWNER_LENGTH))


class UseKind(StrEnum):
    """`learned`: the pattern comes from the run; `used`: the run was given it; `opinion`: what a user said of
    it, whose `run_id` is `user-` and the id."""

    LEARNED = "learned"
    USED = "used"
    OPINION = "opinion"


SUCCEEDED, FAILED = "success", "failure"


class PatternUseRow(Base):
    """What counted for a pattern, once. `run_id` may name a run that was deleted. `similarity`: only of
    `used`. `outcome`: `success` or `failure`."""

    __tablename__ = "pattern_uses"

    pattern_id: Mapped[str] = mapped_column(ForeignKey("patterns.id", ondelete="CASCADE"), primary_key=True)
    run_id: Mapped[str] = mapped_column(String(36), primary_key=True, index=True)
    kind: Mapped[str] = mapped_column(String(10))
    similarity: Mapped[float | None] = mapped_column(Float)
    outcome: Mapped[str] = mapped_column(String(10))
    used_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PatternChangeRow(Base):
    """A change by a person, or of the status by a rule (`user_id` and `user_name` are null then). `before` is
    the JSON of the fields that changed, as they were."""

    __tablename__ = "pattern_changes"

    id: Mapped[int] = mapped_column(primary_key=True)
    pattern_id: Mapped[str] = mapped_column(ForeignKey("patterns.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"), index=True)
    user_name: Mapped[str | None] = mapped_column(String(200))
    before: Mapped[str] = mapped_column(Text)
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime)
