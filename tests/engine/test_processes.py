"""Processes of one database: which are alive, whose runs are recovered, and which may not write any more."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from engine.in_process_cluster import (
    GATED,
    LEASE_SECONDS,
    InProcessCluster,
    always_replies,
    ended,
    one_gate_each,
    status_of,
    types_of,
    until,
)
from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ConversationRow
from luxx.errors import NotAllowed, Unavailable
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.upgrade import upgrade_database
from luxx.providers.scripted import Gate, Script
from luxx.runs.engine.processes import ProcessKind, read_processes, renew, this_process
from luxx.runs.engine.queue import first_status
from luxx.runs.models import ProcessRow, RunRow
from luxx.runs.slots import find_slot
from luxx.wire.run import Run, RunKind, RunStatus
from luxx.wire.tool import CommandPermission

CANCEL_SECONDS = 0.5


async def owner_of(services: Services, run: Run) -> str | None:
    return await services.store.read(
        lambda session: session.scalar(select(RunRow.owner).where(RunRow.id == run.id))
    )


def operator() -> Caller:
    return Caller(
        user_id=1, tenant_id=1, username="admin", permission_level=CommandPermission.ADMIN, sign_in_id=""
    )


async def test_a_run_of_a_killed_process_continues_at_another_within_its_lease_and_two_seconds(
    shared_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        first, second = await cluster.services(), await cluster.services()
        ann, sent = await cluster.gated_run(first)
        await cluster.kill(first)
        await cluster.model.arrived(2, LEASE_SECONDS + 2)
        cluster.model.release("gate")
        assert (await ended(second, ann, sent)).status == RunStatus.COMPLETED
        assert "warning" in await types_of(second, ann, sent)

        async def only_the_second_is_known() -> bool:
            known = await second.store.read(read_processes)
            return [each.id for each in known] == [second.process_id]

        await until(only_the_second_is_known)


async def test_a_process_without_others_recovers_the_runs_of_its_predecessor_at_once(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, f"sqlite:///{tmp_path}/t.db", always_replies(*GATED)) as cluster:
        services = await cluster.services()
        ann, sent = await cluster.gated_run(services)
        await cluster.kill(services)
        again = await cluster.services()
        await cluster.model.arrived(2, LEASE_SECONDS / 2)
        cluster.model.release("gate")
        await ended(again, ann, sent)
        known = await again.store.read(read_processes)
        assert [(each.id, each.is_alive) for each in known] == [(again.process_id, True)]


def test_leases_are_counted_by_the_clock_of_the_database_that_processes_share(
    shared_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose own clock is wrong by an hour keeps its lease like any other."""
    store = Store(open_engine(resolve_url(shared_url, tmp_path)))
    upgrade_database(store.engine)
    real = time.time
    me = this_process("me", ProcessKind.SERVE)

    def is_alive() -> bool:
        (known,) = store.read_now(read_processes)
        return known.is_alive

    try:
        for hour in (-3600.0, 3600.0):
            monkeypatch.setattr(time, "time", lambda hour=hour: real() + hour)
            assert store.write_now(lambda session: renew(session.connection(), me, 1.0)) == (hour > 0)
            monkeypatch.setattr(time, "time", real)
            assert is_alive()
        until = time.monotonic() + 20
        while is_alive():
            assert time.monotonic() < until
    finally:
        store.close()


async def wait_heartbeats(services: Services, heartbeats: int) -> None:
    """Returns after this many heartbeats of the process."""
    done = asyncio.Event()
    count = 0

    async def send_heartbeat() -> None:
        nonlocal count
        count += 1
        if count >= heartbeats:
            done.set()

    services.run_driver.heartbeat.on_each_heartbeat(send_heartbeat)
    async with asyncio.timeout(20):
        await done.wait()


