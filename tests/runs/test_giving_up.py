"""A run that cannot be ended in the loop's own way ends all the same: it is never driven for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from prepared import prepare
from sqlalchemy import func, select, update

from luxx.app.container import House
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.views import ConversationChange
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import (
    AppConfig,
    Config,
    LocalConfig,
    ProvidersConfig,
    RunsConfig,
    WorkspaceConfig,
)
from luxx.providers.models import NewProvider
from luxx.providers.scripted import Finish, Gate, Rule, Script, ScriptedProvider, Text
from luxx.runs.engine.driver import MAX_LOSSES
from luxx.runs.models import RunEventRow, RunRow
from luxx.runs.service import AskingAgain, Sending
from luxx.wire.run import Run, RunStatus
from luxx.wire.tool import CommandPermission

REPLY = [Text(text="I am"), Gate(name="waiting"), Text(text=" here."), Finish()]


@asynccontextmanager
async def opened(folder: Path, upstream: ScriptedProvider) -> AsyncIterator[tuple[House, Caller, Run]]:
    """A house in which the model has begun to answer."""
    config = Config(
        app=AppConfig(secret_key="a-secret-key-of-a-test-of-32-bytes"),
        workspace=WorkspaceConfig(root=str(folder / "workspaces")),
        local=LocalConfig(enabled=False),
        providers=ProvidersConfig(allow_private=[upstream.url.removeprefix("http://")]),
        runs=RunsConfig(lease_seconds=0.4, grace_seconds=5),
        data_dir=str(folder / "data"),
    )
    prepare(folder / "data")
    house = House(config, {"LUXX_ADMIN_PASSWORD": "a-password-of-a-test"})
    await house.open()
    try:
        user = await house.store.read(lambda session: session.scalar(select(User.id)))
        assert user is not None
        caller = Caller(
            user_id=user,
            tenant_id=1,
            username="admin",
            permission_level=CommandPermission.ADMIN,
            sign_in_id="",
        )
        await house.providers.create(
            caller,
            NewProvider(
                name="scripted",
                provider_type="openai_compatible",
                base_url=f"{upstream.url}/v1",
                default_model="any",
            ),
        )
        conversation = await house.conversations.create(caller, ConversationChange())
        run = await house.runs.send(caller, Sending(conversation_id=conversation.id, text="hello"))
        await upstream.reached("waiting")
        yield house, caller, run
    finally:
        await house.close()


async def told_of(house: House, caller: Caller, run: Run) -> bytes:
    """All that a client of the run is told, to its end."""
    watch = await house.runs.watch(caller, run.id)
    told = b""
    with watch.attached():
        async with asyncio.timeout(20):
            while data := await watch.next():
                told += data
    return told


async def check_free(house: House, caller: Caller, run: Run) -> None:
    """The run has failed, its log says so at its end, and its conversation can be used and deleted."""
    assert b"event: done" in await told_of(house, caller, run)
    seen = await house.runs.get(caller, run.id)
    assert seen.status == RunStatus.FAILED
    assert seen.error
    events, _ = await house.runs.events(caller, run.id, after=0, limit=100)
    assert [event.type for event in events[-2:]] == ["error", "done"]
    assert [event.seq for event in events] == list(range(1, seen.last_seq + 1))
    assert (await house.conversations.get(caller, run.subject_id)).run_id is None
    await house.conversations.delete(caller, run.subject_id)
    left = await house.store.read(lambda s: s.scalar(select(func.count()).select_from(RunEventRow)))
    assert left == 0


def test_a_run_whose_message_cannot_be_stored_fails_and_calls_the_model_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            ScriptedProvider(Script(rules=[Rule(reply=REPLY)])) as upstream,
            opened(tmp_path, upstream) as (house, caller, run),
        ):
            row = MessageRow(
                id=run.message_id, user_id=caller.user_id, conversation_id=run.subject_id, role="user",
                content=msgspec.json.encode({"text": "in the way"}).decode(), created_at=utc_now(),
            )  # fmt: skip
            await house.store.write(lambda session: session.add(row))
            upstream.release("waiting")
            await check_free(house, caller, run)
            assert len(upstream.requests) == 1

    asyncio.run(work())


def test_a_run_that_was_taken_up_too_often_is_given_up(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            ScriptedProvider(Script(rules=[Rule(reply=REPLY)])) as upstream,
            opened(tmp_path, upstream) as (house, caller, run),
        ):
            # As if another server had taken it so often, and died each time.
            taken = update(RunRow).where(RunRow.id == run.id)
            await house.store.write(
                lambda session: session.execute(taken.values(fence=5, losses=MAX_LOSSES - 1, owner="another"))
            )
            upstream.release("waiting")
            await check_free(house, caller, run)
            assert len(upstream.requests) == 1

    asyncio.run(work())


def test_a_run_that_was_given_up_is_deleted_with_its_question_also_when_that_was_asked_again(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with (
            ScriptedProvider(Script(rules=[Rule(reply=REPLY)])) as upstream,
            opened(tmp_path, upstream) as (house, caller, run),
        ):
            taken = update(RunRow).where(RunRow.id == run.id)
            await house.store.write(
                lambda session: session.execute(taken.values(fence=5, losses=MAX_LOSSES - 1, owner="another"))
            )
            upstream.release("waiting")
            await told_of(house, caller, run)
            question = await house.store.read(lambda session: session.scalar(select(MessageRow.id)))
            assert question is not None
            again = await house.runs.send(caller, AskingAgain(message_id=question))
            await told_of(house, caller, again)
            await house.conversations.delete_message(caller, question)
            left = await house.store.read(lambda session: session.scalars(select(RunRow.id)).all())
            assert list(left) == []

    asyncio.run(work())
