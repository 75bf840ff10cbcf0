"""The audit log cannot fill the disk: refusals are bounded, and old or surplus entries are deleted."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain import audit as bounds
from luxx.domain.audit import (
    DELETE_BATCH_SIZE,
    Action,
    Actor,
    AuditEntry,
    AuditFilter,
    AuditOutcome,
    AuditRow,
    AuditView,
    Refusals,
    delete_old_entries,
    list_entries,
    record,
)
from luxx.infra.clock import utc_now
from luxx.infra.network.egress import EgressCaller, EgressSession
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.tables import Base
from luxx.tools.history import EgressRecord


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(resolve_url("sqlite:///./t.db", tmp_path))
    Base.metadata.create_all(engine, tables=[Base.metadata.tables["audit_log"]])
    store = Store(engine)
    yield store
    store.close()


def entries(store: Store) -> list[AuditView]:
    """All entries, oldest first."""
    newest_first, _total = store.read_now(lambda s: list_entries(s, AuditFilter(), offset=0, limit=10_000))
    return newest_first[::-1]


def someone(user_id: int) -> Actor:
    return Actor(user_id=user_id, tenant_id=1, username=f"user{user_id}", address="192.0.2.1")


async def test_refusals_over_the_bound_are_counted_in_one_entry_when_the_minute_is_over(
    store: Store,
) -> None:
    clock = Clock()
    refusals = Refusals(store, clock=clock)

    for _ in range(bounds.MAX_PER_ACTOR + 5):
        await refusals.record_refusal(Action.REQUEST, someone(1), "not_allowed", target=("user", "7"))
    await refusals.record_refusal(Action.REQUEST, someone(2), "not_allowed")
    await refusals.flush_if_due()
    assert len(entries(store)) == bounds.MAX_PER_ACTOR + 1
    clock.now += bounds.REFUSAL_WINDOW_SECONDS
    await refusals.flush_if_due()
    await refusals.flush_if_due()
    (summary,) = entries(store)[bounds.MAX_PER_ACTOR + 1 :]
    assert (summary.user_id, summary.detail.count, summary.target_id) == (1, 5, None)
    await refusals.record_refusal(Action.REQUEST, someone(1), "not_allowed")
    assert len(entries(store)) == bounds.MAX_PER_ACTOR + 3


async def test_the_total_of_refusals_in_a_minute_is_bounded_for_any_number_of_actors(store: Store) -> None:
    clock = Clock()
    refusals = Refusals(store, clock=clock)
    actors = bounds.MAX_PER_WINDOW + bounds.MAX_ACTOR_SUMMARIES + 50

    for number in range(1, actors + 1):
        actor = Actor(address=f"192.0.2.{number}")
        await refusals.record_refusal(Action.SIGN_IN, actor, "sign_in_failed")
    assert len(entries(store)) == bounds.MAX_PER_WINDOW
    await refusals.flush()
    summaries = entries(store)[bounds.MAX_PER_WINDOW :]
    assert len(summaries) == bounds.MAX_ACTOR_SUMMARIES + 1
    assert sum(entry.detail.count or 0 for entry in summaries) == actors - bounds.MAX_PER_WINDOW
    assert (summaries[-1].address, summaries[-1].detail.kind) == (None, "many_actors")


async def test_a_refusal_that_cannot_be_recorded_does_not_fail_the_request(store: Store) -> None:
    store.write_now(lambda session: AuditRow.__table__.drop(session.connection()))
    await Refusals(store).record_refusal(Action.REQUEST, someone(1), "not_allowed")


def fill(store: Store, count: int, *, days: int = 0, outcome: AuditOutcome = AuditOutcome.DONE) -> None:
    then = utc_now() - timedelta(days=days)

    def work(session: Session) -> None:
        for _ in range(count):
            record(session, AuditEntry(action=Action.SIGN_IN, actor=someone(1), outcome=outcome), then)

    store.write_now(work)


async def test_entries_older_than_the_retention_are_deleted_and_no_others(store: Store) -> None:
    fill(store, DELETE_BATCH_SIZE + 10, days=91)
    fill(store, 3, days=89)
    assert (await delete_old_entries(store, utc_now(), days=90)) == DELETE_BATCH_SIZE + 10
    assert len(entries(store)) == 3
    assert (await delete_old_entries(store, utc_now(), days=90)) == 0


async def test_the_oldest_surplus_entries_are_deleted_and_refusals_displace_no_actions(store: Store) -> None:
    fill(store, 5)
    fill(store, 20, outcome=AuditOutcome.REFUSED)
    remaining_ids = [entry.id for entry in entries(store)]
    max_entries = {AuditOutcome.DONE: 5, AuditOutcome.REFUSED: 7}
    assert (await delete_old_entries(store, utc_now(), days=90, max_entries=max_entries)) == 13
    assert [entry.id for entry in entries(store)] == [*remaining_ids[:5], *remaining_ids[-7:]]


@pytest.mark.parametrize("length", [0, 1, 500])
def test_texts_of_any_length_are_recorded(store: Store, length: int) -> None:
    text = "ü" * length
    actor = Actor(user_id=1, username=text, address=text, request_id=text)
    entry = AuditEntry(action=Action.REQUEST, actor=actor, target_type=text, target_id=text)
    store.write_now(lambda session: record(session, entry))
    (row,) = store.read_now(lambda session: session.scalars(select(AuditRow)).all())
    assert (row.username or "") == text[:64]
    assert (row.target_id or "") == text[:64]
    assert (row.request_id or "") == text[:36]


def test_an_entry_exists_exactly_if_its_change_was_committed(store: Store) -> None:
    entry = AuditEntry(action=Action.SIGN_IN, actor=someone(1))

    def fails(session: Session) -> None:
        record(session, entry)
        raise ValueError("the act failed")

    with pytest.raises(ValueError, match="the act failed"):
        store.write_now(fails)
    assert entries(store) == []


async def test_all_hosts_of_a_program_are_listed_by_their_full_names(store: Store) -> None:
    long = f"{'a' * 63}.{'b' * 63}.example.org:443"
    hosts = [long, *(f"h{number}.example.org:443" for number in range(30))]
    egress_session = EgressSession(EgressCaller(user_id=1, call_id="c", tool="python_execute"))
    for host in [*hosts, hosts[-1]]:
        egress_session.record_connection(host)
        egress_session.record_refusal(host, "private_address", "no")

    refusals = Refusals(store)
    await EgressRecord(store, refusals).record(egress_session)
    executions = [entry for entry in entries(store) if entry.outcome == AuditOutcome.DONE]
    assert [entry.target_id for entry in executions] == [long[:64], *hosts[1:10], "others"]
    assert executions[0].detail.hosts == [long]
    assert (executions[-1].detail.hosts, executions[-1].detail.count) == (hosts[10:], 22)
    refused = [entry for entry in entries(store) if entry.outcome == AuditOutcome.REFUSED]
    assert refused[0].detail.hosts == [long]
