"""Notices between processes: hints that arrive, hints that are lost, and the periodic scan that replaces
them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bus.in_memory_bus import InMemoryBus, InMemoryNetwork
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import insert, select, update

from luxx.app.container import Services
from luxx.domain.accounts.rights import AccountChange, AccountChanges, RevocationReason
from luxx.domain.conversations.models import ConversationRow
from luxx.infra.bus.core import Bus
from luxx.infra.clock import id_at, new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.engine.processes import ProcessKind, register, this_process
from luxx.runs.log.endings import NOTICES, RunEndedRow
from luxx.runs.log.retention import UNNOTIFIED_SECONDS, delete_old_endings
from luxx.runs.models import RunRow
from luxx.runs.streams import notices as module
from luxx.runs.streams.notices import Notices
from luxx.wire.run import RunStatus
from luxx.wire.socket import NotificationData

assert Services  # Importing `Services` imports every table.

SECONDS = 10.0
NEW_CONVERSATION = "01a00000-0000-7000-8000-000000000000"
OTHER = "01a00000-0000-7000-8000-000000000001"


class Listener:
    """A listener that records its calls."""

    def __init__(self, *sessions: str) -> None:
        self.sessions = sessions
        self.changes: list[str] = []
        self.notes: list[NotificationData] = []
        self.restated = 0
        self._changed = asyncio.Event()

    def is_subscribed(self, session_id: str) -> bool:
        return session_id in self.sessions

    def mark_changed(self, session_id: str) -> None:
        self.changes.append(session_id)
        self._changed.set()

    def add_notification(self, notification: NotificationData) -> None:
        self.notes.append(notification)
        self._changed.set()

    def refresh_all(self) -> None:
        self.restated += 1
        self._changed.set()

    async def until(self, is_so: Callable[["Listener"], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not is_so(self):
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = Store(open_engine(resolve_url("sqlite:///./luxx.db", tmp_path)))
    make_ready(store.engine)
    now = utc_now()

    def work(session: Any) -> None:
        add_user(session)
        for session_id, title in ((NEW_CONVERSATION, "a talk"), (OTHER, "another")):
            session.execute(
                insert(ConversationRow).values(
                    id=session_id, user_id=1, title=title, created_at=now, updated_at=now
                )
            )

    store.write_now(work)
    yield store
    store.close()


@asynccontextmanager
async def process(store: Store, bus: Bus, *, watched: str = "") -> AsyncIterator[Notices]:
    """The notices of one process."""
    notices = Notices(store, bus, is_watched=lambda run_id: run_id == watched)
    notifying = asyncio.create_task(notices.keep_notifying())
    try:
        yield notices
    finally:
        notifying.cancel()
        await asyncio.gather(notifying, return_exceptions=True)


async def put_run(store: Store, session_id: str, status: str, run_id: str = "") -> str:
    """Stores a run of user 1 with this status. Returns its id."""
    run_id = run_id or new_id()

    def work(session: Any) -> None:
        changed = session.execute(update(RunRow).where(RunRow.id == run_id).values(status=status))
        if changed.rowcount == 0:
            session.execute(
                insert(RunRow).values(
                    id=run_id, user_id=1, tenant_id=1, kind="chat", subject_id=session_id, status=status,
                    request="{}", created_at=utc_now(),
                )
            )  # fmt: skip

    await store.write(work)
    return run_id


async def catch_up(store: Store, notices: Notices) -> None:
    """Waits until the process has read everything that happened before the first listener."""
    scout = Listener(OTHER)
    unsubscribe = notices.listen(1, scout)
    run_id = await put_run(store, OTHER, "cancelled")
    for count in (1, 2):
        notices.notify(run_id, 1)
        await scout.until(lambda listener, count=count: len(listener.changes) >= count)
    unsubscribe()


def network(count: int = 2, **more: Any) -> tuple[InMemoryNetwork, list[InMemoryBus]]:
    them = InMemoryNetwork(**more)
    return them, [them.bus(f"process {number}") for number in range(count)]


async def test_a_change_in_one_process_is_notified_in_another_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 3600.0)

    _, (first, two) = network()
    async with process(store, first) as here, process(store, two) as there:
        watching, elsewhere = Listener(NEW_CONVERSATION), Listener()
        there.listen(1, watching)
        there.listen(1, elsewhere)
        run_id = await put_run(store, NEW_CONVERSATION, "running")
        here.notify(run_id, 1)
        await watching.until(lambda listener: listener.changes == [NEW_CONVERSATION])
        await put_run(store, NEW_CONVERSATION, "completed", run_id)
        here.notify(run_id, None)
        await elsewhere.until(lambda listener: [note.run_id for note in listener.notes] == [run_id])
        # The scan may report the same session once more.
        assert set(watching.changes) == {NEW_CONVERSATION}
        assert watching.notes == []


async def test_a_run_that_another_process_streams_gets_no_notification(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 3600.0)

    _, (first, two) = network()
    followed, free = new_id(), new_id()
    async with process(store, first, watched=followed) as here, process(store, two) as there:
        listener = Listener()
        there.listen(1, listener)
        await catch_up(store, there)
        for run_id in (followed, free):
            await put_run(store, NEW_CONVERSATION, "completed", run_id)
            here.notify(run_id, 1)
        await listener.until(lambda listener: bool(listener.notes))
        assert [note.run_id for note in listener.notes] == [free]


@pytest.mark.parametrize("is_new", [True, False], ids=["a new run", "a run from yesterday"])
async def test_the_scan_reports_once_what_no_hint_announced(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.05)

    _, (first, two) = network(loses=lambda topic, payload: True)
    async with process(store, first) as here, process(store, two) as there:
        watching, elsewhere = Listener(NEW_CONVERSATION), Listener()
        yesterday = id_at(int((utc_now() - timedelta(days=1)).timestamp() * 1000), 1)
        run_id = await put_run(store, NEW_CONVERSATION, "running", "" if is_new else yesterday)
        there.listen(1, watching)
        there.listen(1, elsewhere)
        await catch_up(store, there)
        marker = await put_run(store, OTHER, "running")
        await put_run(store, NEW_CONVERSATION, "waiting", run_id)
        here.notify(run_id, 1)
        await watching.until(lambda listener: listener.changes == [NEW_CONVERSATION])
        await elsewhere.until(lambda listener: len(listener.notes) == 1)
        await put_run(store, NEW_CONVERSATION, "completed", run_id)
        await elsewhere.until(lambda listener: len(listener.notes) == 2)
        await put_run(store, OTHER, "failed", marker)
        await elsewhere.until(lambda listener: len(listener.notes) == 3)
        titles_and_messages = [(note.title, note.message) for note in elsewhere.notes]
        assert titles_and_messages == [
            ("a talk", "A question waits for you."),
            ("a talk", "The answer is ready."),
            ("another", "The answer failed: the reason is not known"),
        ]
        assert watching.changes == [NEW_CONVERSATION, NEW_CONVERSATION]


async def test_changes_before_the_first_listener_are_not_notified(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.05)

    await put_run(store, NEW_CONVERSATION, "completed")
    async with process(store, Bus("here")) as here:
        listener = Listener()
        here.listen(1, listener)
        await catch_up(store, here)
        marker = await put_run(store, OTHER, "running")
        here.notify(marker, 1)
        await put_run(store, OTHER, "completed", marker)
        await listener.until(lambda listener: bool(listener.notes))
        assert [note.session_id for note in listener.notes] == [OTHER]


async def test_after_an_outage_of_the_bus_every_session_is_refreshed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 3600.0)

    _, (one, two) = network()
    async with process(store, one) as here, process(store, two) as there:
        listener = Listener()
        there.listen(1, listener)
        await catch_up(store, there)
        first = await put_run(store, NEW_CONVERSATION, "running")
        here.notify(first, 1)
        two.cut()
        await put_run(store, NEW_CONVERSATION, "completed", first)
        here.notify(first, 1)
        two.reconnect()
        assert listener.restated == 1
        await listener.until(lambda listener: [note.run_id for note in listener.notes] == [first])


async def test_a_process_without_listeners_reads_nothing(store: Store) -> None:
    _, (first, two) = network()
    reads = 0

    class Counting(Store):
        async def read(self, work: Any) -> Any:
            nonlocal reads
            reads += 1
            return await super().read(work)

    counting = Counting(store.engine)
    async with process(counting, first) as here, process(counting, two) as there:
        unsubscribe = there.listen(2, Listener())
        for _ in range(3):
            await asyncio.sleep(0)
        unsubscribe()
        before = -1
        while before != reads:  # Wait for the reads that it had begun for the listener.
            before = reads
            await asyncio.sleep(0.2)
        here.notify(await put_run(store, NEW_CONVERSATION, "completed"), 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert reads == before
    counting._threads.shutdown()


async def test_messages_of_another_version_are_ignored(store: Store) -> None:
    _, (first, two) = network()
    async with process(store, two) as there:
        listener = Listener()
        there.listen(1, listener)
        for payload in (b"", b"\xff", b"{}", b'{"run_id": 5}'):
            first.publish("notice", payload)
            first.publish("account", payload)
        AccountChanges(two)
        first.publish("account", b"{}")
        run_id = await put_run(store, NEW_CONVERSATION, "completed")
        there.notify(run_id, 1)
        await listener.until(lambda listener: [note.run_id for note in listener.notes] == [run_id])


async def test_a_change_of_rights_reaches_every_process(store: Store) -> None:
    _, buses = network(3)
    all_received = asyncio.Event()
    changes = [AccountChanges(bus) for bus in buses]
    account_changes: list[tuple[int, AccountChange]] = []

    def on_account_change(number: int, change: AccountChange) -> None:
        account_changes.append((number, change))
        if len(account_changes) == len(buses):
            all_received.set()

    for number, each in enumerate(changes):
        each.subscribe(partial(on_account_change, number))
    change = AccountChange(user_id=1, because=RevocationReason.SIGNED_OUT, only="a sign-in")
    changes[1].publish(change)
    assert account_changes == [(1, change)]
    await asyncio.wait_for(all_received.wait(), SECONDS)
    assert sorted(number for number, _ in account_changes) == [0, 1, 2]
    assert {notified for _, notified in account_changes} == {change}


async def put_ending(store: Store, run_id: str, process: str) -> None:
    """Stores that this process has ended the run."""
    row = {"run_id": run_id, "reader": NOTICES, "kind": "chat", "status": "completed", "user_id": 1}
    more = {"subject_id": NEW_CONVERSATION, "tenant_id": 1, "process": process, "ended_at": utc_now()}
    await store.write(lambda session: session.execute(insert(RunEndedRow).values(row | more)))


async def stored_endings(store: Store) -> list[str]:
    return list(await store.read(lambda session: session.scalars(select(RunEndedRow.run_id)).all()))


@pytest.mark.parametrize("is_dead", [True, False])
async def test_the_end_that_a_dead_process_did_not_tell_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    """A living process tells it itself."""
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.05)

    if not is_dead:
        there = this_process("there", ProcessKind.SERVE)
        await store.write_rows(lambda connection: register(connection, there, 60.0))
    run_id = await put_run(store, NEW_CONVERSATION, "completed")
    await put_ending(store, run_id, "there")
    # No hint says so, and there is no socket to tell.
    await delete_old_endings(store, utc_now())
    async with process(store, Bus("here")) as here:
        first, second = Listener(), Listener()
        here.listen(1, first)
        here.listen(1, second)
        if is_dead:
            for listener in (first, second):
                await listener.until(lambda listener: bool(listener.notes))
        await catch_up(store, here)
        marker = await put_run(store, OTHER, "completed")
        here.notify(marker, 1)
        expected = [run_id, marker] if is_dead else [marker]
        for listener in (first, second):
            await listener.until(lambda listener: marker in [note.run_id for note in listener.notes])
            assert [note.run_id for note in listener.notes] == expected
        # The sweep after that deletes the row.
        await here.close()
    assert await stored_endings(store) == ([] if is_dead else [run_id])


async def test_endings_that_nobody_was_there_to_be_told_of_are_deleted(store: Store) -> None:
    run_id = await put_run(store, NEW_CONVERSATION, "completed")
    await put_ending(store, run_id, "gone")
    await delete_old_endings(store, utc_now() + timedelta(seconds=UNNOTIFIED_SECONDS - 30))
    assert await stored_endings(store) == [run_id]
    await delete_old_endings(store, utc_now() + timedelta(seconds=UNNOTIFIED_SECONDS + 30))
    assert await stored_endings(store) == []


def test_every_notified_status_has_its_sentence() -> None:
    silent = set(RunStatus) - set(module.NOTABLE)
    assert silent == {RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.CANCELLED}


async def test_questions_of_a_subagent_are_notified_and_its_end_is_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 60.0)

    async with process(store, Bus("p")) as here:
        listener = Listener()
        here.listen(1, listener)
        await catch_up(store, here)
        run_id = await put_run(store, NEW_CONVERSATION, "running")
        parent = update(RunRow).where(RunRow.id == run_id).values(parent_run_id=new_id())
        await store.write(lambda session: session.execute(parent))
        for status in ("waiting", "queued", "waiting", "completed"):
            await put_run(store, NEW_CONVERSATION, status, run_id)
            here.notify(run_id, 1)
            await catch_up(store, here)
        assert [note.run_id for note in listener.notes] == [run_id, run_id]
