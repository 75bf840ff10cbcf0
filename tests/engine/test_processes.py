"""Processes of one database: who is alive, whose runs are taken up, and who may not write any more."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from engine.conftest import Runs
from engine.town import GATED, LEASE_SECONDS, Town, ended, one_gate_each, says, status_of, types_of, until
from luxx.app.container import House
from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ConversationRow
from luxx.errors import NotAllowed, Unavailable
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.upgrade import bring_up
from luxx.providers.scripted import Gate
from luxx.runs.engine.processes import ProcessKind, read_processes, renew, this_process
from luxx.runs.engine.slots import find_place
from luxx.runs.models import ProcessRow, RunRow
from luxx.wire.run import Run, RunKind, RunStatus
from luxx.wire.tool import CommandPermission

CANCEL_SECONDS = 0.5


async def owner_of(house: House, run: Run) -> str | None:
    return await house.store.read(
        lambda session: session.scalar(select(RunRow.owner).where(RunRow.id == run.id))
    )


def operator() -> Caller:
    return Caller(
        user_id=1, tenant_id=1, username="admin", permission_level=CommandPermission.ADMIN, sign_in_id=""
    )


def test_a_run_of_a_killed_process_goes_on_at_another_within_its_lease_and_two_seconds(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            first, second = await town.house(), await town.house()
            ann, sent = await town.begun(first)
            await town.kill(first)
            await town.model.arrived(2, LEASE_SECONDS + 2)
            town.model.release("gate")
            assert (await ended(second, ann, sent)).status == RunStatus.COMPLETED
            assert "warning" in await types_of(second, ann, sent)
            known = await second.store.read(read_processes)
            assert [each.id for each in known] == [second.process]

    run(story())


def test_a_process_that_is_alone_takes_up_what_the_one_before_it_left_at_once(
    tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, f"sqlite:///{tmp_path}/t.db", says(*GATED)) as town:
            house = await town.house()
            ann, sent = await town.begun(house)
            await town.kill(house)
            again = await town.house()
            await town.model.arrived(2, LEASE_SECONDS / 2)
            town.model.release("gate")
            await ended(again, ann, sent)
            known = await again.store.read(read_processes)
            assert [(each.id, each.is_alive) for each in known] == [(again.process, True)]

    run(story())


def test_leases_are_counted_by_the_clock_of_the_database_that_processes_share(
    shared_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose own clock is an hour off, either way, lives as long as any other."""
    store = Store(open_engine(resolve_url(shared_url, tmp_path)))
    bring_up(store.engine)
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


async def lived_through(house: House, beats: int) -> None:
    """Returns after so many beats of the house."""
    done = asyncio.Event()
    count = 0

    async def beat() -> None:
        nonlocal count
        count += 1
        if count >= beats:
            done.set()

    house.durable.reaper.each_beat(beat)
    async with asyncio.timeout(20):
        await done.wait()


