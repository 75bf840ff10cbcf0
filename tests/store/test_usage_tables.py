"""The ledger and the table of tool calls on both databases: deletion, reports and replay."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import Engine, delete, insert, text
from sqlalchemy.orm import Session

from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User
from luxx.domain.conversations.models import ConversationRow
from luxx.domain.usage.ledger import UsageEntry, record
from luxx.domain.usage.report import GroupBy, UsageQuery, UsageReport, UsageScope, UsageService
from luxx.infra.clock import timestamp, utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.log.replay import ReplayService
from luxx.runs.models import RunEventRow, RunRow
from luxx.wire.event import Event, ProcessStep
from luxx.wire.tool import CommandPermission, ToolResult
from luxx.wire.turn import Step, StepStatus, StepType, Usage

assert Services  # Importing `Services` imports every table.

ANN = Caller(user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.ADMIN, sign_in_id="s")
RUN, CHAT = "run-1", "chat-1"


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(resolve_url(database_url, tmp_path))
    yield engine
    engine.dispose()


def entry(**more: Any) -> UsageEntry:
    usage = Usage(prompt_tokens=100, completion_tokens=10, total_tokens=110)
    plain = {
        "user_id": 1, "tenant_id": 1, "run_id": RUN, "subject_id": CHAT, "provider_id": 1, "model": "m",
        "usage": usage, "cost": 0.5,
    }  # fmt: skip
    return UsageEntry(**{**plain, **more})


def report(engine: Engine, **query: Any) -> UsageReport:
    store = Store(engine)
    try:
        return asyncio.run(UsageService(store, LimitsConfig(), 10).report(ANN, UsageQuery(**query)))
    finally:
        store.close()


def run(**more: Any) -> dict[str, Any]:
    return {
        "id": RUN, "user_id": 1, "tenant_id": 1, "kind": "chat", "subject_id": CHAT, "message_id": "answer-1",
        "status": "running", "usage": "{}", "last_seq": 5, "request": "{}", "fence": 1, "is_cancelled": False,
        "created_at": utc_now(), **more,
    }  # fmt: skip


def events() -> list[dict[str, Any]]:
    """Two calls, one of them answered."""
    look = Step(id="step-0", index=0, type=StepType.TOOL_CALL, name="look", id_ref="a", arguments="{}")
    touch = Step(id="step-1", index=1, type=StepType.TOOL_CALL, name="touch", id_ref="b", arguments="{}")
    answer = msgspec.json.encode(ToolResult.ok("seen")).decode()
    said = Step(id="step-2", index=2, type=StepType.TOOL_RESULT, content=answer, name="look", id_ref="a")
    replace = msgspec.structs.replace
    logged: list[Event] = [
        ProcessStep(step=replace(look, status=StepStatus.PENDING)),
        ProcessStep(step=replace(touch, status=StepStatus.RUNNING)),
        ProcessStep(step=replace(look, status=StepStatus.RUNNING)),
        ProcessStep(step=replace(look, status=StepStatus.DONE, duration_ms=3)),
        ProcessStep(step=said),
    ]
    stamped = [replace(event, run_id=RUN, timestamp=timestamp()) for event in logged]
    return [
        {"run_id": RUN, "seq": seq, "type": "process_step", "data": msgspec.json.encode(event)}
        for seq, event in enumerate(stamped, 1)
    ]


def test_the_usage_of_a_deleted_user_stays(engine: Engine) -> None:
    make_ready(engine)
    with Session(engine) as session:
        add_user(session)
        record(session.connection(), entry())
        record(session.connection(), entry(cost=None, is_estimated=True))
        session.commit()
    assert report(engine).sums.total_tokens == 220
    with Session(engine) as session:
        session.execute(delete(User))
        session.commit()
    by_user = report(engine, scope=UsageScope.TENANT, group_by=GroupBy.USER)
    (deleted_user,) = by_user.items
    assert (
        deleted_user.key,
        deleted_user.name,
        deleted_user.completions,
        deleted_user.cost,
        deleted_user.unpriced,
    ) == (None, None, 2, 0.5, 1)
    assert report(engine).sums.completions == 0
    with Session(engine) as session:
        session.execute(delete(Tenant))
        session.commit()
    assert report(engine, scope=UsageScope.TENANT).sums.completions == 0
    (deleted_user,) = report(engine, scope=UsageScope.ALL, group_by=GroupBy.TENANT).items
    assert (deleted_user.key, deleted_user.completions, deleted_user.cost, deleted_user.estimated) == (
        None,
        2,
        0.5,
        1,
    )


def test_every_grouping_has_consistent_pages_and_sums(engine: Engine) -> None:
    make_ready(engine)
    with Session(engine) as session:
        add_user(session)
        for number in range(6):
            more = {"subject_id": f"chat-{number}", "model": f"m{number}", "provider_id": number or None}
            record(session.connection(), entry(**more, cost=None if number == 3 else number / 10))
        session.commit()
    for group_by in (GroupBy.CONVERSATION, GroupBy.MODEL, GroupBy.PROVIDER):
        pages = [report(engine, group_by=group_by, page=page, page_size=4) for page in (1, 2, 3)]
        assert [len(page.items) for page in pages] == [4, 2, 0]
        assert {(page.total, page.sums.cost, page.sums.unpriced) for page in pages} == {(6, 1.2, 1)}
        costs = [group.cost for page in pages for group in page.items]
        assert costs == [0.5, 0.4, 0.2, 0.1, 0.0, None]
    assert report(engine, group_by=GroupBy.DAY).total == 1
    assert report(engine, group_by=GroupBy.ROOM).sums.completions == 0


async def test_events_are_replayed_in_order(engine: Engine) -> None:
    make_ready(engine)
    with Session(engine) as session:
        add_user(session)
        now = utc_now()
        session.add(
            ConversationRow(
                id=CHAT, user_id=1, title="t", tags="[]", run_id=RUN, created_at=now, updated_at=now,
                pinned=False, archived=False,
            )
        )  # fmt: skip
        session.execute(insert(RunRow).values(**run()))
        session.execute(insert(RunRow).values(**run(id="run-0", status="failed", message_id=None)))
        session.execute(insert(RunEventRow), events())
        session.execute(
            text(
                "INSERT INTO tool_calls (run_id, step_index, tool, seq, result_seq, status, duration_ms)"
                " VALUES (:run, 0, 'look', 1, 5, 'done', 3), (:run, 1, 'touch', 2, NULL, 'running', NULL)"
            ),
            {"run": RUN},
        )
        session.commit()
    store = Store(engine)
    replay = ReplayService(store)

    try:
        page_events, cursor, has_more = await replay.list_events(ANN, CHAT, cursor=None, limit=3)
        assert ([event.seq for event in page_events], has_more) == ([1, 2, 3], True)
        page_events, _cursor, has_more = await replay.list_events(ANN, CHAT, cursor=cursor, limit=3)
        assert ([event.seq for event in page_events], has_more) == ([4, 5], False)
        calls, total = await replay.list_calls(ANN, tool=None, run_id=None, page=1, page_size=9)
        assert [(call.call_id, call.status) for call in calls] == [("b", "running"), ("a", "success")]
        assert total == 2
        assert calls[1].tool_output == ToolResult.ok("seen")
        mine, _cursor, _more = await replay.list_executions(
            ANN, CHAT, message_id="answer-1", cursor=None, limit=9
        )
        assert [call.tool_name for call in mine] == ["look", "touch"]
        assert (await replay.read_result(ANN, RUN, "a", offset=1, limit=2)).output == "ee"
        status = await replay.read_status(ANN, CHAT)
        assert (status.is_running, status.last_sequence, status.current_message_id) == (True, 5, "answer-1")
    finally:
        store.close()
