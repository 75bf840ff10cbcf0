"""The patterns of a user in an export of all their data, and their import elsewhere.

Runs that they come from and the history stay behind; an import shares nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.backup.user_export import FeatureExport, ImportedIds
from luxx.errors import InvalidInput, LuxxError
from luxx.features.patterns.models import PatternRow
from luxx.features.patterns.rows import MOST_PATTERNS, index_words, make_room
from luxx.features.patterns.service import (
    Description,
    PatternName,
    PatternSteps,
    ToolChains,
    chains_of,
    check_steps,
    steps_of,
)
from luxx.features.patterns.slots import checked_signature, signature_text
from luxx.infra.clock import new_id, utc_now
from luxx.wire.patterns import PatternStatus

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_COPIED = (
    *("name", "description", "success_count", "failure_count", "failures_in_row", "avg_execution_time_ms"),
    *("used_at", "created_at", "updated_at"),
)


class ExportedPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern with its counters."""

    name: PatternName
    description: Description
    signature: Annotated[str, Meta(min_length=1, max_length=5_000)]
    status: PatternStatus
    steps: PatternSteps
    tool_chains: ToolChains
    success_count: Count
    failure_count: Count
    failures_in_row: Count
    avg_execution_time_ms: Count
    used_at: datetime
    created_at: datetime
    updated_at: datetime


def read_patterns(session: Session, caller: Caller, _project_ids: Sequence[str]) -> list[ExportedPattern]:
    """The patterns of the user, oldest first."""
    own = select(PatternRow).where(PatternRow.user_id == caller.user_id).order_by(PatternRow.id)
    return [
        ExportedPattern(
            signature=row.signature,
            status=PatternStatus(row.status),
            steps=steps_of(row.steps),
            tool_chains=chains_of(row.tool_chains),
            **{name: getattr(row, name) for name in _COPIED},
        )
        for row in session.scalars(own)
    ]


def add_patterns(session: Session, caller: Caller, _ids: ImportedIds, value: Any) -> list[str]:
    """Adds patterns, not shared. Returns notes about what was left out. Raises LuxxError for what no server
    has exported."""
    try:
        exported = msgspec.convert(value, list[ExportedPattern])
        for one in exported:
            check_steps(one.steps)
    except (msgspec.ValidationError, InvalidInput) as error:
        raise LuxxError(f"the patterns in it cannot be read ({error})") from error
    now = utc_now()
    for one in exported[:MOST_PATTERNS]:
        make_room(session, caller.user_id, now)
        uses = one.success_count + one.failure_count
        row = PatternRow(
            id=new_id(),
            user_id=caller.user_id,
            tenant_id=caller.tenant_id,
            is_shared=False,
            signature=signature_text(checked_signature(one.signature)),
            status=one.status.value,
            steps=msgspec.json.encode(one.steps).decode(),
            tool_chains=msgspec.json.encode(one.tool_chains).decode(),
            usage_count=uses,
            success_rate=one.success_count / uses if uses else 0.0,
            **{name: getattr(one, name) for name in _COPIED},
        )
        session.add(row)
        session.flush()
        index_words(session, row)
    left = len(exported) - MOST_PATTERNS
    return [f"{left} patterns were left out: there are too many"] if left > 0 else []


PATTERNS_EXPORT = FeatureExport(name="patterns", read=read_patterns, add=add_patterns)
