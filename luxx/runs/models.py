"""Tables of processes and runs, of event logs, tool calls, full tool outputs, questions and members."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    Select,
    String,
    Text,
    and_,
    bindparam,
    false,
    func,
    literal,
    or_,
    select,
    text,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.domain.accounts.caller import Caller
from luxx.errors import NotAllowed, NotFound
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.tools.output import MAX_REF
from luxx.wire.run import ENDED, MemberRight, Run, RunKind, RunStatus
from luxx.wire.turn import MODEL_LENGTH, TURN_LENGTH, Usage

CALL_ID_LENGTH = MAX_REF
TOOL_LENGTH = 200

DISCARDED = "{}"
"""The `request` of a call that stores nothing, once its content is deleted."""

UNDISCARDED_CALL = f"subject_id = id AND request <> '{DISCARDED}'"
"""The condition on runs that are calls (`admission.py`) whose content is not deleted."""


class ProcessRow(Base):
    """A process with a lease until `lease_until` (Unix seconds; null if it is the only one, with SQLite).

    Runs name it as their owner without a foreign key, because they outlive it.
    """

    __tablename__ = "processes"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int] = mapped_column()
    version: Mapped[str] = mapped_column(String(40))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    lease_until: Mapped[float | None] = mapped_column(Double)


class RunRow(Base):
    """`request` is a ChatRequest as JSON; `owner` is the process that drives the run (`engine/processes.py`).

    `message_id` is the message that the run writes, `question_id` the user's message that it answers.
    `fence` grows by one whenever a process claims the run; an append with an older fence is refused.
    `losses` counts the claims after the loss of the process that drove the run.
    `stored_bytes` is the size of its messages, log and tool outputs (`turn/run_rows.py`).
    `slots` is how many turns of a running run work at once (`slots.py`).
    `is_planned`: a chat's run that may carry out steps of a plan, in turns of their own.
    `driven_seconds` is saved only while time is limited. `provider_id` outlives the provider.
    `called_room_id` is the room of a call, and `called_by` the member who made it, if it is not the owner:
    they have the rights to it that they have to the room. Of a run that writes a page of an artifact it is
    the artifact's room, and `called_by` the artifact's owner, if the run is a member's.
    """

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_user_id_id", "user_id", "id"),
        Index("ix_runs_subject_id_id", "subject_id", "id"),
        Index("ix_runs_status_owner", "status", "owner"),
        # Each heartbeat reads these few rows.
        Index(
            "ix_runs_cancelled",
            "status",
            sqlite_where=text("is_cancelled = 1 AND finished_at IS NULL"),
            postgresql_where=text("is_cancelled AND finished_at IS NULL"),
        ),
        # The few calls to discard (`log/retention.py`).
        Index(
            "ix_runs_calls",
            "finished_at",
            sqlite_where=text(UNDISCARDED_CALL),
            postgresql_where=text(UNDISCARDED_CALL),
        ),
        # The few calls of rooms: `member_subjects` and `cancel_calls`.
        *(
            Index(f"ix_runs_{name}", name, sqlite_where=condition, postgresql_where=condition)
            for name, condition in (
                ("called_by", text("called_by IS NOT NULL")),
                ("called_room_id", text("called_room_id IS NOT NULL")),
            )
        ),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str] = mapped_column(String(10))
    subject_id: Mapped[str] = mapped_column(String(36))
    agent_id: Mapped[int | None] = mapped_column(ForeignKey("agents.id", ondelete="SET NULL"), index=True)
    parent_run_id: Mapped[str | None] = mapped_column(String(36), index=True)
    message_id: Mapped[str | None] = mapped_column(String(36))
    question_id: Mapped[str | None] = mapped_column(String(36), index=True)
    called_room_id: Mapped[str | None] = mapped_column(String(36))
    called_by: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    status: Mapped[str] = mapped_column(String(20))
    phase: Mapped[str | None] = mapped_column(String(20))
    stop_reason: Mapped[str | None] = mapped_column(String(40))
    error: Mapped[str | None] = mapped_column(Text)
    provider_id: Mapped[int | None] = mapped_column()
    provider_name: Mapped[str | None] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(MODEL_LENGTH))
    usage: Mapped[str] = mapped_column(Text, default="{}")
    cost: Mapped[float | None] = mapped_column(Float)
    last_seq: Mapped[int] = mapped_column(default=0)
    request: Mapped[str] = mapped_column(Text)
    owner: Mapped[str | None] = mapped_column(String(64))
    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    is_cancelled: Mapped[bool] = mapped_column(default=False)
    losses: Mapped[int] = mapped_column(default=0, server_default="0")
    slots: Mapped[int] = mapped_column(default=1, server_default="1")
    stored_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    is_planned: Mapped[bool] = mapped_column(default=False, server_default=false())
    driven_seconds: Mapped[float] = mapped_column(Float, default=0.0, server_default="0")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class RunEventRow(Base):
    """`data` is the event's JSON as clients get it; `internal` is the note that only the fold needs."""

    __tablename__ = "run_events"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    type: Mapped[str] = mapped_column(String(40))
    data: Mapped[bytes] = mapped_column(LargeBinary)
    internal: Mapped[bytes | None] = mapped_column(LargeBinary)


