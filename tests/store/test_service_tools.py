"""Tools made of service functions, on both databases: each call gets a session for reading or for
one write.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from sqlalchemy import event, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from luxx.domain.accounts.caller import Caller
from luxx.errors import ConfigError, NotFound
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.store.engine import MAX_EXTERNAL_SESSIONS, Store
from luxx.tools.core import (
    CallActions,
    CommandPermission,
    ToolCall,
    ToolCaller,
    ToolContext,
    ToolRegistry,
    ToolResult,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import CallStatus, Executed
from luxx.tools.service_tools import ServiceTool, load_modules, service_tool
from store.databases import notes


class Note(msgspec.Struct):
    id: int
    text: str


def list_notes(
    session: Session, caller: Caller, limit: Annotated[int, msgspec.Meta(ge=1, le=5)] = 3
) -> list[Note]:
    """The notes there are."""
    rows = session.execute(select(notes.c.id, notes.c.text).order_by(notes.c.id).limit(limit))
    return [Note(id=row.id, text=f"{row.text} for {caller.username} of {caller.tenant_id}") for row in rows]


def add_note(session: Session, what: str) -> int:
    """Adds a note."""
    session.execute(insert(notes).values(text=what))
    if what == "refused":
        raise NotFound("there is no such list")
    if what == "broken":
        raise ValueError("the password is hunter2")
    if what == "odd":
        return object()  # type: ignore[return-value]
    if what == "failed":
        return ToolResult.fail("the list is full")  # type: ignore[return-value]
    return len(what)


def context(level: int = 4, **more: Any) -> ToolContext:
    return ToolContext(
        caller=ToolCaller(
            user_id=more.pop("user_id", 7),
            username="ann",
            tenant_id=more.pop("tenant_id", 3),
            permission_level=CommandPermission(level),
        ),
        actions=CallActions(**more),
    )


def run_tool(
    store: Store,
    tool: ServiceTool,
    arguments: dict[str, Any],
    contexts: ToolContext | None = None,
    times: int = 1,
) -> list[Executed]:
    definition = tool.bind_store(store)
    executor = ToolExecutor(ToolRegistry([definition]), ToolsConfig())
    call = ToolCall(call_id="c", name=definition.name, arguments=msgspec.json.encode(arguments).decode())

    async def run() -> list[Executed]:
        return [await executor.execute(call, contexts or context()) for _ in range(times)]

    try:
        done = asyncio.run(run())
        assert [record.status for record in executor.get_history()] == [outcome.status for outcome in done][
            ::-1
        ]
        return done
    finally:
        executor.close()


def stored_notes(store: Store) -> list[str]:
    return store.read_now(lambda session: list(session.scalars(select(notes.c.text).order_by(notes.c.id))))


@pytest.fixture
def some_notes(store: Store) -> Store:
    store.write_now(lambda session: session.execute(insert(notes), [{"text": "one"}, {"text": "two"}]))
    return store


def test_the_function_gets_a_session_and_its_caller_and_the_model_sees_neither(some_notes: Store) -> None:
    tool = service_tool(list_notes, category="notes")
    definition = tool.bind_store(some_notes)
    assert definition.parameters["properties"] == {
        "limit": {"type": "integer", "minimum": 1, "maximum": 5, "default": 3}
    }
    assert (definition.name, definition.description) == ("list_notes", "The notes there are.")
    (done,) = run_tool(some_notes, tool, {"limit": 1})
    assert done.result == ToolResult.ok([{"id": 1, "text": "one for ann of 3"}])
    for forged in ({"caller": {"user_id": 1}}, {"session": 1}, {"limit": 6}, {"limit": "1"}):
        assert run_tool(some_notes, tool, forged)[0].status == CallStatus.INVALID


def test_a_read_only_tool_cannot_write(some_notes: Store) -> None:
    with capture_logs() as logs:
        (done,) = run_tool(some_notes, service_tool(add_note), {"what": "sneaked in"})
    assert done.result.error is not None
    assert done.result.error.startswith("add_note failed with an internal error")
    assert stored_notes(some_notes) == ["one", "two"]
    assert [entry["event"] for entry in logs] == ["service_tool_failed"]
    assert run_tool(some_notes, service_tool(list_notes), {})[0].result.success


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("refused", "there is no such list"),
        ("failed", "the list is full"),
        ("odd", "TypeError: the tool's answer cannot be written as JSON"),
        (
            "broken",
            "add_note failed with an internal error; the server log has the details; nothing was changed",
        ),
        ("one", "add_note failed with an internal error"),
    ],
)
def test_an_error_undoes_what_was_written_and_is_reported_without_internals(
    some_notes: Store, what: str, words: str
) -> None:
    with capture_logs() as logs:
        (done,) = run_tool(some_notes, service_tool(add_note, writes=True), {"what": what})
    assert done.status == CallStatus.FAILED
    assert (done.result.error or "").startswith(words)
    assert "hunter2" not in str(done.result)
    assert "INSERT" not in str(done.result)
    assert bool(logs) == (what in ("broken", "one"))
    assert stored_notes(some_notes) == ["one", "two"]


def test_a_writing_tool_is_one_transaction_and_needs_its_level(some_notes: Store) -> None:
    tool = service_tool(add_note, writes=True)
    assert run_tool(some_notes, tool, {"what": "three"}, context(1))[0].status == CallStatus.DENIED
    assert run_tool(some_notes, tool, {"what": "three"}, context(2))[0].result == ToolResult.ok(5)
    assert stored_notes(some_notes) == ["one", "two", "three"]


def test_only_a_repeatable_tool_is_answered_from_the_cache(some_notes: Store) -> None:
    twice = run_tool(some_notes, service_tool(list_notes, repeatable=True), {}, times=2)
    assert [outcome.status for outcome in twice] == [CallStatus.DONE, CallStatus.CACHED]
    assert twice[0].result == twice[1].result
    again = run_tool(some_notes, service_tool(list_notes), {}, times=2)
    assert [outcome.status for outcome in again] == [CallStatus.DONE, CallStatus.DONE]


def test_a_write_past_its_time_limit_is_undone(some_notes: Store) -> None:
    begun, proceed = threading.Event(), threading.Event()

    def slow(session: Session) -> None:
        """Slow."""
        session.execute(insert(notes).values(text="late"))
        begun.set()
        proceed.wait(20)

    (done,) = run_tool(some_notes, service_tool(slow, writes=True, timeout=0.2), {})
    assert done.status == CallStatus.TIMEOUT
    assert begun.wait(20)
    proceed.set()
    # The text is unique, and this write waits for the end of the first.
    some_notes.write_now(lambda session: session.execute(insert(notes).values(text="late")))


def test_a_commit_in_progress_is_awaited_past_the_time_limit(some_notes: Store) -> None:
    def slow_disk(_connection: Any) -> None:
        threading.Event().wait(0.4)

    event.listen(some_notes.engine, "commit", slow_disk)
    (done,) = run_tool(some_notes, service_tool(add_note, writes=True, timeout=0.2), {"what": "ordered"})
    event.remove(some_notes.engine, "commit", slow_disk)
    assert (done.status, "ordered" in stored_notes(some_notes)) == (CallStatus.DONE, True)


def commits(session: Session, how: str) -> str:
    """Ends the transaction of its session."""
    session.execute(insert(notes).values(text="half"))
    if how == "commit":
        session.commit()
    elif how == "commit and hide it":
        with suppress(RuntimeError):
            session.commit()
    else:
        session.rollback()
    return "done"


@pytest.mark.parametrize("how", ["commit", "commit and hide it", "rollback"])
async def test_a_service_function_does_not_end_its_transaction(some_notes: Store, how: str) -> None:
    lock_taken, proceed = threading.Event(), threading.Event()

    with capture_logs() as logs:
        """Others in its group, on SQLite, so that a savepoint is all it has."""

        def first(session: Session) -> None:
            lock_taken.set()
            proceed.wait(20)

        definition = service_tool(commits, writes=True).bind_store(some_notes)
        executor = ToolExecutor(ToolRegistry([definition]), ToolsConfig())
        others = [asyncio.create_task(some_notes.write(first))]
        await asyncio.to_thread(lock_taken.wait, 20)
        arguments = msgspec.json.encode({"how": how}).decode()
        call = ToolCall(call_id="c", name="commits", arguments=arguments)
        task = asyncio.create_task(executor.execute(call, context()))
        others.append(asyncio.create_task(some_notes.write(lambda session: None)))
        await asyncio.sleep(0)
        proceed.set()
        await asyncio.gather(*others)
        executor.close()
        task = await task
    assert (task.result.error or "").endswith("nothing was changed")
    assert [entry["event"] for entry in logs] == ["service_tool_failed"]
    assert stored_notes(some_notes) == ["one", "two"]


def savepoints(session: Session) -> str:
    """Uses savepoints."""
    with session.begin_nested():
        session.execute(insert(notes).values(text="kept"))
    with suppress(IntegrityError), session.begin_nested():
        session.execute(insert(notes).values(text="kept"))
    return "done"


def test_a_service_function_has_savepoints_of_its_own(some_notes: Store) -> None:
    assert run_tool(some_notes, service_tool(savepoints, writes=True), {})[0].result.success
    assert stored_notes(some_notes) == ["one", "two", "kept"]


def frees_itself(session: Session) -> int:
    """Tries to write though it may only read."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    session.execute(text("PRAGMA query_only=OFF" if is_sqlite else "SET TRANSACTION READ WRITE"))
    session.execute(insert(notes).values(text="sneaked in"))
    return 1


