"""Runs that wait for an answer cost nothing but rows, and end with everything that stops a user's runs."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from migrated_databases import prepare
from sqlalchemy import func, select

from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.conversations.views import ConversationChange
from luxx.infra.config.schema import (
    AppConfig,
    Config,
    LimitsConfig,
    LocalConfig,
    ProvidersConfig,
    WorkspaceConfig,
)
from luxx.providers.models import NewProvider
from luxx.providers.scripted import Call, Finish, Rule, Script, ScriptedProvider, Text, When
from luxx.runs.log.channel import Channel
from luxx.runs.models import QuestionRow, RunFilter
from luxx.runs.options import NewMessage
from luxx.runs.questions import GivenAnswer, QuestionFilter
from luxx.runs.service import RunStopper
from luxx.wire.run import ENDED, QuestionStatus, RunStatus
from luxx.wire.tool import CommandPermission

MANY = 200
AT_ONCE = 20
ASK = Call(name="ask_decision", arguments={"decision_type": "risk", "context": "Dare I?", "options": []})
ASKS = Script(
    rules=[
        Rule(name="asks", when=When(has_tool_result=False), reply=[ASK, Finish(reason="tool_calls")]),
        Rule(name="ends", when=When(has_tool_result=True), reply=[Text(text="So be it."), Finish()]),
    ]
)
OPEN = QuestionFilter(status=QuestionStatus.OPEN)


@asynccontextmanager
async def open_services(folder: Path, upstream: ScriptedProvider) -> AsyncIterator[tuple[Services, Caller]]:
    """Services without limits whose model asks a question."""
    config = Config(
        app=AppConfig(secret_key="a-secret-key-of-a-test-of-32-bytes"),
        workspace=WorkspaceConfig(root=str(folder / "workspaces")),
        local=LocalConfig(enabled=False),
        limits=LimitsConfig(concurrent_runs_per_user=0, concurrent_runs=0),
        providers=ProvidersConfig(allow_private=[upstream.url.removeprefix("http://")]),
        data_dir=str(folder / "data"),
    )
    prepare(folder / "data")
    services = Services(config, {"LUXX_ADMIN_PASSWORD": "a-password-of-a-test"})
    await services.open()
    try:
        user_id = await services.store.read(lambda session: session.scalar(select(User.id)))
        assert user_id is not None
        level = CommandPermission.ADMIN
        caller = Caller(user_id=user_id, tenant_id=1, username="admin", permission_level=level, sign_in_id="")
        new = NewProvider(
            name="scripted",
            provider_type="openai_compatible",
            base_url=f"{upstream.url}/v1",
            default_model="scripted",
        )
        await services.providers.create(caller, new)
        yield services, caller
    finally:
        await services.close()


async def begin_waiting(services: Services, caller: Caller, count: int) -> None:
    """Returns when this many more runs wait for an answer."""

    async def one() -> None:
        conversation = await services.conversations.create(caller, ConversationChange())
        run = await services.chats.send(caller, NewMessage(conversation_id=conversation.id, text="hello"))
        await services.run_driver.wait(run.id, 30)
        assert (await services.runs.get(caller, run.id)).status == RunStatus.WAITING

    for _ in range(count // AT_ONCE):
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))


def own_tasks() -> int:
    """Tasks without those of the scripted model's server, which keep one connection each."""
    return sum("/luxx/runs/" in task.get_coro().cr_code.co_filename for task in asyncio.all_tasks())  # type: ignore[union-attr]


def channels() -> int:
    gc.collect()
    return sum(isinstance(each, Channel) for each in gc.get_objects())


async def count_runs(services: Services, caller: Caller, status: RunStatus) -> int:
    wanted = RunFilter(status=status)
    return (await services.runs.list_page(caller, wanted, page=1, page_size=1))[1]


async def test_two_hundred_waiting_runs_use_no_task_no_channel_and_no_lease(tmp_path: Path) -> None:
    async with ScriptedProvider(ASKS) as upstream, open_services(tmp_path, upstream) as (services, caller):
        await begin_waiting(services, caller, AT_ONCE)
        tasks, lines = own_tasks(), channels()
        await begin_waiting(services, caller, MANY)
        assert await count_runs(services, caller, RunStatus.WAITING) == MANY + AT_ONCE
        assert own_tasks() <= tasks
        assert channels() <= lines
        questions, total = await services.questions.list_page(caller, OPEN, page=1, page_size=100)
        assert total == MANY + AT_ONCE
        question = questions[0]
        await services.questions.answer(caller, question.run_id, question.id, GivenAnswer(answer="yes"))
        # The run is taken from the queue for a slot and driven to its end.
        async with asyncio.timeout(30):
            while (await services.runs.get(caller, question.run_id)).status not in ENDED:  # noqa: ASYNC110 - rows
                await asyncio.sleep(0.02)
        assert (await services.runs.get(caller, question.run_id)).status == RunStatus.COMPLETED


async def test_stopping_all_runs_of_a_user_ends_waiting_runs_and_closes_their_questions(
    tmp_path: Path,
) -> None:
    script = Script(rules=ASKS.rules[:1])
    async with ScriptedProvider(script) as upstream, open_services(tmp_path, upstream) as (services, caller):
        await begin_waiting(services, caller, AT_ONCE)
        await RunStopper(services.store, services.run_driver).stop_all_of(caller.user_id)
        assert await count_runs(services, caller, RunStatus.CANCELLED) == AT_ONCE
        is_open = QuestionRow.status == QuestionStatus.OPEN.value
        left = await services.store.read(
            lambda session: session.scalar(select(func.count()).select_from(QuestionRow).where(is_open))
        )
        assert left == 0