class ToolCallRow(Base):
    """A tool call of a run's log: `seq` is the event of the call, `result_seq` that of the result.

    `turn` is the key of its turn; empty in a chat.
    """

    __tablename__ = "tool_calls"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    turn: Mapped[str] = mapped_column(String(TURN_LENGTH), primary_key=True, default="", server_default="")
    step_index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    tool: Mapped[str] = mapped_column(String(TOOL_LENGTH))
    seq: Mapped[int] = mapped_column()
    result_seq: Mapped[int | None] = mapped_column()
    status: Mapped[str] = mapped_column(String(20))
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    duration_ms: Mapped[int | None] = mapped_column()


class RunResultRow(Base):
    """The full output of a tool call whose result was shortened."""

    __tablename__ = "run_results"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    call_id: Mapped[str] = mapped_column(String(CALL_ID_LENGTH), primary_key=True)
    output: Mapped[str] = mapped_column(Text)


class RunInputRow(Base):
    """What a person or another process gave to a run with several turns, until its drive has logged it.

    `kind` and the JSON `data` are the feature's; a higher id was given later.
    """

    __tablename__ = "run_inputs"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str] = mapped_column(String(20))
    data: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class QuestionRow(Base):
    """`asked` and `answer` are JSON. At `due_at` an unanswered question gets its recommended option.

    `rule_agents`: the agents whose rules apply to the call that asks, as a JSON list (`rule_agents` of its
    request).
    """

    __tablename__ = "questions"
    __table_args__ = (
        Index("ix_questions_user_id_status_id", "user_id", "status", "id"),
        Index("ix_questions_status_due_at", "status", "due_at"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    call_id: Mapped[str] = mapped_column(String(CALL_ID_LENGTH))
    rule_agents: Mapped[str] = mapped_column(Text, default="[0]", server_default="[0]")
    kind: Mapped[str] = mapped_column(String(20))
    status: Mapped[str] = mapped_column(String(20))
    asked: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    answered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    answered_by: Mapped[str | None] = mapped_column(String(20))
    answer: Mapped[str | None] = mapped_column(Text)
    note: Mapped[str | None] = mapped_column(Text)


class SubjectMemberRow(Base):
    """A user who may watch, speak in or steer the runs of another user's room or task (`subject_id`).

    `owner_id` is the user of the subject: deleting either user deletes the row. The feature that owns the
    subject writes these rows and deletes them with it. `is_new`: the user has not read its messages yet.
    """

    __tablename__ = "subject_members"

    subject_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    right: Mapped[str] = mapped_column(String(10))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    is_new: Mapped[bool] = mapped_column(server_default=false())


_usage = msgspec.json.Decoder(Usage)

is_unended = table_of(RunRow).c.status.not_in([status.value for status in ENDED])
"""The condition on runs that have not ended."""

is_call = table_of(RunRow).c.subject_id == table_of(RunRow).c.id
"""The condition on runs that are calls, which store nothing."""


def run_view(row: RunRow) -> Run:
    """The row of a run as the API returns it."""
    fields = {name: getattr(row, name) for name in Run.__struct_fields__}
    return msgspec.convert(fields | {"usage": _usage.decode(row.usage)}, Run)


class RunRight(StrEnum):
    """What somebody wants with a run: see it, steer it (cancel, stop) or answer its questions."""

    SEE = "see"
    STEER = "steer"
    ANSWER = "answer"


_needed = {
    RunRight.SEE: MemberRight.WATCH,
    RunRight.STEER: MemberRight.STEER,
    RunRight.ANSWER: MemberRight.STEER,
}
"""What a member needs for each right to a run."""

_what = {RunRight.STEER: "cancel or resume this run", RunRight.ANSWER: "answer the questions of this run"}

_rights = list(MemberRight)
_members = table_of(SubjectMemberRow)
_all_runs = table_of(RunRow)
_calls_as_member = _all_runs.join(
    _members,
    and_(_members.c.subject_id == _all_runs.c.called_room_id, _members.c.user_id == _all_runs.c.called_by),
)
"""The calls that members of rooms made, each with the membership that its caller has now."""

_page_runs = _all_runs.join(_members, _members.c.subject_id == _all_runs.c.called_room_id)
_of_page = _all_runs.c.kind == RunKind.ARTIFACT.value
_is_page = and_(_of_page, _all_runs.c.subject_id == bindparam("subject"))
_is_caller = _all_runs.c.called_by == bindparam("user")
_is_member = _members.c.user_id == bindparam("user")
_member_right = (
    select(_members.c.right)
    .where(_members.c.subject_id == bindparam("subject"), _is_member)
    .union_all(
        select(_members.c.right)
        .select_from(_calls_as_member)
        .where(_all_runs.c.id == bindparam("subject"), _is_caller),
        select(_members.c.right).select_from(_page_runs).where(_is_page, _is_member),
        select(literal(MemberRight.STEER.value)).where(_is_page, _is_caller),
    )
)
_member_subjects = (
    select(_members.c.subject_id)
    .where(_is_member)
    .union_all(
        select(_all_runs.c.id).select_from(_calls_as_member).where(_is_caller),
        select(_all_runs.c.subject_id).select_from(_page_runs).where(_of_page, _is_member).distinct(),
        select(_all_runs.c.subject_id).where(_of_page, _is_caller).distinct(),
    )
)


def can_access(session: Session, run: RunRow, caller: Caller, right: RunRight) -> bool:
    """Whether the caller has this right to the run. Its user has all of them, members of its subject have
    those of their membership, as long as they are in the tenant of the run. Nobody else has any."""
    if run.user_id == caller.user_id:
        return True
    if run.tenant_id != caller.tenant_id:
        return False
    given = member_right(session, run.subject_id, caller.user_id)
    return given is not None and includes(given, _needed[right])


def member_right(session: Session, subject_id: str, user_id: int) -> MemberRight | None:
    """The user's right to a room, task, or artifact with runs, of another user; None if they have none. To
    their own call of a room (`subject_id` is the id of its run) it is that to the room."""
    right = session.connection().scalar(_member_right, {"subject": subject_id, "user": user_id})
    return None if right is None else MemberRight(right)


def includes(given: MemberRight, needed: MemberRight) -> bool:
    """Whether one right includes the other."""
    return _rights.index(given) >= _rights.index(needed)


def member_subjects(session: Session, caller: Caller) -> list[str]:
    """The ids of the rooms and tasks of others that the caller is a member of, in any tenant, of the caller's
    calls of these rooms, and of the artifacts of rooms whose runs the caller may see."""
    return list(session.connection().scalars(_member_subjects, {"user": caller.user_id}))


def visible_to(caller: Caller, subject_ids: Sequence[str] = ()) -> ColumnElement[bool]:
    """`can_access` with the right to see, as the condition of a query of runs.

    `subject_ids` are those of `member_subjects`. Queries of conversations need none: they have no members.
    """
    if not subject_ids:
        return RunRow.user_id == caller.user_id
    is_member = and_(RunRow.tenant_id == caller.tenant_id, RunRow.subject_id.in_(subject_ids))
    return or_(RunRow.user_id == caller.user_id, is_member)


def find_run(session: Session, caller: Caller, run_id: str, right: RunRight = RunRight.SEE) -> RunRow:
    """The run of this id. Raises NotFound if the caller may not see one, and NotAllowed if the caller may
    see it but lacks the right."""
    row = session.get(RunRow, run_id)
    if row is None or not can_access(session, row, caller, RunRight.SEE):
        raise NotFound("no run with this id", kind="run_not_found")
    if right != RunRight.SEE and not can_access(session, row, caller, right):
        raise NotAllowed(
            f"you may {_what[right]} only with the right to {_needed[right].value}; the owner can give it to "
            "you"
        )
    return row


def who_may_see(session: Session, runs: Sequence[tuple[Caller, str]]) -> list[bool]:
    """Whether each caller may see the run of this id."""
    rows = [(caller, session.get(RunRow, run_id)) for caller, run_id in runs]
    return [row is not None and can_access(session, row, caller, RunRight.SEE) for caller, row in rows]


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list; None does not filter."""

    kind: RunKind | None = None
    subject_id: str | None = None
    agent_id: int | None = None
    status: RunStatus | None = None
    before: str | None = None


def page_of_runs(
    session: Session, caller: Caller, run_filter: RunFilter, *, offset: int, limit: int
) -> tuple[list[Run], int]:
    """A page of the caller's runs, newest first, and how many match."""
    query: Select[RunRow] = select(RunRow).where(visible_to(caller, member_subjects(session, caller)))
    for name in ("kind", "subject_id", "agent_id", "status"):
        value = getattr(run_filter, name)
        if value is not None:
            query = query.where(getattr(RunRow, name) == value)
    total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
    if run_filter.before is not None:
        query = query.where(RunRow.id < run_filter.before)
    rows = session.scalars(query.order_by(RunRow.id.desc()).offset(offset).limit(limit))
    return [run_view(row) for row in rows], total
