"""A run's time limit, and reservations for calls whose process ended: both survive a restart."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from migrated_databases import prepare
from sqlalchemy import func, select

from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.views import ConversationChange
from luxx.domain.usage.ledger import UsageRow
from luxx.domain.usage.reserve import TOKENS_PER_SECOND, UNSEEN_SECONDS, ReserveRow
from luxx.infra.config.schema import (
    AppConfig,
    Config,
    LimitsConfig,
    LocalConfig,
    ProvidersConfig,
    RunsConfig,
    WorkspaceConfig,
)
from luxx.providers.models import NewProvider
from luxx.providers.scripted import (
    Counts,
    Faults,
    Finish,
    Gate,
    Rule,
    Script,
    ScriptedProvider,
    Text,
)
from luxx.runs.options import NewMessage
from luxx.wire.run import ENDED, Run
from luxx.wire.tool import CommandPermission

WAITS = Script(rules=[Rule(reply=[Text(text="I am"), Gate(name="g"), Text(text=" here."), Finish()])])
UNKNOWN_ANSWER = 4_096
"""Tokens that are reserved for the answer of a model without a known maximum."""
PATIENCE_SECONDS = 0.2
HEARTBEATS_SECONDS = 1.5
"""The time of some heartbeats."""


@asynccontextmanager
async def open_services(
    folder: Path, upstream: ScriptedProvider, limits: LimitsConfig
) -> AsyncIterator[tuple[Services, Caller]]:
    """Services with one user, who has a provider."""
    config = Config(
        app=AppConfig(secret_key="a-secret-key-of-a-test-of-32-bytes"),
        workspace=WorkspaceConfig(root=str(folder / "workspaces")),
        local=LocalConfig(enabled=False),
        providers=ProvidersConfig(allow_private=[upstream.url.removeprefix("http://")]),
        runs=RunsConfig(lease_seconds=1, grace_seconds=PATIENCE_SECONDS),
        limits=limits,
        data_dir=str(folder / "data"),
    )
    prepare(folder / "data")
    services = Services(config, {"LUXX_ADMIN_PASSWORD": "a-password-of-a-test"})
    await services.open()
    try:
        user = await services.store.read(lambda session: session.scalar(select(User.id)))
        assert user is not None
        caller = Caller(
            user_id=user, tenant_id=1, username="admin", permission_level=CommandPermission.ADMIN,
            sign_in_id="",
        )  # fmt: skip
        provider = NewProvider(
            name="scripted", provider_type="openai_compatible", base_url=f"{upstream.url}/v1",
            default_model="any", is_default=True,
        )  # fmt: skip
        if not (await services.providers.list_page(caller, page=1, page_size=1))[1]:
            await services.providers.create(caller, provider)
        yield services, caller
    finally:
        await services.close()


async def start_run(services: Services, caller: Caller, **more: Any) -> Run:
    chat = await services.conversations.create(caller, ConversationChange())
    message = NewMessage(conversation_id=chat.id, text="hello", tools=False, **more)
    return await services.chats.send(caller, message)


async def wait_for_end(services: Services, caller: Caller, run_id: str) -> Run:
    async with asyncio.timeout(30):
        while (run := await services.runs.get(caller, run_id)).status not in ENDED:
            await services.run_driver.wait(run_id, 1)
            await asyncio.sleep(0.02)
    return run


async def message_of(services: Services, run: Run) -> MessageRow:
    row = await services.store.read(lambda session: session.get(MessageRow, run.message_id))
    assert row is not None
    return row


async def one_row(services: Services, table: type[ReserveRow | UsageRow]) -> ReserveRow | UsageRow:
    return await services.store.read(lambda session: session.scalars(select(table)).one())


async def reserves(services: Services) -> int | None:
    return await services.store.read(lambda s: s.scalar(select(func.count()).select_from(ReserveRow)))


async def test_a_run_past_its_time_limit_closes_the_upstream_and_keeps_its_text(tmp_path: Path) -> None:
    limits = LimitsConfig(seconds_per_run=0.7)
    async with (
        ScriptedProvider(WAITS) as upstream,
        open_services(tmp_path, upstream, limits) as (services, caller),
    ):
        run = await wait_for_end(services, caller, (await start_run(services, caller)).id)
        assert (run.status, run.stop_reason) == ("completed", "time")
        assert "0.7 seconds" in str(run.error)
        await upstream.requests[0].wait_closed(5)
        message = await message_of(services, run)
        assert message.status == "partial"
        assert "I am" in message.content
        events, _ = await services.runs.events(caller, run.id, after=0, limit=100)
        assert [event.type for event in events[-2:]] == ["error", "done"]
        assert b'"code":"seconds_per_run"' in events[-2].data
        assert b'"status":"stopped"' in events[-1].data
        assert (await services.conversations.get(caller, run.subject_id)).run_id is None


async def test_a_user_who_cancels_first_sees_a_cancelled_run(tmp_path: Path) -> None:
    limits = LimitsConfig(seconds_per_run=60)
    async with (
        ScriptedProvider(WAITS) as upstream,
        open_services(tmp_path, upstream, limits) as (services, caller),
    ):
        run = await start_run(services, caller)
        await upstream.reached("g")
        assert (await services.runs.cancel(caller, run.id)).stop_reason == "cancelled"


async def test_the_time_limit_includes_earlier_drives(tmp_path: Path) -> None:
    limits = LimitsConfig(seconds_per_run=100)
    async with ScriptedProvider(WAITS) as upstream:
        async with open_services(tmp_path, upstream, limits) as (services, caller):
            run = await start_run(services, caller)
            await upstream.reached("g")
        database = sqlite3.connect(tmp_path / "data" / "luxx.db")
        (driven_seconds,) = database.execute("SELECT driven_seconds FROM runs").fetchone()
        assert PATIENCE_SECONDS <= driven_seconds < 60, "it was driven until its server's patience was over"
        database.execute("UPDATE runs SET driven_seconds = 99.9")
        database.commit()
        database.close()
        async with open_services(tmp_path, upstream, limits) as (services, caller):
            assert (await wait_for_end(services, caller, run.id)).stop_reason == "time"
        upstream.release("g")


async def test_the_reservation_of_a_lost_call_counts_as_usage(tmp_path: Path) -> None:
    limits = LimitsConfig(tokens_per_day=100_000, tokens_per_run=6_000)
    async with ScriptedProvider(WAITS) as upstream:
        async with open_services(tmp_path, upstream, limits) as (services, caller):
            run = await start_run(services, caller)
            await upstream.reached("g")
            reservation = await one_row(services, ReserveRow)
            assert (reservation.run_id, reservation.completion_tokens) == (run.id, UNKNOWN_ANSWER)
        upstream.release("g")
        async with open_services(tmp_path, upstream, limits) as (services, caller):
            ended_run = await wait_for_end(services, caller, run.id)
            lost, *rows = await services.store.read(
                lambda session: session.scalars(select(UsageRow).order_by(UsageRow.id)).all()
            )
            assert (lost.prompt_tokens, lost.completion_tokens) == (
                reservation.prompt_tokens,
                reservation.completion_tokens,
            )
            assert (lost.is_estimated, lost.kind, lost.subject_id) == (True, "chat", run.subject_id)
            # The second call got what the run had left after the first, whose usage is unknown.
            assert ended_run.stop_reason == "finished"
            rest = 6_000 - 2 * reservation.prompt_tokens - UNKNOWN_ANSWER
            assert upstream.requests[1].json["max_tokens"] == rest
            assert len(rows) == 1
            assert ended_run.usage.prompt_tokens == rows[0].prompt_tokens
            assert await reserves(services) == 0


async def test_a_lost_call_is_charged_what_its_time_allows(tmp_path: Path) -> None:
    limits = LimitsConfig(tokens_per_day=1_000_000)
    async with ScriptedProvider(WAITS) as upstream:
        async with open_services(tmp_path, upstream, limits) as (services, caller):
            began = time.monotonic()
            run = await start_run(services, caller, max_tokens=500_000)
            await upstream.reached("g")
            reservation = await one_row(services, ReserveRow)
            assert reservation.completion_tokens == 500_000
            await asyncio.sleep(HEARTBEATS_SECONDS)
        lasted = time.monotonic() - began
        upstream.release("g")
        async with open_services(tmp_path, upstream, limits) as (services, caller):
            await wait_for_end(services, caller, run.id)
            lost, _made = await services.store.read(
                lambda session: session.scalars(select(UsageRow).order_by(UsageRow.id)).all()
            )
        assert lost.is_estimated
        assert lost.prompt_tokens == reservation.prompt_tokens
        least, most = HEARTBEATS_SECONDS / 2 + UNSEEN_SECONDS, lasted + UNSEEN_SECONDS
        assert TOKENS_PER_SECOND * least <= lost.completion_tokens <= TOKENS_PER_SECOND * most


async def test_a_server_without_limits_releases_what_one_with_limits_reserved(tmp_path: Path) -> None:
    limits = LimitsConfig(tokens_per_day=100_000)
    async with ScriptedProvider(WAITS) as upstream:
        async with open_services(tmp_path, upstream, limits) as (services, caller):
            run = await start_run(services, caller)
            await upstream.reached("g")
        upstream.release("g")
        async with open_services(tmp_path, upstream, LimitsConfig()) as (services, caller):
            await wait_for_end(services, caller, run.id)
            lost, _made = await services.store.read(
                lambda session: session.scalars(select(UsageRow).order_by(UsageRow.id)).all()
            )
            assert lost.completion_tokens == UNKNOWN_ANSWER
            assert await reserves(services) == 0


async def test_a_call_waits_for_the_reservation_of_another_run(tmp_path: Path) -> None:
    limits = LimitsConfig(tokens_per_day=6_000)
    script = Script(
        rules=[
            Rule(reply=[Text(text="One."), Gate(name="g"), Counts(prompt=9, completion=9)], times=1),
            Rule(reply=[Text(text="Two."), Counts(prompt=9, completion=9)]),
        ]
    )
    async with (
        ScriptedProvider(script) as upstream,
        open_services(tmp_path, upstream, limits) as (services, caller),
    ):
        first = await start_run(services, caller)
        await upstream.reached("g")
        second = await start_run(services, caller)
        await services.run_driver.wait(second.id, 0.5)
        assert (await services.runs.get(caller, second.id)).status == "running"
        assert len(upstream.requests) == 1
        upstream.release("g")
        runs = [await wait_for_end(services, caller, run.id) for run in (first, second)]
        assert [run.stop_reason for run in runs] == ["finished", "finished"]


BREAKS_ONCE = Script(
    rules=[
        Rule(name="breaks", reply=[Text(text="lost")], faults=Faults(drop_at=0), times=1),
        Rule(name="answers", reply=[Text(text="Here."), Counts(prompt=9, completion=3), Finish()]),
    ]
)


async def ledger_rows(services: Services) -> list[UsageRow]:
    return list(
        await services.store.read(
            lambda session: session.scalars(select(UsageRow).order_by(UsageRow.id)).all()
        )
    )


async def test_a_failed_attempt_counts_if_tokens_are_limited(tmp_path: Path) -> None:
    async with (
        ScriptedProvider(BREAKS_ONCE) as upstream,
        open_services(tmp_path, upstream, LimitsConfig(tokens_per_day=100_000)) as (services, caller),
    ):
        ended_run = await wait_for_end(services, caller, (await start_run(services, caller)).id)
        assert ended_run.stop_reason == "finished"
        lost, recorded = await ledger_rows(services)
        assert lost.is_estimated
        assert lost.prompt_tokens > 0
        assert 0 < lost.completion_tokens < UNKNOWN_ANSWER
        assert (recorded.prompt_tokens, recorded.completion_tokens) == (9, 3)
        # The sums of the run include only the calls that it shows.
        assert ended_run.usage.prompt_tokens == 9
        assert await reserves(services) == 0


async def test_a_failed_attempt_is_not_retried_without_headroom_for_it(tmp_path: Path) -> None:
    rules = [BREAKS_ONCE.rules[0]]
    async with (
        ScriptedProvider(Script(rules=rules)) as upstream,
        open_services(tmp_path, upstream, LimitsConfig(tokens_per_run=2_000)) as (services, caller),
    ):
        ended_run = await wait_for_end(services, caller, (await start_run(services, caller)).id)
        assert ended_run.stop_reason == "tokens"
        assert len(upstream.requests) == 1
        assert len(await ledger_rows(services)) == 1
        assert await reserves(services) == 0


async def test_without_limits_a_failed_attempt_without_text_is_not_recorded(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedProvider(BREAKS_ONCE) as upstream,
        open_services(tmp_path, upstream, LimitsConfig()) as (services, caller),
    ):
        await wait_for_end(services, caller, (await start_run(services, caller)).id)
        assert [line.completion_tokens for line in await ledger_rows(services)] == [3]


async def test_hidden_thinking_of_an_interrupted_call_is_estimated_by_time_if_tokens_are_limited(
    tmp_path: Path,
) -> None:
    script = Script(rules=[Rule(reply=[Gate(name="g"), Text(text="late"), Finish()])])
    async with (
        ScriptedProvider(script) as upstream,
        open_services(tmp_path, upstream, LimitsConfig(tokens_per_day=100_000)) as (services, caller),
    ):
        begin = time.monotonic()
        run = await start_run(services, caller)
        await upstream.reached("g")
        await services.runs.cancel(caller, run.id)
        await wait_for_end(services, caller, run.id)
        most = TOKENS_PER_SECOND * (time.monotonic() - begin)
        (line,) = await ledger_rows(services)
        assert 0 < line.completion_tokens <= most
