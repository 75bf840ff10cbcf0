"""Limits under real concurrency, on both databases: concurrent runs never exceed the daily limit together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import event, func, select

from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.conversations.views import ConversationChange
from luxx.domain.usage.ledger import UsageRow
from luxx.domain.usage.reserve import ReserveRow
from luxx.infra.config.schema import (
    AppConfig,
    Config,
    DatabaseConfig,
    LimitsConfig,
    LocalConfig,
    ModelConfig,
    ProvidersConfig,
    RunsConfig,
    WorkspaceConfig,
)
from luxx.providers.models import NewProvider
from luxx.providers.scripted import Counts, Finish, Rule, Script, ScriptedProvider, Text
from luxx.runs.options import NewMessage
from luxx.wire.run import ENDED, Run
from luxx.wire.tool import CommandPermission

RUNS = 100
MOST_ANSWER = 200
PROMPT = 60
PER_CALL = PROMPT + MOST_ANSWER
SPENT = func.coalesce(func.sum(UsageRow.prompt_tokens + UsageRow.completion_tokens), 0)
MODEL = ModelConfig(
    pattern="any", context_window=8_000, max_output=MOST_ANSWER, input_price=10.0, output_price=10.0
)


def config_of(folder: Path, url: str, name: str, upstream: ScriptedProvider, limits: LimitsConfig) -> Config:
    return Config(
        app=AppConfig(secret_key="a-secret-key-of-a-test-that-two-servers-share"),
        database=DatabaseConfig(type="postgresql" if "postgresql" in url else "sqlite", url=url),
        workspace=WorkspaceConfig(root=str(folder / "workspaces")),
        local=LocalConfig(enabled=False),
        providers=ProvidersConfig(allow_private=[upstream.url.removeprefix("http://")]),
        runs=RunsConfig(lease_seconds=30),
        limits=limits,
        models=[MODEL],
        data_dir=str(folder / name),
    )


@asynccontextmanager
async def open_services(
    configs: list[Config], upstream: ScriptedProvider
) -> AsyncIterator[tuple[list[Services], Caller]]:
    """Several services on one database, and their one user with a provider."""
    async with AsyncExitStack() as stack:
        all_services: list[Services] = []
        for config in configs:
            services = Services(config, {"LUXX_ADMIN_PASSWORD": "a-password-of-a-test"})
            stack.push_async_callback(services.close)
            await services.open()
            all_services.append(services)
        user = await all_services[0].store.read(lambda session: session.scalar(select(User.id)))
        assert user is not None
        caller = Caller(
            user_id=user, tenant_id=1, username="admin", permission_level=CommandPermission.ADMIN,
            sign_in_id="",
        )  # fmt: skip
        provider = NewProvider(
            name="scripted", provider_type="openai_compatible", base_url=f"{upstream.url}/v1",
            default_model="any",
        )  # fmt: skip
        await all_services[0].providers.create(caller, provider)
        yield all_services, caller


async def run_to_its_end(services: Services, caller: Caller, text: str) -> Run:
    """Runs a message in a new conversation to its end. Returns the run."""
    chat = await services.conversations.create(caller, ConversationChange())
    run = await services.chats.send(caller, NewMessage(conversation_id=chat.id, text=text, tools=False))
    async with asyncio.timeout(90):
        while (ended_run := await services.runs.get(caller, run.id)).status not in ENDED:
            await services.run_driver.wait(run.id, 5)
    return ended_run


@pytest.mark.heavy
@pytest.mark.parametrize(
    "limits",
    [LimitsConfig(tokens_per_day=10 * PER_CALL), LimitsConfig(cost_per_day=10 * PER_CALL / 100_000)],
    ids=["tokens", "cost"],
)
async def test_concurrent_runs_never_exceed_the_daily_limit(
    ready_url: str, tmp_path: Path, limits: LimitsConfig
) -> None:
    """Answers have their maximum length and prompts are counted, so each call uses its whole reservation."""
    limits = LimitsConfig(
        tokens_per_day=limits.tokens_per_day,
        cost_per_day=limits.cost_per_day,
        concurrent_runs_per_user=0,
        concurrent_runs=0,
    )
    rule = Rule(
        reply=[Text(text="said"), Counts(prompt=PROMPT, completion=MOST_ANSWER), Finish()], delay=0.02
    )

    async def check(services: Services, upstream: ScriptedProvider, runs: list[Run | BaseException]) -> None:
        spent = await services.store.read(lambda session: session.scalar(select(SPENT)))
        reserved = await services.store.read(
            lambda session: session.scalar(select(func.count()).select_from(ReserveRow))
        )
        known = [run for run in runs if isinstance(run, Run)]
        refused = [run for run in runs if not isinstance(run, Run)]
        assert {type(error).__name__ for error in refused} <= {"TooMany"}
        assert {(str(run.status), run.stop_reason) for run in known} <= {
            ("completed", "finished"),
            ("completed", "tokens"),
            ("completed", "cost"),
        }
        finished = [run for run in known if run.stop_reason == "finished"]
        assert spent == PER_CALL * len(finished) == PER_CALL * len(upstream.requests)
        assert 5 <= len(finished) <= 10
        assert reserved == 0

    async with ScriptedProvider(Script(rules=[rule])) as upstream:
        names = ["one", "two"] if "postgresql" in ready_url else ["one"]
        configs = [config_of(tmp_path, ready_url, name, upstream, limits) for name in names]
        async with open_services(configs, upstream) as (all_services, caller):
            started = [
                run_to_its_end(all_services[number % len(all_services)], caller, f"say {number}")
                for number in range(RUNS)
            ]
            runs = list(await asyncio.gather(*started, return_exceptions=True))
            await check(all_services[0], upstream, runs)


async def test_without_limits_nothing_is_reserved(ready_url: str, tmp_path: Path) -> None:
    rule = Rule(reply=[Text(text="said"), Counts(prompt=PROMPT, completion=MOST_ANSWER), Finish()])

    async with ScriptedProvider(Script(rules=[rule])) as upstream:
        config = config_of(tmp_path, ready_url, "one", upstream, LimitsConfig())
        async with open_services([config], upstream) as ((services,), caller):
            writes: list[str] = []
            listen(services, writes)
            assert (await run_to_its_end(services, caller, "hello")).stop_reason == "finished"
            # A heartbeat, which may fall into the run, notes that reserves are in use, whether there are any.
            reserved = [one for one in writes if "usage_reserves" in one and "SET seen_at" not in one]
            assert reserved == []
            assert upstream.requests[0].json["max_tokens"] == MODEL.max_output


def listen(services: Services, statements: list[str]) -> None:
    """Collects every SQL statement of these services."""

    def note(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    for engine in {services.engine, services.store.reading}:
        event.listen(engine, "before_cursor_execute", note)