async def test_a_process_declared_dead_registers_again_and_keeps_runs_that_nobody_took(
    shared_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        services = await cluster.services()
        ann, sent = await cluster.gated_run(services)
        delete_rows = ProcessRow.__table__.delete()
        await services.store.write(lambda session: session.execute(delete_rows))

        async def is_known() -> bool:
            return bool(await services.store.read(read_processes))

        await until(is_known)
        cluster.model.release("gate")
        assert (await ended(services, ann, sent)).status == RunStatus.COMPLETED
        assert len(cluster.model.requests) == 1


async def test_a_driver_that_lost_its_run_ends_at_the_next_heartbeat_and_writes_nothing(
    shared_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        first, second = await cluster.services(), await cluster.services()
        ann, sent = await cluster.gated_run(first)
        taken = update(RunRow).where(RunRow.id == sent.id).values(owner=second.process_id, fence=2)
        await second.store.write(lambda session: session.execute(taken))
        await cluster.model.requests[0].wait_closed(5)
        assert not first.run_driver.drives()
        # The process that owns the run by its row finds that it does not drive it.
        await cluster.model.arrived(2, 10)
        cluster.model.release("gate")
        assert (await ended(second, ann, sent)).status == RunStatus.COMPLETED
        assert (await types_of(second, ann, sent)).count("done") == 1


async def test_a_run_whose_drive_failed_is_recovered_by_its_own_process(
    database_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, database_url, always_replies(*GATED)) as cluster:
        services = await cluster.services()
        ann, sent = await cluster.gated_run(services)
        services.run_driver.drives()[sent.id].task.cancel()
        await cluster.model.arrived(2, LEASE_SECONDS + 2)
        cluster.model.release("gate")
        assert (await ended(services, ann, sent)).status == RunStatus.COMPLETED


@pytest.mark.parametrize("is_bus_up", [True, False])
async def test_any_process_ends_a_run_that_another_drives(
    shared_url: str, tmp_path: Path, is_bus_up: bool
) -> None:
    """With the bus within half a second, upstream included; without it at the next heartbeat."""

    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        first, second = await cluster.services(), await cluster.services()
        ann, sent = await cluster.gated_run(first)
        if not is_bus_up:
            await second.bus.close()
        loop = asyncio.get_running_loop()
        gated_run = loop.time()
        cancelled = await second.runs.cancel(ann, sent.id)
        assert loop.time() - gated_run < 2 * CANCEL_SECONDS
        if is_bus_up:
            assert cancelled.status == RunStatus.CANCELLED
        await cluster.model.requests[0].wait_closed(CANCEL_SECONDS if is_bus_up else 3)
        last = await ended(second, ann, sent)
        assert (last.status, last.stop_reason) == ("cancelled", "cancelled")
        assert (await types_of(second, ann, sent))[-1] == "done"


async def test_a_slot_that_another_process_frees_is_taken_by_a_queued_run(
    shared_url: str, tmp_path: Path
) -> None:
    """A process without runs of its own gets a hint about the queue, or finds it at its heartbeat."""

    script = one_gate_each("one", "two")
    async with InProcessCluster(tmp_path, shared_url, script, concurrent_runs_per_user=1) as cluster:
        first, second = await cluster.services(), await cluster.services()
        ann = await cluster.add_user(first, "ann")
        sent = await cluster.send(first, ann, "one")
        later = await cluster.send(second, ann, "two")
        assert later.status == RunStatus.QUEUED
        answering = asyncio.create_task(second.chats.answer(ann, later))
        cluster.model.release("two")
        await cluster.model.reached("one")
        cluster.model.release("one")
        await ended(first, ann, sent)
        assert (await answering).text == "I am here."


async def test_two_processes_never_give_the_same_slot_twice(shared_url: str, tmp_path: Path) -> None:
    async with InProcessCluster(
        tmp_path, shared_url, always_replies(Gate(name="gate")), concurrent_runs=3
    ) as cluster:
        processes = [await cluster.services(), await cluster.services()]
        people = [await cluster.add_user(processes[0], name) for name in ("ann", "bob")]
        sent = await asyncio.gather(
            *(cluster.send(processes[number % 2], people[number % 2]) for number in range(12))
        )
        assert [each.status for each in sent].count(RunStatus.RUNNING) <= 3

        async def running() -> int:
            rows = select(RunRow.id).where(RunRow.status == "running")
            return len(await processes[0].store.read(lambda session: session.scalars(rows).all()))

        for _ in range(5):
            await asyncio.gather(*(wait_heartbeats(services, 1) for services in processes))
            assert await running() == 3
        cluster.model.release("gate")
        for number, each in enumerate(sent):
            await ended(processes[0], people[number % 2], each)


async def test_a_stopped_process_hands_its_runs_over_at_once(shared_url: str, tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        first, second = await cluster.services(), await cluster.services()
        ann, sent = await cluster.gated_run(first)
        await cluster.stop(first)
        await cluster.model.arrived(2, LEASE_SECONDS / 2)
        cluster.model.release("gate")
        assert (await ended(second, ann, sent)).status == RunStatus.COMPLETED
        known = await second.store.read(read_processes)
        assert [each.id for each in known] == [second.process_id]


async def test_a_stop_waits_for_the_heartbeat_in_progress(shared_url: str, tmp_path: Path) -> None:
    """Written after the process was unregistered, it would register it again."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    async with InProcessCluster(tmp_path, shared_url, Script(rules=[])) as cluster:
        services = await cluster.services()
        row = select(ProcessRow.id).where(ProcessRow.id == services.process_id).with_for_update()
        engine = open_engine(resolve_url(shared_url, tmp_path))
        with engine.connect() as connection:
            connection.execute(row)
            async with asyncio.timeout(20):
                while not connection.execute(waiting).scalar_one():  # noqa: ASYNC110 - no callback
                    await asyncio.sleep(0.05)
            closing = asyncio.create_task(services.run_driver.heartbeat.close())
            done, _ = await asyncio.wait({closing}, timeout=0.5)
            assert not done
        await closing
        engine.dispose()


async def test_a_stopping_process_lets_runs_end_within_the_grace_and_takes_nothing_more(
    database_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, database_url, always_replies(*GATED), grace_seconds=20) as cluster:
        services = await cluster.services()
        ann, sent = await cluster.gated_run(services)
        services.stop_admitting()
        with pytest.raises(Unavailable, match="stopping") as refused:
            await cluster.send(services, ann)
        assert (refused.value.kind, refused.value.retry_after) == ("stopping", 1)
        draining = asyncio.create_task(services.drain())
        cluster.model.release("gate")
        await draining
        assert await status_of(services, ann, sent) == RunStatus.COMPLETED
        assert len(cluster.model.requests) == 1


async def test_a_second_stop_ends_the_grace_period(database_url: str, tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, database_url, always_replies(*GATED), grace_seconds=50) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        await cluster.send(services, ann)
        await cluster.model.reached("gate")
        services.stop_admitting()
        draining = asyncio.create_task(services.drain())
        services.end_drain()
        async with asyncio.timeout(5):
            await draining
        assert services.run_driver.drives()


async def test_rooms_and_tasks_are_left_to_workers_where_there_are_any(
    shared_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")

        async def start(kind: RunKind) -> RunStatus:
            return await services.store.write(
                lambda session: first_status(session.connection(), ann.user_id, kind, services.config.limits)
            )

        assert await start(RunKind.TASK) == RunStatus.RUNNING
        worker = await cluster.services(ProcessKind.WORKER)
        assert await start(RunKind.TASK) == RunStatus.QUEUED
        assert await start(RunKind.CHAT) == RunStatus.RUNNING
        sent = await cluster.send(services, ann)
        await cluster.model.reached("gate")
        # A run of another kind that no process drives is not for a server either.
        queued: dict[str, Any] = {"status": "queued", "owner": None, "fence": 1, "kind": "task"}
        await services.store.write(
            lambda session: session.execute(update(RunRow).where(RunRow.id == sent.id).values(**queued))
        )

        async def is_the_workers() -> bool:
            return await owner_of(services, sent) == worker.process_id

        await until(is_the_workers)
        # Its log is that of a chat, which the worker can continue as such only.
        await services.store.write(
            lambda session: session.execute(update(RunRow).where(RunRow.id == sent.id).values(kind="chat"))
        )
        cluster.model.release("gate")
        await ended(services, ann, sent)


async def test_a_conversation_that_names_a_run_that_ended_is_freed_at_the_start(
    database_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, database_url, always_replies(*GATED)) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        cluster.model.release("gate")
        sent = await cluster.send(services, ann)
        await ended(services, ann, sent)
        going = await cluster.send(services, ann)
        lie = update(ConversationRow).where(ConversationRow.id == sent.subject_id).values(run_id=sent.id)
        await services.store.write(lambda session: session.execute(lie))
        await cluster.kill(services)
        again = await cluster.services()
        assert (await again.conversations.get(ann, sent.subject_id)).run_id is None
        await ended(again, ann, going)


async def test_operators_see_the_processes_and_what_they_drive(shared_url: str, tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        services = await cluster.services()
        worker = await cluster.services(ProcessKind.WORKER)
        ann = await cluster.add_user(services, "ann")
        await cluster.send(services, ann)
        await cluster.model.reached("gate")
        items, total = await services.processes.list_page(operator(), page=1, page_size=20)
        assert total == 2
        assert [(each.id, each.kind, each.runs, each.is_alive) for each in items] == [
            (worker.process_id, "worker", 0, True),
            (services.process_id, "serve", 1, True),
        ]
        with pytest.raises(NotAllowed):
            await services.processes.list_page(ann, page=1, page_size=20)
        cluster.model.release("gate")


async def test_a_process_that_freezes_in_a_transaction_keeps_its_locks_no_longer_than_its_lease(
    shared_url: str, tmp_path: Path
) -> None:
    """Otherwise no run could be admitted while it is frozen. After it, its connection is lost."""

    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        first, second = await cluster.services(), await cluster.services()
        ann = await cluster.add_user(first, "ann")
        has_lock, wakes = threading.Event(), threading.Event()

        def frozen(session: Session) -> None:
            find_slot(session.connection(), ann.user_id, first.config.limits)
            has_lock.set()
            assert wakes.wait(30)
            session.execute(select(1))

        freezing = asyncio.create_task(first.store.write(frozen))
        try:
            await asyncio.to_thread(has_lock.wait, 10)
            async with asyncio.timeout(LEASE_SECONDS + 2):
                sent = await cluster.send(second, ann)
        finally:
            wakes.set()
        with pytest.raises(OperationalError):
            await freezing
        cluster.model.release("gate")
        await ended(second, ann, sent)