def test_a_process_that_was_declared_dead_counts_again_and_keeps_what_nobody_took(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            house = await town.house()
            ann, sent = await town.begun(house)
            gone = ProcessRow.__table__.delete()
            await house.store.write(lambda session: session.execute(gone))

            async def is_known() -> bool:
                return bool(await house.store.read(read_processes))

            await until(is_known)
            town.model.release("gate")
            assert (await ended(house, ann, sent)).status == RunStatus.COMPLETED
            assert len(town.model.requests) == 1

    run(story())


def test_a_drive_whose_run_is_anothers_ends_at_the_next_beat_and_writes_nothing(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            first, second = await town.house(), await town.house()
            ann, sent = await town.begun(first)
            taken = update(RunRow).where(RunRow.id == sent.id).values(owner=second.process, fence=2)
            await second.store.write(lambda session: session.execute(taken))
            await town.model.requests[0].wait_closed(5)
            assert not first.durable.drives()
            # The one that has it now, by the rows, finds that it does not drive it.
            await town.model.arrived(2, 10)
            town.model.release("gate")
            assert (await ended(second, ann, sent)).status == RunStatus.COMPLETED
            assert (await types_of(second, ann, sent)).count("done") == 1

    run(story())


def test_a_run_whose_drive_failed_is_taken_up_again_by_its_own_process(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, says(*GATED)) as town:
            house = await town.house()
            ann, sent = await town.begun(house)
            house.durable.drives()[sent.id].task.cancel()
            await town.model.arrived(2, LEASE_SECONDS + 2)
            town.model.release("gate")
            assert (await ended(house, ann, sent)).status == RunStatus.COMPLETED

    run(story())


@pytest.mark.parametrize("is_bus_up", [True, False])
def test_any_process_ends_a_run_that_another_drives(
    shared_url: str, tmp_path: Path, run: Runs, is_bus_up: bool
) -> None:
    """With the bus within half a second, upstream included; without it at the next beat."""

    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            first, second = await town.house(), await town.house()
            ann, sent = await town.begun(first)
            if not is_bus_up:
                await second.bus.close()
            loop = asyncio.get_running_loop()
            begun = loop.time()
            cancelled = await second.runs.cancel(ann, sent.id)
            assert loop.time() - begun < 2 * CANCEL_SECONDS
            if is_bus_up:
                assert cancelled.status == RunStatus.CANCELLED
            await town.model.requests[0].wait_closed(CANCEL_SECONDS if is_bus_up else 3)
            last = await ended(second, ann, sent)
            assert (last.status, last.stop_reason) == ("cancelled", "cancelled")
            assert (await types_of(second, ann, sent))[-1] == "done"

    run(story())


def test_a_place_that_frees_elsewhere_is_taken_by_whoever_waits_there(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    """A process without anything of its own to end hears of the queue, or finds it at its beat."""

    async def story() -> None:
        script = one_gate_each("one", "two")
        async with Town(tmp_path, shared_url, script, concurrent_runs_per_user=1) as town:
            first, second = await town.house(), await town.house()
            ann = await town.person(first, "ann")
            sent = await town.send(first, ann, "one")
            later = await town.send(second, ann, "two")
            assert later.status == RunStatus.QUEUED
            answering = asyncio.create_task(second.runs.answer(ann, later))
            town.model.release("two")
            await town.model.reached("one")
            town.model.release("one")
            await ended(first, ann, sent)
            assert (await answering).text == "I am here."

    run(story())


def test_two_processes_never_give_the_same_place_twice(shared_url: str, tmp_path: Path, run: Runs) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(Gate(name="gate")), concurrent_runs=3) as town:
            houses = [await town.house(), await town.house()]
            people = [await town.person(houses[0], name) for name in ("ann", "bob")]
            sent = await asyncio.gather(
                *(town.send(houses[number % 2], people[number % 2]) for number in range(12))
            )
            assert [each.status for each in sent].count(RunStatus.RUNNING) <= 3

            async def running() -> int:
                rows = select(RunRow.id).where(RunRow.status == "running")
                return len(await houses[0].store.read(lambda session: session.scalars(rows).all()))

            for _ in range(5):
                await asyncio.gather(*(lived_through(house, 1) for house in houses))
                assert await running() == 3
            town.model.release("gate")
            for number, each in enumerate(sent):
                await ended(houses[0], people[number % 2], each)

    run(story())


def test_a_stopped_process_hands_its_runs_over_at_once(shared_url: str, tmp_path: Path, run: Runs) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            first, second = await town.house(), await town.house()
            ann, sent = await town.begun(first)
            await town.stop(first)
            await town.model.arrived(2, LEASE_SECONDS / 2)
            town.model.release("gate")
            assert (await ended(second, ann, sent)).status == RunStatus.COMPLETED
            known = await second.store.read(read_processes)
            assert [each.id for each in known] == [second.process]

    run(story())


def test_a_stopping_process_lets_runs_end_within_the_grace_and_takes_nothing_more(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, says(*GATED), grace_seconds=20) as town:
            house = await town.house()
            ann, sent = await town.begun(house)
            house.leave()
            with pytest.raises(Unavailable, match="stopping") as refused:
                await town.send(house, ann)
            assert (refused.value.kind, refused.value.retry_after) == ("stopping", 1)
            draining = asyncio.create_task(house.drain())
            town.model.release("gate")
            await draining
            assert await status_of(house, ann, sent) == RunStatus.COMPLETED
            assert len(town.model.requests) == 1

    run(story())


def test_hurrying_ends_the_grace(database_url: str, tmp_path: Path, run: Runs) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, says(*GATED), grace_seconds=50) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            await town.send(house, ann)
            await town.model.reached("gate")
            house.leave()
            draining = asyncio.create_task(house.drain())
            house.hurry()
            async with asyncio.timeout(5):
                await draining
            assert house.durable.drives()

    run(story())


def test_rooms_and_tasks_are_left_to_workers_where_there_are_any(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            house = await town.house()
            ann = await town.person(house, "ann")

            async def place(kind: RunKind) -> RunStatus:
                return await house.store.write(
                    lambda session: find_place(session.connection(), ann.user_id, kind, house.config.limits)
                )

            assert await place(RunKind.TASK) == RunStatus.RUNNING
            worker = await town.house(ProcessKind.WORKER)
            assert await place(RunKind.TASK) == RunStatus.QUEUED
            assert await place(RunKind.CHAT) == RunStatus.RUNNING
            sent = await town.send(house, ann)
            await town.model.reached("gate")
            # As a run of another kind would be: nobody drives it, and it is not a server's to take.
            queued: dict[str, Any] = {"status": "queued", "owner": None, "fence": 1, "kind": "task"}
            await house.store.write(
                lambda session: session.execute(update(RunRow).where(RunRow.id == sent.id).values(**queued))
            )

            async def is_the_workers() -> bool:
                return await owner_of(house, sent) == worker.process

            await until(is_the_workers)
            town.model.release("gate")
            await ended(house, ann, sent)

    run(story())


def test_a_conversation_that_names_a_run_that_ended_is_freed_at_the_start(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, says(*GATED)) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            town.model.release("gate")
            sent = await town.send(house, ann)
            await ended(house, ann, sent)
            going = await town.send(house, ann)
            lie = update(ConversationRow).where(ConversationRow.id == sent.subject_id).values(run_id=sent.id)
            await house.store.write(lambda session: session.execute(lie))
            await town.kill(house)
            again = await town.house()
            assert (await again.conversations.get(ann, sent.subject_id)).run_id is None
            await ended(again, ann, going)

    run(story())


def test_operators_see_the_processes_and_what_they_drive(shared_url: str, tmp_path: Path, run: Runs) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            house = await town.house()
            worker = await town.house(ProcessKind.WORKER)
            ann = await town.person(house, "ann")
            await town.send(house, ann)
            await town.model.reached("gate")
            items, total = await house.processes.list_page(operator(), page=1, page_size=20)
            assert total == 2
            assert [(each.id, each.kind, each.runs, each.is_alive) for each in items] == [
                (worker.process, "worker", 0, True),
                (house.process, "serve", 1, True),
            ]
            with pytest.raises(NotAllowed):
                await house.processes.list_page(ann, page=1, page_size=20)
            town.model.release("gate")

    run(story())


def test_a_process_that_freezes_in_a_transaction_keeps_its_locks_no_longer_than_its_lease(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    """Else nobody could be admitted while it is frozen; once it wakes, to it the database was away."""

    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            first, second = await town.house(), await town.house()
            ann = await town.person(first, "ann")
            has_lock, wakes = threading.Event(), threading.Event()

            def frozen(session: Session) -> None:
                find_place(session.connection(), ann.user_id, RunKind.CHAT, first.config.limits)
                has_lock.set()
                assert wakes.wait(30)
                session.execute(select(1))

            freezing = asyncio.create_task(first.store.write(frozen))
            try:
                await asyncio.to_thread(has_lock.wait, 10)
                async with asyncio.timeout(LEASE_SECONDS + 2):
                    sent = await town.send(second, ann)
            finally:
                wakes.set()
            with pytest.raises(OperationalError):
                await freezing
            town.model.release("gate")
            await ended(second, ann, sent)

    run(story())
