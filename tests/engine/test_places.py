"""Places and the queue: who waits, who is next, what is refused, and that a run that waits can be ended."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from engine.conftest import Runs
from engine.town import Town, ended, one_gate_each, says, status_of, types_of, until
from luxx.domain.conversations.views import ConversationChange
from luxx.errors import Conflict, TooMany
from luxx.providers.scripted import Call, Gate, Rule, Script, Text, When
from luxx.runs.engine.processes import ProcessKind
from luxx.runs.engine.slots import Queued, kinds_of, next_in_line
from luxx.runs.models import RunRow
from luxx.runs.questions import GivenAnswer, QuestionFilter
from luxx.runs.service import Sending
from luxx.wire.question import QuestionStatus
from luxx.wire.run import RunKind, RunStatus

lines = st.lists(st.integers(1, 4), max_size=20).map(
    lambda users: [Queued(user, f"run{place}") for place, user in enumerate(users)]
)


@given(lines, st.dictionaries(st.integers(1, 4), st.integers(0, 5)), st.integers(0, 8), st.integers(0, 4))
def test_every_place_goes_to_the_user_with_the_fewest_and_to_their_oldest_run(
    line: list[Queued], running: dict[int, int], free: int, per_user: int
) -> None:
    chosen = next_in_line(line, running, free, per_user)
    has, left = dict(running), list(line)
    for run_id in chosen:
        mine = next(queued for queued in left if queued.run_id == run_id)
        for other in left:
            assert (has.get(mine.user_id, 0), line.index(mine)) <= (
                has.get(other.user_id, 0),
                line.index(other),
            )
        left.remove(mine)
        has[mine.user_id] = has.get(mine.user_id, 0) + 1
        assert not per_user or has[mine.user_id] <= per_user
    may_go_on = [queued for queued in left if not per_user or has.get(queued.user_id, 0) < per_user]
    assert len(chosen) == free or not may_go_on


def test_workers_take_every_kind_and_servers_leave_rooms_and_tasks_to_them() -> None:
    assert kinds_of(ProcessKind.WORKER, are_workers_up=True) == set(RunKind)
    assert kinds_of(ProcessKind.SERVE, are_workers_up=False) == set(RunKind)
    assert kinds_of(ProcessKind.SERVE, are_workers_up=True) == {RunKind.CHAT}


def test_a_run_past_the_limit_waits_and_begins_when_a_place_is_free(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        texts = ("one", "two", "three")
        async with Town(tmp_path, database_url, one_gate_each(*texts), concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            first, second, third = [await town.send(house, ann, text) for text in texts]
            assert [each.status for each in (first, second, third)] == ["running", "queued", "queued"]
            assert (second.phase, second.started_at) == (None, None)
            await town.model.reached("one")
            assert len(town.model.requests) == 1
            town.model.release("one")
            await ended(house, ann, first)
            await town.model.reached("two")
            assert await status_of(house, ann, third) == RunStatus.QUEUED
            town.model.release("two")
            await town.model.reached("three")
            town.model.release("three")
            for each in (second, third):
                last = await ended(house, ann, each)
                assert last.status == RunStatus.COMPLETED
                assert last.started_at is not None
                assert "warning" not in await types_of(house, ann, each)

    run(story())


@pytest.mark.heavy
def test_a_user_with_one_run_does_not_wait_for_another_who_has_a_hundred(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    """The second begins within one run's length: the next place is theirs."""

    async def story() -> None:
        script = one_gate_each("many", "few")
        async with Town(tmp_path, database_url, script, concurrent_runs=2) as town:
            house = await town.house()
            ann, bob = await town.person(house, "ann"), await town.person(house, "bob")
            many = [await town.send(house, ann, "many") for _ in range(2 + 100)]
            assert [each.status for each in many].count(RunStatus.QUEUED) == 100
            few = await town.send(house, bob, "few")
            assert few.status == RunStatus.QUEUED
            await town.model.reached("many")
            await house.runs.cancel(ann, many[0].id)
            await town.model.reached("few")
            assert await status_of(house, ann, many[2]) == RunStatus.QUEUED
            town.model.release("few")
            await ended(house, bob, few)
            town.model.release("many")

            async def all_ended() -> bool:
                rows = select(RunRow.id).where(RunRow.status.in_(["queued", "running"])).limit(1)
                return await house.store.read(lambda session: session.scalar(rows)) is None

            await until(all_ended, 40)
            for each in many[1:]:
                assert await status_of(house, ann, each) == RunStatus.COMPLETED

    run(story())