def test_a_read_only_tool_cannot_lift_its_restriction(some_notes: Store) -> None:
    with capture_logs():
        (done,) = run_tool(some_notes, service_tool(frees_itself), {})
    assert not done.result.success
    assert stored_notes(some_notes) == ["one", "two"]


def test_only_threads_of_the_store_keep_connections(some_notes: Store) -> None:
    pool: Any = some_notes.reading.pool
    before = pool.checkedout()
    for _ in range(3):
        thread = threading.Thread(target=stored_notes, args=[some_notes])
        thread.start()
        thread.join()
    assert pool.checkedout() == before


async def test_slow_service_functions_leave_connections_for_the_server(some_notes: Store) -> None:
    one_too_many = threading.Barrier(MAX_EXTERNAL_SESSIONS + 1)

    def slow(session: Session) -> bool:
        """Waits until one call more than the limit is in the database."""
        with suppress(threading.BrokenBarrierError):
            one_too_many.wait(0.5)
        return not one_too_many.broken

    definition = service_tool(slow).bind_store(some_notes)
    executor = ToolExecutor(ToolRegistry([definition]), ToolsConfig())
    call = ToolCall(call_id="c", name="slow", arguments="{}")

    contexts = [context(user_id=user_id) for user_id in range(1, MAX_EXTERNAL_SESSIONS + 2)]
    executions = list(await asyncio.gather(*(executor.execute(call, each) for each in contexts)))
    executor.close()
    assert [each.result.data for each in executions] == [False] * (MAX_EXTERNAL_SESSIONS + 1)


