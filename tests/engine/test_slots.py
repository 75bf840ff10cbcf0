"""Slots and the queue: which run waits, which is next, which is refused, and how a waiting run ends."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from engine.in_process_cluster import (
    InProcessCluster,
    always_replies,
    ended,
    one_gate_each,
    status_of,
    types_of,
    until,
)
from luxx.domain.conversations.views import ConversationChange
from luxx.errors import Conflict, TooMany
from luxx.providers.scripted import Call, Gate, Rule, Script, Text, When
from luxx.runs.engine.processes import ProcessKind
from luxx.runs.engine.queue import QueuedRun, choose_next, kinds_of
from luxx.runs.models import RunRow
from luxx.runs.options import NewMessage
from luxx.runs.questions import GivenAnswer, QuestionFilter
from luxx.wire.run import SIDE_KINDS, QuestionStatus, RunKind, RunStatus

lines = st.lists(st.integers(1, 4), max_size=20).map(
    lambda users: [QueuedRun(user, f"run{rank}") for rank, user in enumerate(users)]
)


@given(lines, st.dictionaries(st.integers(1, 4), st.integers(0, 5)), st.integers(0, 8), st.integers(0, 4))
def test_every_slot_goes_to_the_user_with_the_fewest_and_to_their_oldest_run(
    queue: list[QueuedRun], running: dict[int, int], free: int, per_user: int
) -> None:
    chosen = choose_next(queue, running, free, per_user)
    has, left = dict(running), list(queue)
    for run_id in chosen:
        mine = next(queued for queued in left if queued.run_id == run_id)
        for other in left:
            assert (has.get(mine.user_id, 0), queue.index(mine)) <= (
                has.get(other.user_id, 0),
                queue.index(other),
            )
        left.remove(mine)
        has[mine.user_id] = has.get(mine.user_id, 0) + 1
        assert not per_user or has[mine.user_id] <= per_user
    may_go_on = [queued for queued in left if not per_user or has.get(queued.user_id, 0) < per_user]
    assert len(chosen) == free or not may_go_on


def test_workers_take_every_kind_and_servers_leave_rooms_and_tasks_to_them() -> None:
    assert kinds_of(ProcessKind.WORKER, are_workers_up=True) == set(RunKind)
    assert kinds_of(ProcessKind.SERVE, are_workers_up=False) == set(RunKind)
    assert kinds_of(ProcessKind.SERVE, are_workers_up=True) == {RunKind.CHAT, RunKind.ARTIFACT, *SIDE_KINDS}


async def test_a_run_past_the_limit_waits_and_begins_when_a_slot_is_free(
    database_url: str, tmp_path: Path
) -> None:
    texts = ("one", "two", "three")
    async with InProcessCluster(
        tmp_path, database_url, one_gate_each(*texts), concurrent_runs_per_user=1
    ) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        first, second, third = [await cluster.send(services, ann, text) for text in texts]
        assert [each.status for each in (first, second, third)] == ["running", "queued", "queued"]
        assert (second.phase, second.started_at) == (None, None)
        await cluster.model.reached("one")
        assert len(cluster.model.requests) == 1
        cluster.model.release("one")
        await ended(services, ann, first)
        await cluster.model.reached("two")
        assert await status_of(services, ann, third) == RunStatus.QUEUED
        cluster.model.release("two")
        await cluster.model.reached("three")
        cluster.model.release("three")
        for each in (second, third):
            last = await ended(services, ann, each)
            assert last.status == RunStatus.COMPLETED
            assert last.started_at is not None
            assert "warning" not in await types_of(services, ann, each)


@pytest.mark.heavy
async def test_a_user_with_one_run_does_not_wait_for_another_who_has_a_hundred(
    database_url: str, tmp_path: Path
) -> None:
    """The second user's run begins within one run's length, because it gets the next free slot."""

    script = one_gate_each("many", "few")
    async with InProcessCluster(tmp_path, database_url, script, concurrent_runs=2) as cluster:
        services = await cluster.services()
        ann, bob = await cluster.add_user(services, "ann"), await cluster.add_user(services, "bob")
        many = [await cluster.send(services, ann, "many") for _ in range(2 + 100)]
        assert [each.status for each in many].count(RunStatus.QUEUED) == 100
        few = await cluster.send(services, bob, "few")
        assert few.status == RunStatus.QUEUED
        await cluster.model.reached("many")
        await services.runs.cancel(ann, many[0].id)
        await cluster.model.reached("few")
        assert await status_of(services, ann, many[2]) == RunStatus.QUEUED
        cluster.model.release("few")
        await ended(services, bob, few)
        cluster.model.release("many")

        async def all_ended() -> bool:
            rows = select(RunRow.id).where(RunRow.status.in_(["queued", "running"])).limit(1)
            return await services.store.read(lambda session: session.scalar(rows)) is None

        await until(all_ended, 40)
        for each in many[1:]:
            assert await status_of(services, ann, each) == RunStatus.COMPLETED


async def test_a_message_past_the_bounds_of_the_queue_is_refused_with_advice(
    database_url: str, tmp_path: Path
) -> None:
    limits = {"concurrent_runs_per_user": 1, "queued_runs_per_user": 2, "queued_runs": 3}
    async with InProcessCluster(
        tmp_path, database_url, always_replies(Gate(name="gate")), **limits
    ) as cluster:
        services = await cluster.services()
        ann, bob = await cluster.add_user(services, "ann"), await cluster.add_user(services, "bob")
        for _ in range(3):
            await cluster.send(services, ann)
        with pytest.raises(TooMany, match=r"allows \(1\), and 2 of your runs wait") as refused:
            await cluster.send(services, ann)
        assert refused.value.kind == "too_many_runs"
        for _ in range(2):
            await cluster.send(services, bob)
        with pytest.raises(TooMany, match="busy") as refused:
            await cluster.send(services, bob)
        assert refused.value.kind == "server_busy"
        cluster.model.release("gate")


async def test_without_a_queue_a_run_past_the_limits_is_refused(database_url: str, tmp_path: Path) -> None:
    limits = {"concurrent_runs_per_user": 1, "concurrent_runs": 2, "queued_runs_per_user": 0}
    async with InProcessCluster(
        tmp_path, database_url, always_replies(Gate(name="gate")), **limits
    ) as cluster:
        services = await cluster.services()
        ann, bob, cat = [await cluster.add_user(services, name) for name in ("ann", "bob", "cat")]
        await cluster.send(services, ann)
        with pytest.raises(TooMany) as refused:
            await cluster.send(services, ann)
        assert refused.value.kind == "too_many_runs"
        await cluster.send(services, bob)
        with pytest.raises(TooMany) as refused:
            await cluster.send(services, cat)
        assert refused.value.kind == "server_busy"
        cluster.model.release("gate")


async def test_a_user_who_waits_for_their_own_run_does_not_delay_others(
    database_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(
        tmp_path, database_url, always_replies(Gate(name="gate")), concurrent_runs_per_user=1
    ) as cluster:
        services = await cluster.services()
        ann, bob = await cluster.add_user(services, "ann"), await cluster.add_user(services, "bob")
        await cluster.send(services, ann)
        assert (await cluster.send(services, ann)).status == RunStatus.QUEUED
        assert (await cluster.send(services, bob)).status == RunStatus.RUNNING
        cluster.model.release("gate")


async def test_a_queued_run_is_cancelled_at_once_and_never_calls_the_model(
    database_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(
        tmp_path, database_url, always_replies(Gate(name="gate")), concurrent_runs_per_user=1
    ) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        first, second = await cluster.send(services, ann), await cluster.send(services, ann)
        await cluster.model.reached("gate")
        assert second.status == RunStatus.QUEUED
        cancelled = await services.runs.cancel(ann, second.id)
        assert (cancelled.status, cancelled.stop_reason) == ("cancelled", "cancelled")
        assert await types_of(services, ann, second) == ["done"]
        assert (await services.conversations.get(ann, second.subject_id)).run_id is None
        assert len(cluster.model.requests) == 1
        assert await status_of(services, ann, first) == RunStatus.RUNNING
        cluster.model.release("gate")


async def test_a_queued_run_that_the_command_line_marked_as_ended_ends_at_the_next_heartbeat(
    database_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(
        tmp_path, database_url, always_replies(Gate(name="gate")), concurrent_runs_per_user=1
    ) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        await cluster.send(services, ann)
        second = await cluster.send(services, ann)
        mark = update(RunRow).where(RunRow.id == second.id).values(is_cancelled=True)
        await services.store.write(lambda session: session.execute(mark))
        assert (await ended(services, ann, second)).status == RunStatus.CANCELLED
        assert len(cluster.model.requests) == 1
        cluster.model.release("gate")


async def test_a_client_that_waits_for_the_answer_gets_it_after_the_queue(
    database_url: str, tmp_path: Path
) -> None:
    script = one_gate_each("one", "two")
    async with InProcessCluster(tmp_path, database_url, script, concurrent_runs_per_user=1) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        await cluster.send(services, ann, "one")
        second = await cluster.send(services, ann, "two")
        answering = asyncio.create_task(services.chats.answer(ann, second))
        cluster.model.release("two")
        await cluster.model.reached("one")
        assert not answering.done()
        cluster.model.release("one")
        assert (await answering).text == "I am here."


async def test_a_stream_of_a_queued_run_reports_it_and_goes_live_when_the_run_begins(
    database_url: str, tmp_path: Path
) -> None:
    script = one_gate_each("one", "two")
    async with InProcessCluster(tmp_path, database_url, script, concurrent_runs_per_user=1) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        await cluster.send(services, ann, "one")
        conversation = await services.conversations.create(ann, ConversationChange())
        asking = NewMessage(conversation_id=conversation.id, text="two")
        watch = await services.chats.send_and_watch(ann, asking)
        received = b""
        with watch.attached():
            received += await watch.next()
            assert b'"status":"queued"' in received
            cluster.model.release("one")
            while b'"delta":"I am"' not in received:
                received += await watch.next()
            cluster.model.release("two")
            while data := await watch.next():
                received += data
        assert b"event: done" in received


async def test_a_stream_of_a_queued_run_goes_live_when_another_process_drives_it(
    shared_url: str, tmp_path: Path
) -> None:
    script = one_gate_each("one", "two")
    async with InProcessCluster(tmp_path, shared_url, script, concurrent_runs_per_user=1) as cluster:
        here, there = await cluster.services(), await cluster.services()
        ann = await cluster.add_user(here, "ann")
        await cluster.send(there, ann, "one")
        conversation = await here.conversations.create(ann, ConversationChange())
        asking = NewMessage(conversation_id=conversation.id, text="two")
        watch = await here.chats.send_and_watch(ann, asking)
        received = b""
        with watch.attached():
            received += await watch.next()
            assert b'"status":"queued"' in received
            # The process that drove the earlier run also takes the next one.
            cluster.model.release("one")
            async with asyncio.timeout(10):
                while b"I am" not in received:
                    received += await watch.next()
                cluster.model.release("two")
                while data := await watch.next():
                    received += data
        assert received.count(b"event: done") == 1
        assert b"I am here." in received


async def test_a_conversation_whose_run_waits_is_busy_and_can_be_deleted(
    database_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(
        tmp_path, database_url, always_replies(Gate(name="gate")), concurrent_runs_per_user=1
    ) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        await cluster.send(services, ann)
        second = await cluster.send(services, ann)
        with pytest.raises(Conflict):
            await services.chats.send(ann, NewMessage(conversation_id=second.subject_id, text="again"))
        await services.conversations.delete(ann, second.subject_id)
        left = await services.store.read(lambda session: session.get(RunRow, second.id))
        assert left is None
        cluster.model.release("gate")


async def test_a_queue_outlives_its_process(database_url: str, tmp_path: Path) -> None:
    script = always_replies(Text(text="I am"), Gate(name="gate"), Text(text=" here."))
    async with InProcessCluster(tmp_path, database_url, script, concurrent_runs_per_user=1) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        all_three = [await cluster.send(services, ann) for _ in range(3)]
        await cluster.model.reached("gate")
        await cluster.kill(services)
        again = await cluster.services()
        cluster.model.release("gate")
        for each in all_three:
            assert (await ended(again, ann, each)).status == RunStatus.COMPLETED


CHILD = "the hand"
QUESTION = {
    "question_type": "scope",
    "question": "Which colour?",
    "options": [{"label": word, "description": word, "is_recommended": False} for word in ("red", "blue")],
    "required": True,
}


def delegates_and_asks() -> Script:
    """A run whose subagent asks a question, and other messages that wait at a gate."""
    task = {"task": "Paint it.", "system_prompt": CHILD}
    asks = Call(name="ask_clarification", arguments=QUESTION, id="call-ask")
    return Script(
        rules=[
            Rule(when=When(system=CHILD, has_tool_result=False), reply=[asks]),
            Rule(when=When(system=CHILD), reply=[Text(text="Red.")]),
            Rule(when=When(user="other"), reply=[Gate(name="other"), Text(text="Yes.")]),
            Rule(when=When(has_tool_result=False), reply=[Call(name="delegate", arguments=task, id="sub")]),
            Rule(when=When(has_tool_result=True), reply=[Text(text="Painted.")]),
        ]
    )


async def test_a_run_holds_no_slot_while_its_subagent_waits_for_an_answer_and_nothing_hangs(
    database_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, database_url, delegates_and_asks(), concurrent_runs=1) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        talk = await services.conversations.create(ann, ConversationChange())
        tools = ["delegate", "ask_clarification"]
        lead = await services.chats.send(ann, NewMessage(conversation_id=talk.id, text="go", tools=tools))
        with pytest.raises(Conflict) as refused:
            await services.chats.answer(ann, lead)
        assert refused.value.kind == "run_waiting"
        assert (await services.replay.read_status(ann, talk.id)).is_waiting
        (question,), _total = await services.questions.list_page(
            ann, QuestionFilter(status=QuestionStatus.OPEN), page=1, page_size=9
        )
        assert f"/runs/{question.run_id}/questions" in refused.value.message
        other = await cluster.send(services, ann, "other")
        assert other.status == RunStatus.RUNNING
        await cluster.model.reached("other")
        answer = GivenAnswer(answer="red")
        await services.questions.answer(ann, question.run_id, question.id, answer)
        assert (await services.runs.get(ann, question.run_id)).status == RunStatus.QUEUED
        cluster.model.release("other")
        assert (await ended(services, ann, lead)).status == RunStatus.COMPLETED
