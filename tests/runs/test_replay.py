"""The events of a conversation whose run delegates: runs of subagents belong to it, but are not its
own runs.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import insert

from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ConversationRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.log.replay import ReplayService
from luxx.runs.models import RunEventRow, RunRow
from luxx.wire.run import RunStatus
from luxx.wire.tool import CommandPermission

assert Services  # Importing `Services` imports every table.

NEW_CONVERSATION = "01a00000-0000-7000-8000-000000000000"
ANN = Caller(user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission(1), sign_in_id="s")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = Store(open_engine(resolve_url("sqlite:///./luxx.db", tmp_path)))
    make_ready(store.engine)
    now = utc_now()

    def work(session: Any) -> None:
        add_user(session)
        session.execute(
            insert(ConversationRow).values(
                id=NEW_CONVERSATION, user_id=1, title="t", created_at=now, updated_at=now
            )
        )

    asyncio.run(store.write(work))
    yield store
    store.close()


def add_run(session: Any, status: RunStatus, parent: str | None = None) -> str:
    run_id = new_id()
    session.execute(
        insert(RunRow).values(
            id=run_id, user_id=1, tenant_id=1, kind="chat", subject_id=NEW_CONVERSATION, parent_run_id=parent,
            status=status.value, usage="{}", request="{}", created_at=utc_now(),
        )
    )  # fmt: skip
    return run_id


def log(session: Any, run_id: str, *numbers: int) -> None:
    for seq in numbers:
        session.execute(insert(RunEventRow).values(run_id=run_id, seq=seq, type="warning", data=b"{}"))


async def test_a_cursor_continues_to_events_logged_after_a_subagent_began(store: Store) -> None:
    replay = ReplayService(store)
    parent = await store.write(lambda session: add_run(session, RunStatus.RUNNING))
    subagent = await store.write(lambda session: add_run(session, RunStatus.RUNNING, parent))
    await store.write(lambda session: log(session, parent, 1, 2))
    await store.write(lambda session: log(session, subagent, 1))
    first, cursor, _more = await replay.list_events(ANN, NEW_CONVERSATION, cursor=None, limit=50)
    await store.write(lambda session: log(session, subagent, 2, 3))
    await store.write(lambda session: log(session, parent, 3, 4))
    then, _cursor, _more = await replay.list_events(ANN, NEW_CONVERSATION, cursor=cursor, limit=50)
    assert [event.seq for event in (*first, *then)] == [1, 2, 3, 4]


async def test_the_status_of_a_conversation_is_that_of_its_own_run(store: Store) -> None:
    parent = await store.write(lambda session: add_run(session, RunStatus.COMPLETED))
    await store.write(lambda session: add_run(session, RunStatus.FAILED, parent))
    status = await ReplayService(store).read_status(ANN, NEW_CONVERSATION)
    assert status.run is not None
    assert (status.run.id, status.run.status) == (parent, RunStatus.COMPLETED)
