"""Who looks first after all stood still, whose runs are left alone, and who has to stand in the line."""

import asyncio
import time
from pathlib import Path

from sqlalchemy import select, update

from engine.conftest import Runs
from engine.town import GATED, LEASE_SECONDS, WAIT_SECONDS, Town, ended, says, status_of, until
from luxx.domain.accounts.models import User
from luxx.providers.scripted import Call, Finish, Gate, Rule, Script, Text, When
from luxx.runs.engine import processes as leases
from luxx.runs.models import ProcessRow, RunRow
from luxx.runs.questions import GivenAnswer, QuestionFilter
from luxx.runs.stopping import RunStopper
from luxx.wire.question import QuestionView
from luxx.wire.run import RunKind, RunStatus

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


def test_who_looks_first_when_all_leases_are_over_takes_nobody_s_runs(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            first, second = await town.house(), await town.house()
            ann, sent = await town.begun(first)
            # As when the database was away: nobody could beat, and both look before they do.
            time.sleep(1.2 * LEASE_SECONDS)  # noqa: ASYNC251 - nothing may go on meanwhile
            second.durable.reaper.look()
            first.durable.reaper.look()
            await asyncio.sleep(LEASE_SECONDS)
            assert len(town.model.requests) == 1
            town.model.release("gate")
            assert (await ended(second, ann, sent)).status == RunStatus.COMPLETED
            fence = await first.store.read(lambda session: session.scalar(select(RunRow.fence)))
            assert fence == 1

    run(story())


def test_a_process_does_not_take_its_own_run_for_lost_when_its_lease_is_over(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            house = await town.house()
            ann, sent = await town.begun(house)

            def lost(owner: str) -> list[str]:
                with house.engine.begin() as connection:
                    connection.execute(update(ProcessRow).values(lease_until=0.0))
                    found = leases.find_lost(connection, owner, [RunKind.CHAT], is_alone=False)
                    return [each.run_id for each in found]

            assert await asyncio.to_thread(lost, house.process) == []
            assert await asyncio.to_thread(lost, "another") == [sent.id]
            town.model.release("gate")
            await ended(house, ann, sent)

    run(story())


def test_a_run_whose_question_is_answered_stands_in_the_line_for_a_place(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, ASKING, concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            asking = await town.send(house, ann, "ask me")

            async def question() -> QuestionView | None:
                found, _ = await house.questions.list_page(ann, QuestionFilter(), page=1, page_size=1)
                return found[0] if found else None

            asked = await until(question)
            staying = await town.send(house, ann, "stay")
            await town.model.reached("stay")
            await house.questions.answer(ann, asking.id, asked.id, GivenAnswer(answer="yes"))
            await asyncio.sleep(LEASE_SECONDS / 2)
            assert await status_of(house, ann, asking) == RunStatus.QUEUED
            town.model.release("stay")
            assert (await ended(house, ann, asking)).status == RunStatus.COMPLETED
            assert (await ended(house, ann, staying)).status == RunStatus.COMPLETED

    run(story())


def test_what_a_disabled_person_left_in_the_line_ends_as_cancelled(
    database_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, database_url, says(*GATED), concurrent_runs_per_user=1) as town:
            house = await town.house()
            ann = await town.person(house, "ann")
            runs = [await town.send(house, ann, text) for text in ("one", "two")]
            await town.model.reached("gate")
            assert await status_of(house, ann, runs[1]) == RunStatus.QUEUED
            await house.store.write(
                lambda session: session.execute(
                    update(User).where(User.id == ann.user_id).values(is_active=False)
                )
            )
            async with asyncio.timeout(WAIT_SECONDS):
                await RunStopper(house.store, house.durable).stop_all_of(ann.user_id)
            statuses = [(await ended(house, ann, each)).status for each in runs]
            assert statuses == [RunStatus.CANCELLED, RunStatus.CANCELLED]

    run(story())
