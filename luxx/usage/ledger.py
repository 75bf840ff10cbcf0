"""The ledger: what each completion used and cost, written once, summed for limits. Reports: `report.py`."""

from datetime import datetime

import msgspec
from sqlalchemy import Connection, func, insert, select

from luxx.clock import utc_now
from luxx.store.tables import table_of
from luxx.usage.models import UsageRow
from luxx.wire.run import RunKind
from luxx.wire.usage import Usage

_insert = insert(table_of(UsageRow))


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, for the ledger. `is_estimated`: its counts are ours, not the provider's."""

    user_id: int
    tenant_id: int
    run_id: str
    subject_id: str
    provider_id: int | None
    model: str
    usage: Usage
    cost: float | None
    kind: RunKind = RunKind.CHAT
    is_estimated: bool = False


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """A sum over the ledger; `cost` counts only completions of known price."""

    tokens: int
    cost: float


def record(connection: Connection, entry: UsageEntry) -> None:
    """Adds a completion to the ledger, in the transaction that logs its end."""
    usage = entry.usage
    connection.execute(
        _insert,
        {
            "user_id": entry.user_id,
            "tenant_id": entry.tenant_id,
            "run_id": entry.run_id,
            "kind": entry.kind.value,
            "subject_id": entry.subject_id,
            "provider_id": entry.provider_id,
            "model": entry.model,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "cost": entry.cost,
            "is_estimated": entry.is_estimated,
            "created_at": utc_now(),
        },
    )


def spent_since(connection: Connection, user_id: int, since: datetime) -> Spent:
    """What a user's completions used from `since` on."""
    row = connection.execute(
        select(
            func.coalesce(func.sum(UsageRow.prompt_tokens + UsageRow.completion_tokens), 0),
            func.coalesce(func.sum(UsageRow.cost), 0.0),
        ).where(UsageRow.user_id == user_id, UsageRow.created_at >= since)
    ).one()
    return Spent(tokens=int(row[0]), cost=float(row[1] or 0.0))
