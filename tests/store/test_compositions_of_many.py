"""Compositions on both databases: concurrent creations, names and counts give the same result as
sequential ones.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_user import add_user
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import Conflict, NotFound
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.tools.builtin import builtin_tools
from luxx.tools.compositions.service import MAX_COMPOSITIONS, CompositionService
from luxx.tools.core import (
    CallPermissions,
    CommandPermission,
    ToolCall,
    ToolCaller,
    ToolContext,
    ToolRegistry,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.sources import ToolSources
from luxx.wire.tool import Composition, CompositionKind, Member

ANN = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id=""
)
BEN = Caller(user_id=2, tenant_id=1, username="ben", permission_level=CommandPermission.ADMIN, sign_in_id="")


@pytest.fixture
def open_store(ready_url: str, tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(resolve_url(ready_url, tmp_path))
    store = Store(engine)
    store.write_now(add_user)
    yield store
    store.close()


@pytest.fixture
def executor() -> Iterator[ToolExecutor]:
    executor = ToolExecutor(ToolRegistry(builtin_tools()), ToolsConfig())
    yield executor
    executor.close()


def lists(name: str) -> Composition:
    members = [Member(id="a", tool="file_list"), Member(id="b", tool="file_list")]
    return Composition(name=name, description="d", members=members, kind=CompositionKind.PARALLEL)


async def test_the_number_is_limited_and_names_are_unique(open_store: Store, executor: ToolExecutor) -> None:
    service = CompositionService(open_store, executor, ToolSources(executor.registry))

    async def create_all(names: list[str]) -> list[object]:
        return await asyncio.gather(
            *(service.create(ANN, lists(name)) for name in names), return_exceptions=True
        )

    same = await create_all(["same"] * 6)
    assert sum(isinstance(one, Conflict) for one in same) == 5
    many = await create_all([f"many{n}" for n in range(MAX_COMPOSITIONS + 5)])
    assert sum(isinstance(one, Conflict) for one in many) == 6
    items, total = await service.list_page(ANN, page=1, page_size=100)
    assert (len(items), total) == (MAX_COMPOSITIONS, MAX_COMPOSITIONS)
    assert await service.list_page(BEN, page=1, page_size=100) == ([], 0)
    with pytest.raises(NotFound):
        await service.delete(BEN, items[0].id)


async def test_every_call_is_counted(open_store: Store, executor: ToolExecutor, tmp_path: Path) -> None:
    service = CompositionService(open_store, executor, ToolSources(executor.registry))

    composition = await service.create(ANN, lists("lists"))
    context = ToolContext(
        caller=ToolCaller(
            user_id=1,
            username="ann",
            permission_level=CommandPermission.READ_ONLY,
            tools=await open_store.read(lambda session: service.for_caller(session, ANN)),
        ),
        permissions=CallPermissions(workspace=tmp_path),
    )
    call = ToolCall(call_id="c", name="lists", arguments="{}")
    nowhere = ToolContext(caller=context.caller)
    executions = await asyncio.gather(*(executor.execute(call, each) for each in [context, nowhere] * 20))
    assert [outcome.result.success for outcome in executions] == [True, False] * 20
    counted = await service.get(ANN, composition.id)
    assert (counted.success_count, counted.failure_count) == (20, 20)
    await service.delete(ANN, composition.id)
    assert (await executor.execute(call, context)).result.success, "who has begun goes on"


async def test_a_deletion_waits_for_a_concurrent_change(open_store: Store, executor: ToolExecutor) -> None:
    service = CompositionService(open_store, executor, ToolSources(executor.registry))
    lock_taken, deleted = threading.Event(), threading.Event()
    was_deleted: list[bool] = []

    def change(session: Session) -> None:
        lock_until_commit(session.connection(), Lock.USER_NAMES, ANN.user_id)
        lock_taken.set()
        was_deleted.append(deleted.wait(0.2))

    composition = await service.create(ANN, lists("brief"))
    changing = asyncio.create_task(open_store.write(change))
    await asyncio.to_thread(lock_taken.wait, 20)
    await service.delete(ANN, composition.id)
    deleted.set()
    await changing
    assert was_deleted == [False]
