"""After an outage: which process recovers runs, which runs it leaves alone, and which have to queue."""

import asyncio
import time
from pathlib import Path

from sqlalchemy import select, update

from engine.in_process_cluster import (
    GATED,
    LEASE_SECONDS,
    WAIT_SECONDS,
    InProcessCluster,
    always_replies,
    ended,
    status_of,
    until,
)
from luxx.domain.accounts.models import User
from luxx.providers.scripted import Call, Finish, Gate, Rule, Script, Text, When
from luxx.runs.engine import processes as leases
from luxx.runs.models import ProcessRow, RunRow
from luxx.runs.questions import GivenAnswer, QuestionFilter
from luxx.runs.service import RunStopper
from luxx.wire.run import QuestionView, RunKind, RunStatus

ASKS = [
    Call(name="ask_decision", arguments={"decision_type": "risk", "context": "Dare I?", "options": []}),
    Finish(reason="tool_calls"),
]
ASKING = Script(
    rules=[
        Rule(when=When(user="stay"), reply=[Text(text="I am"), Gate(name="stay"), Text(text=" here.")]),
        Rule(when=When(has_tool_result=False), reply=ASKS),
        Rule(when=When(has_tool_result=True), reply=[Text(text="So be it."), Finish()]),
    ]
)


async def test_the_first_process_after_an_outage_takes_no_runs_of_live_processes(
    shared_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        first, second = await cluster.services(), await cluster.services()
        ann, sent = await cluster.gated_run(first)
        # Simulates an outage: no process sent heartbeats, and both scan before they do.
        time.sleep(1.2 * LEASE_SECONDS)  # noqa: ASYNC251 - nothing may go on meanwhile
        second.run_driver.heartbeat.request_scan()
        first.run_driver.heartbeat.request_scan()
        await asyncio.sleep(LEASE_SECONDS)
        assert len(cluster.model.requests) == 1
        cluster.model.release("gate")
        assert (await ended(second, ann, sent)).status == RunStatus.COMPLETED
        fence = await first.store.read(lambda session: session.scalar(select(RunRow.fence)))
        assert fence == 1


async def test_a_process_whose_lease_expired_does_not_treat_its_own_run_as_lost(
    shared_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        services = await cluster.services()
        ann, sent = await cluster.gated_run(services)

        def lost(owner: str) -> list[str]:
            with services.engine.begin() as connection:
                connection.execute(update(ProcessRow).values(lease_until=0.0))
                lost_runs = leases.find_lost(connection, owner, [RunKind.CHAT], is_alone=False)
                return [each.run_id for each in lost_runs]

        assert await asyncio.to_thread(lost, services.process_id) == []
        assert await asyncio.to_thread(lost, "another") == [sent.id]
        cluster.model.release("gate")
        await ended(services, ann, sent)


async def test_a_run_whose_question_is_answered_queues_for_a_slot(database_url: str, tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, database_url, ASKING, concurrent_runs_per_user=1) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        asking = await cluster.send(services, ann, "ask me")

        async def question() -> QuestionView | None:
            questions, _ = await services.questions.list_page(ann, QuestionFilter(), page=1, page_size=1)
            return questions[0] if questions else None

        open_question = await until(question)
        staying = await cluster.send(services, ann, "stay")
        await cluster.model.reached("stay")
        await services.questions.answer(ann, asking.id, open_question.id, GivenAnswer(answer="yes"))
        await asyncio.sleep(LEASE_SECONDS / 2)
        assert await status_of(services, ann, asking) == RunStatus.QUEUED
        cluster.model.release("stay")
        assert (await ended(services, ann, asking)).status == RunStatus.COMPLETED
        assert (await ended(services, ann, staying)).status == RunStatus.COMPLETED


async def test_queued_runs_of_a_disabled_user_end_as_cancelled(database_url: str, tmp_path: Path) -> None:
    async with InProcessCluster(
        tmp_path, database_url, always_replies(*GATED), concurrent_runs_per_user=1
    ) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        runs = [await cluster.send(services, ann, text) for text in ("one", "two")]
        await cluster.model.reached("gate")
        assert await status_of(services, ann, runs[1]) == RunStatus.QUEUED
        await services.store.write(
            lambda session: session.execute(
                update(User).where(User.id == ann.user_id).values(is_active=False)
            )
        )
        async with asyncio.timeout(WAIT_SECONDS):
            await RunStopper(services.store, services.run_driver).stop_all_of(ann.user_id)
        statuses = [(await ended(services, ann, each)).status for each in runs]
        assert statuses == [RunStatus.CANCELLED, RunStatus.CANCELLED]
