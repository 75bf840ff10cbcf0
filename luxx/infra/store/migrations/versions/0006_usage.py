"""Usage: a ledger that outlives what it tells of, and a table of tool calls to look them up by."""

# pyright: basic
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""A model may call a tool by any name, and JSON can say more than a database's text."""

MOST = 2**31 - 1


def upgrade() -> None:
    _change_ledger()
    _make_tool_calls()
    _fill_tool_calls(op.get_bind())


def _change_ledger() -> None:
    with op.batch_alter_table("usage_records") as table:
        table.add_column(sa.Column("kind", sa.String(length=10), nullable=False, server_default="chat"))
        table.add_column(sa.Column("cache_write_tokens", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("is_estimated", sa.Boolean(), nullable=False, server_default=sa.false()))
        table.drop_constraint("fk_usage_records_user_id", type_="foreignkey")
        table.drop_constraint("fk_usage_records_tenant_id", type_="foreignkey")
        table.alter_column("user_id", existing_type=sa.Integer(), nullable=True)
        table.alter_column("tenant_id", existing_type=sa.Integer(), nullable=True)
        table.create_foreign_key(
            op.f("fk_usage_records_user_id"), "users", ["user_id"], ["id"], ondelete="SET NULL"
        )
        table.create_foreign_key(
            op.f("fk_usage_records_tenant_id"), "tenants", ["tenant_id"], ["id"], ondelete="SET NULL"
        )
    op.drop_index("ix_usage_records_tenant_id", "usage_records")
    op.create_index("ix_usage_records_tenant_id_created_at", "usage_records", ["tenant_id", "created_at"])


def _make_tool_calls() -> None:
    op.create_table(
        "tool_calls",
        sa.Column("run_id", sa.String(length=36), nullable=False),
        sa.Column("step_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tool", sa.String(length=200), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("result_seq", sa.Integer(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("started_at", sa.DateTime(), nullable=True),
        sa.Column("completed_at", sa.DateTime(), nullable=True),
        sa.Column("duration_ms", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_tool_calls_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "step_index", name=op.f("pk_tool_calls")),
    )


def _fill_tool_calls(connection: sa.Connection) -> None:
    """The calls that are in the logs already."""
    columns = ("run_id", "seq", "type", "data")
    events = sa.table("run_events", *(sa.column(name) for name in columns))
    steps = sa.select(events.c.run_id, events.c.seq, events.c.data).where(events.c.type == "process_step")
    calls: dict[tuple[str, int], dict[str, Any]] = {}
    last: dict[str, Any] = {}
    found = connection.execute(steps.order_by(events.c.run_id, events.c.seq).execution_options(yield_per=500))
    for run_id, seq, data in found:
        step, timestamp = _read(data)
        if step.get("type") == "tool_call" and _is_number(step.get("index")):
            call = _call(run_id, seq, step)
            last = calls.setdefault((run_id, step["index"]), call)
            _note(last, step, timestamp)
        elif step.get("type") == "tool_result" and last.get("run_id") == run_id:
            last["result_seq"] = seq
    if calls:
        names = next(iter(calls.values()))
        table = sa.table("tool_calls", *(sa.column(name) for name in names))
        connection.execute(sa.insert(table), list(calls.values()))


def _read(data: Any) -> tuple[dict[str, Any], datetime | None]:
    """The step of an event and when it was logged; a damaged line of a log must not stop a start."""
    try:
        event = json.loads(bytes(data))
        step = event["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}, None
    try:
        at = datetime.fromisoformat(event["timestamp"]).replace(tzinfo=None)
    except (ValueError, KeyError, TypeError):
        at = None
    return (step if isinstance(step, dict) else {}), at


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def _text(value: Any, length: int) -> str:
    return UNSTORABLE.sub("\ufffd", value[:length]) if isinstance(value, str) else ""


def _call(run_id: str, seq: int, step: dict[str, Any]) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "step_index": step["index"],
        "tool": _text(step.get("name"), 200),
        "seq": seq,
        "result_seq": None,
        "status": "",
        "started_at": None,
        "completed_at": None,
        "duration_ms": None,
    }


def _note(call: dict[str, Any], step: dict[str, Any], at: datetime | None) -> None:
    call["status"] = status = _text(step.get("status"), 20)
    if status == "running":
        call["started_at"] = at
    elif status != "pending":
        duration = step.get("duration_ms")
        call["completed_at"] = at
        call["duration_ms"] = duration if _is_number(duration) else None