def test_a_call_without_a_tenant_is_refused_if_the_function_takes_the_caller(some_notes: Store) -> None:
    (done,) = run_tool(some_notes, service_tool(list_notes), {}, context(tenant_id=None))
    assert done.result.error == "this call has no tenant, and the tool needs one"


async def coroutine(session: Session) -> None:
    """Async."""


def without_session(n: int) -> None:
    """None."""


def with_a_caller_in_part(session: Session, who: Caller | None = None) -> None:
    """A model could say who calls."""


def without_docs(session: Session) -> None: ...


@pytest.mark.parametrize(
    ("function", "more", "words"),
    [
        (coroutine, {}, "must not be async"),
        (without_session, {}, "none of its parameters is a Session"),
        (with_a_caller_in_part, {}, "must be annotated with the type alone"),
        (without_docs, {}, "needs a description or a docstring"),
        (list_notes, {"writes": True, "repeatable": True}, "cannot be repeatable"),
        (list_notes, {"writes": True, "required_permission": CommandPermission.READ_ONLY}, "level WRITE"),
        (list_notes, {"risk": "huge"}, "its risk is 'huge'"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_with_the_reason(
    function: Callable[..., Any], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        service_tool(function, **more)


def test_the_tools_of_a_module_are_registered_in_its_order(
    some_notes: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_shop.py").write_text(
        "from sqlalchemy.orm import Session\nfrom luxx.tools.factory import tool\n"
        "from luxx.tools.service_tools import service_tool\n"
        "def open_orders(session: Session, limit: int = 10):\n    'Open orders.'\n    return [1]\n"
        "first = service_tool(open_orders, category='shop')\n"
        "@tool(category='shop')\ndef second() -> int:\n    'Two.'\n    return 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry = ToolRegistry()
    assert load_modules(registry, ["my_shop"], store=some_notes) == ["open_orders", "second"]
    assert [tool.name for tool in registry.list_by_category("shop")] == ["open_orders", "second"]
