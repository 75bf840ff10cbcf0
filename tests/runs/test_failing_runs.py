"""A run that cannot end in the usual way fails, instead of being driven again and again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from migrated_databases import prepare
from sqlalchemy import func, select, update

from luxx.app.container import Services
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
from luxx.runs.options import NewMessage, Regeneration
from luxx.wire.run import Run, RunStatus
from luxx.wire.tool import CommandPermission

REPLY = [Text(text="I am"), Gate(name="waiting"), Text(text=" here."), Finish()]


@asynccontextmanager
async def open_services(
    folder: Path, upstream: ScriptedProvider
) -> AsyncIterator[tuple[Services, Caller, Run]]:
    """Services with one run whose model has begun to answer."""
    config = Config(
        app=AppConfig(secret_key="a-secret-key-of-a-test-of-32-bytes"),
        workspace=WorkspaceConfig(root=str(folder / "workspaces")),
        local=LocalConfig(enabled=False),
        providers=ProvidersConfig(allow_private=[upstream.url.removeprefix("http://")]),
        runs=RunsConfig(lease_seconds=0.4, grace_seconds=5),
        data_dir=str(folder / "data"),
    )
    prepare(folder / "data")
    services = Services(config, {"LUXX_ADMIN_PASSWORD": "a-password-of-a-test"})
    await services.open()
    try:
        user = await services.store.read(lambda session: session.scalar(select(User.id)))
        assert user is not None
        caller = Caller(
            user_id=user,
            tenant_id=1,
            username="admin",
            permission_level=CommandPermission.ADMIN,
            sign_in_id="",
        )
        await services.providers.create(
            caller,
            NewProvider(
                name="scripted",
                provider_type="openai_compatible",
                base_url=f"{upstream.url}/v1",
                default_model="scripted",
            ),
        )
        conversation = await services.conversations.create(caller, ConversationChange())
        run = await services.chats.send(caller, NewMessage(conversation_id=conversation.id, text="hello"))
        await upstream.reached("waiting")
        yield services, caller, run
    finally:
        await services.close()


async def read_stream(services: Services, caller: Caller, run: Run) -> bytes:
    """Everything that a client of the run receives, to the end of the stream."""
    watch = await services.runs.watch(caller, run.id)
    received = b""
    with watch.attached():
        async with asyncio.timeout(20):
            while data := await watch.next():
                received += data
    return received


async def check_free(services: Services, caller: Caller, run: Run) -> None:
    """Checks that the run has failed, its log ends with that, and its conversation can be used and
    deleted."""
    assert b"event: done" in await read_stream(services, caller, run)
    failed_run = await services.runs.get(caller, run.id)
    assert failed_run.status == RunStatus.FAILED
    assert failed_run.error
    events, _ = await services.runs.events(caller, run.id, after=0, limit=100)
    assert [event.type for event in events[-2:]] == ["error", "done"]
    assert [event.seq for event in events] == list(range(1, failed_run.last_seq + 1))
    assert (await services.conversations.get(caller, run.subject_id)).run_id is None
    await services.conversations.delete(caller, run.subject_id)
    left = await services.store.read(lambda s: s.scalar(select(func.count()).select_from(RunEventRow)))
    assert left == 0


async def test_a_run_whose_message_cannot_be_stored_fails_and_calls_the_model_once(tmp_path: Path) -> None:
    async with (
        ScriptedProvider(Script(rules=[Rule(reply=REPLY)])) as upstream,
        open_services(tmp_path, upstream) as (services, caller, run),
    ):
        row = MessageRow(
            id=run.message_id, user_id=caller.user_id, conversation_id=run.subject_id, role="user",
            content=msgspec.json.encode({"text": "in the way"}).decode(), created_at=utc_now(),
        )  # fmt: skip
        await services.store.write(lambda session: session.add(row))
        upstream.release("waiting")
        await check_free(services, caller, run)
        assert len(upstream.requests) == 1


async def test_a_run_that_was_taken_over_too_often_fails(tmp_path: Path) -> None:
    async with (
        ScriptedProvider(Script(rules=[Rule(reply=REPLY)])) as upstream,
        open_services(tmp_path, upstream) as (services, caller, run),
    ):
        # Simulates that another server has taken it that often and died each time.
        taken = update(RunRow).where(RunRow.id == run.id)
        await services.store.write(
            lambda session: session.execute(taken.values(fence=5, losses=MAX_LOSSES - 1, owner="another"))
        )
        upstream.release("waiting")
        await check_free(services, caller, run)
        assert len(upstream.requests) == 1


async def test_a_failed_run_is_deleted_with_its_question_also_when_that_was_asked_again(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedProvider(Script(rules=[Rule(reply=REPLY)])) as upstream,
        open_services(tmp_path, upstream) as (services, caller, run),
    ):
        taken = update(RunRow).where(RunRow.id == run.id)
        await services.store.write(
            lambda session: session.execute(taken.values(fence=5, losses=MAX_LOSSES - 1, owner="another"))
        )
        upstream.release("waiting")
        await read_stream(services, caller, run)
        question = await services.store.read(lambda session: session.scalar(select(MessageRow.id)))
        assert question is not None
        again = await services.chats.send(caller, Regeneration(message_id=question))
        await read_stream(services, caller, again)
        await services.conversations.delete_message(caller, question)
        left = await services.store.read(lambda session: session.scalars(select(RunRow.id)).all())
        assert list(left) == []