def test_past_the_bounds_of_the_queue_it_is_refused_with_what_to_do(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        limits = {"concurrent_runs_per_user": 1, "queued_runs_per_user": 2, "queued_runs": 3}
        async with Town(tmp_path, database_url, says(Gate(name="gate")), **limits) as town:
            house = await town.house()
            ann, bob = await town.person(house, "ann"), await town.person(house, "bob")
            for _ in range(3):
                await town.send(house, ann)
            with pytest.raises(TooMany, match="1 runs in progress and 2 that wait") as refused:
                await town.send(house, ann)
            assert refused.value.kind == "too_many_runs"
            for _ in range(2):
                await town.send(house, bob)
            with pytest.raises(TooMany, match="busy") as refused:
                await town.send(house, bob)
            assert refused.value.kind == "server_busy"
            town.model.release("gate")

    run(story())


def test_without_a_queue_a_run_past_the_limits_is_refused(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        limits = {"concurrent_runs_per_user": 1, "concurrent_runs": 2, "queued_runs_per_user": 0}
        async with Town(tmp_path, database_url, says(Gate(name="gate")), **limits) as town:
            house = await town.house()
            ann, bob, cat = [await town.person(house, name) for name in ("ann", "bob", "cat")]
            await town.send(house, ann)
            with pytest.raises(TooMany) as refused:
                await town.send(house, ann)
            assert refused.value.kind == "too_many_runs"
            await town.send(house, bob)
            with pytest.raises(TooMany) as refused:
                await town.send(house, cat)
            assert refused.value.kind == "server_busy"
            town.model.release("gate")

    run(story())


def test_whoever_waits_only_for_a_run_of_their_own_keeps_nobody_else_waiting(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, says(Gate(name="gate")), concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann, bob = await town.person(house, "ann"), await town.person(house, "bob")
            await town.send(house, ann)
            assert (await town.send(house, ann)).status == RunStatus.QUEUED
            assert (await town.send(house, bob)).status == RunStatus.RUNNING
            town.model.release("gate")

    run(story())


def test_a_run_that_waits_is_cancelled_at_once_and_never_asks_the_model(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, says(Gate(name="gate")), concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            first, second = await town.send(house, ann), await town.send(house, ann)
            await town.model.reached("gate")
            assert second.status == RunStatus.QUEUED
            cancelled = await house.runs.cancel(ann, second.id)
            assert (cancelled.status, cancelled.stop_reason) == ("cancelled", "cancelled")
            assert await types_of(house, ann, second) == ["done"]
            assert (await house.conversations.get(ann, second.subject_id)).run_id is None
            assert len(town.model.requests) == 1
            assert await status_of(house, ann, first) == RunStatus.RUNNING
            town.model.release("gate")

    run(story())


def test_a_run_that_waits_and_was_marked_as_ended_by_the_command_line_ends_at_the_next_beat(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, says(Gate(name="gate")), concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            await town.send(house, ann)
            second = await town.send(house, ann)
            mark = update(RunRow).where(RunRow.id == second.id).values(is_cancelled=True)
            await house.store.write(lambda session: session.execute(mark))
            assert (await ended(house, ann, second)).status == RunStatus.CANCELLED
            assert len(town.model.requests) == 1
            town.model.release("gate")

    run(story())


def test_who_sends_and_awaits_the_answer_gets_it_after_the_wait(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        script = one_gate_each("one", "two")
        async with Town(tmp_path, database_url, script, concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            await town.send(house, ann, "one")
            second = await town.send(house, ann, "two")
            answering = asyncio.create_task(house.runs.answer(ann, second))
            town.model.release("two")
            await town.model.reached("one")
            assert not answering.done()
            town.model.release("one")
            assert (await answering).text == "I am here."

    run(story())


def test_a_stream_of_a_run_that_waits_says_so_and_goes_live_when_it_begins(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        script = one_gate_each("one", "two")
        async with Town(tmp_path, database_url, script, concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            await town.send(house, ann, "one")
            conversation = await house.conversations.create(ann, ConversationChange())
            asking = Sending(conversation_id=conversation.id, text="two")
            watch = await house.runs.send_and_watch(ann, asking)
            told = b""
            with watch.attached():
                told += await watch.next()
                assert b'"status":"queued"' in told
                town.model.release("one")
                while b'"delta":"I am"' not in told:
                    told += await watch.next()
                town.model.release("two")
                while data := await watch.next():
                    told += data
            assert b"event: done" in told

    run(story())


def test_a_stream_of_a_run_that_waits_here_goes_live_when_another_process_drives_it(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        script = one_gate_each("one", "two")
        async with Town(tmp_path, shared_url, script, concurrent_runs_per_user=1) as town:
            here, there = await town.house(), await town.house()
            ann = await town.person(here, "ann")
            await town.send(there, ann, "one")
            conversation = await here.conversations.create(ann, ConversationChange())
            asking = Sending(conversation_id=conversation.id, text="two")
            watch = await here.runs.send_and_watch(ann, asking)
            told = b""
            with watch.attached():
                told += await watch.next()
                assert b'"status":"queued"' in told
                # Whoever drove the run before takes the next one.
                town.model.release("one")
                async with asyncio.timeout(10):
                    while b"I am" not in told:
                        told += await watch.next()
                    town.model.release("two")
                    while data := await watch.next():
                        told += data
            assert told.count(b"event: done") == 1
            assert b"I am here." in told

    run(story())


def test_a_conversation_whose_run_waits_is_busy_and_can_be_deleted(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, says(Gate(name="gate")), concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            await town.send(house, ann)
            second = await town.send(house, ann)
            with pytest.raises(Conflict):
                await house.runs.send(ann, Sending(conversation_id=second.subject_id, text="again"))
            await house.conversations.delete(ann, second.subject_id)
            left = await house.store.read(lambda session: session.get(RunRow, second.id))
            assert left is None
            town.model.release("gate")

    run(story())


def test_a_queue_outlives_its_process(database_url: str, tmp_path: Path, run: Runs) -> None:
    async def story() -> None:
        script = says(Text(text="I am"), Gate(name="gate"), Text(text=" here."))
        async with Town(tmp_path, database_url, script, concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            all_three = [await town.send(house, ann) for _ in range(3)]
            await town.model.reached("gate")
            await town.kill(house)
            again = await town.house()
            town.model.release("gate")
            for each in all_three:
                assert (await ended(again, ann, each)).status == RunStatus.COMPLETED

    run(story())


CHILD = "the hand"
QUESTION = {
    "question_type": "scope",
    "question": "Which colour?",
    "options": [{"label": word, "description": word, "is_recommended": False} for word in ("red", "blue")],
    "required": True,
}


def delegates_and_asks() -> Script:
    """A run whose subagent asks, and other messages that wait at a gate."""
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


def test_a_run_holds_no_place_while_its_subagent_waits_for_a_person_and_nobody_hangs(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, delegates_and_asks(), concurrent_runs=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            talk = await house.conversations.create(ann, ConversationChange())
            tools = ["delegate", "ask_clarification"]
            lead = await house.runs.send(ann, Sending(conversation_id=talk.id, text="go", tools=tools))
            with pytest.raises(Conflict) as refused:
                await house.runs.answer(ann, lead)
            assert refused.value.kind == "run_waiting"
            assert (await house.replay.status(ann, talk.id)).is_waiting
            (question,), _total = await house.questions.list_page(
                ann, QuestionFilter(status=QuestionStatus.OPEN), page=1, page_size=9
            )
            assert f"/runs/{question.run_id}/questions" in refused.value.message
            other = await town.send(house, ann, "other")
            assert other.status == RunStatus.RUNNING
            await town.model.reached("other")
            answer = GivenAnswer(answer="red")
            await house.questions.answer(ann, question.run_id, question.id, answer)
            assert (await house.runs.get(ann, question.run_id)).status == RunStatus.QUEUED
            town.model.release("other")
            assert (await ended(house, ann, lead)).status == RunStatus.COMPLETED

    run(story())
