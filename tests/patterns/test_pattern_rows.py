"""What uses and time make of patterns, in both databases."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sample_user import add_user
from sqlalchemy.orm import Session
from store.conftest import ready_url

from luxx.features.patterns.models import PatternRow, UseKind
from luxx.features.patterns.rows import archive_unused, find_similar, index_words, learn_from, record_use
from luxx.features.patterns.slots import signature_of, signature_text
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.wire.patterns import PatternStatus

__all__ = ["ready_url"]

NOW = utc_now()
GOAL = signature_of("Make a chart of the sales in sales.csv")


@pytest.fixture
def session(ready_url: str, tmp_path: Path) -> Iterator[Session]:
    store = Store(open_engine(resolve_url(ready_url, tmp_path)))
    with Session(store.engine) as session, session.begin():
        add_user(session)
        values = {"user_id": 1, "tenant_id": 1, "signature": signature_text(GOAL)}
        times = {"used_at": NOW, "created_at": NOW, "updated_at": NOW}
        row = PatternRow(id="p", name="Chart", is_shared=False, status="draft", **values, **times)
        session.add(row)
        session.flush()
        index_words(session, row)
        yield session
    store.close()


def use(session: Session, number: int, *, is_success: bool) -> PatternRow:
    record_use(session, "p", f"run {number}", UseKind.USED, is_success=is_success, now=NOW, similarity=90.0)
    row = session.get(PatternRow, "p")
    assert row is not None
    return row


def test_successes_failures_and_time_change_the_status(session: Session) -> None:
    statuses = [use(session, number, is_success=True).status for number in range(3)]
    assert statuses == ["draft", "draft", "active"]
    assert use(session, 2, is_success=True).usage_count == 3  # The same run counts once.
    failing = [use(session, number, is_success=False) for number in range(10, 14)]
    assert failing[-1].status == "active"  # Three of seven succeeded.
    row = use(session, 14, is_success=False)
    assert row.status == "draft"

    archive_unused(session, NOW + timedelta(days=179))
    assert found(session) == ["p"]
    archive_unused(session, NOW + timedelta(days=181))
    assert row.status == "archived"
    assert found(session) == []
    # What is used again is judged by its counts; what failed too often in a row stays apart.
    assert use(session, 15, is_success=False).status == "untrusted"
    archive_unused(session, NOW + timedelta(days=181))
    assert row.status == "untrusted"


def test_a_similar_run_counts_for_the_pattern_of_its_user_only(session: Session) -> None:
    assert learn_from(session, 1, GOAL, "a", 2000, NOW)
    assert not learn_from(session, 1, signature_of("Translate this poem"), "b", 2000, NOW)
    assert not learn_from(session, 2, GOAL, "c", 2000, NOW)
    row = session.get(PatternRow, "p")
    assert row is not None
    assert (row.success_count, row.avg_execution_time_ms) == (1, 2000)


def found(session: Session) -> list[str]:
    every = list(PatternStatus)
    return [one.id for one in find_similar(session.connection(), GOAL, 1, 1, every, NOW)]
