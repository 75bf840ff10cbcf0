"""Tools from outside of this package: service functions as tools, and the loading of plugin tools.

`service_tool(function)` makes a tool of a service function and gives every call a database session. The
function needs no tool code; its Session and Caller parameters are never arguments of the tool. Plugin tools
are in the modules named in `tools.modules`, and in packages with the entry point `luxx.tools`.
"""

import importlib
import inspect
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, cast

import msgspec
import structlog
from msgspec.structs import replace
from sqlalchemy import event, text
from sqlalchemy.orm import Session, SessionTransaction

from luxx.domain.accounts.caller import Caller
from luxx.errors import ConfigError, LuxxError, ToolFailed
from luxx.infra.store.engine import Store
from luxx.tools.core import (
    CommandPermission,
    Risk,
    ToolCaller,
    ToolContext,
    ToolDefinition,
    ToolRegistry,
    ToolResult,
)
from luxx.tools.factory import Signature, ToolFunction, tool
from luxx.tools.hooks import ToolHook, describe_error, result_of
from luxx.wire.turn_event import RefreshTarget, UiCommand, UiCommandKind

NO_TRANSACTION_CONTROL = (
    "the function must not commit or roll back its session; the caller ends the transaction"
)

_PRAGMAS_DENIED = frozenset({"query_only", "writable_schema"})
_DENIED = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})

_set_read_only = text("SET TRANSACTION READ ONLY")
# After the first query PostgreSQL refuses to make the transaction writable again.
_any_query = text("SELECT 1")


@contextmanager
def scoped_session(session: Session, *, reads: bool) -> Generator[None]:
    """Give a function a session whose transaction it cannot end; savepoints are allowed.

    `reads`: the transaction is read-only. Raises RuntimeError if the function ended the transaction.
    """
    ends: list[str] = []

    def refuse(_session: Session) -> None:
        if not session.in_nested_transaction():
            ends.append("commit")
            raise RuntimeError(NO_TRANSACTION_CONTROL)

    def remember(_session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            ends.append("rollback")

    event.listen(session, "before_commit", refuse)
    event.listen(session, "after_soft_rollback", remember)
    try:
        with _read_only(session) if reads else nullcontext():
            yield
    finally:
        event.remove(session, "before_commit", refuse)
        event.remove(session, "after_soft_rollback", remember)
    if ends:
        raise RuntimeError(NO_TRANSACTION_CONTROL)


@contextmanager
def _read_only(session: Session) -> Generator[None]:
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        connection.execute(_set_read_only)
        connection.execute(_any_query)
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.set_authorizer(_authorize)
    try:
        yield
    finally:
        driver.set_authorizer(None)


def _authorize(action: int, name: str | None, value: str | None, *_where: str | None) -> int:
    """SQLite authorizer. Full-text search uses pragmas, so it denies only those that allow writing."""
    if action in _DENIED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and value is not None and (name or "").lower() in _PRAGMAS_DENIED:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


CALL_ABANDONED = "the caller stopped waiting for this call; its changes were rolled back"

POLL_SECONDS = 0.25
"""How often a call that waits for a database slot checks whether it was cancelled."""

logger = structlog.get_logger()


class ServiceTool(msgspec.Struct, frozen=True, kw_only=True):
    """A service function as a tool; a registry takes the definition that `bind_store` returns."""

    function: Callable[..., Any]
    signature: Signature
    definition: ToolDefinition
    writes: bool
    refreshes: RefreshTarget | None = None

    def bind_store(self, store: Store) -> ToolDefinition:
        """The tool definition with sessions of this database."""
        return replace(self.definition, handler=partial(self._call, store))

    def _call(self, store: Store, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Run the call in one transaction, in the current thread. Raises ToolFailed."""

        def work(session: Session) -> ToolResult:
            return self._perform(session, arguments, context)

        name = self.definition.name
        try:
            with _database_slot(store, context):
                result = store.write_now(work) if self.writes else store.read_now(work)
        except LuxxError as error:
            raise ToolFailed(error.message) from error
        except Exception as error:
            logger.exception("service_tool_failed", tool=name, user_id=context.caller.user_id)
            raise ToolFailed(
                f"{name} failed with an internal error; the server log has the details"
                + ("; nothing was changed" if self.writes else "")
            ) from error
        self._refresh(context)
        return result

    def _refresh(self, context: ToolContext) -> None:
        """Lets the page of the person load the list again; not where nobody looks or too much was shown."""
        if self.refreshes is not None:
            payload = {"target": self.refreshes.value}
            with suppress(ToolFailed):
                context.actions.show(UiCommand(command=UiCommandKind.REFRESH, payload=payload))

    def _perform(self, session: Session, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Raises ToolFailed, which rolls the transaction back, also if the function returned a failure."""
        if context.actions.cancelled():
            raise ToolFailed(CALL_ABANDONED)
        injected: dict[type, Any] = {Session: session, ToolContext: context}
        if Caller in self.signature.injected.values():
            injected[Caller] = service_caller(context.caller)
        with scoped_session(session, reads=not self.writes):
            # Converted while the session is open, because rows may still load related rows.
            result = result_of(self.function(**self.signature.bind(arguments, injected)))
            if not result.success:
                raise ToolFailed(result.error or "no reason was given")
            session.flush()
        if context.actions.cancelled() or (self.writes and not context.actions.may_commit()):
            raise ToolFailed(CALL_ABANDONED)
        return result


@contextmanager
def _database_slot(store: Store, context: ToolContext) -> Generator[None]:
    """Hold one of the database slots for service tools. Raises ToolFailed if the call is cancelled."""
    while not store.external_sessions.acquire(timeout=POLL_SECONDS):
        if context.actions.cancelled():
            raise ToolFailed(CALL_ABANDONED)
    try:
        yield
    finally:
        store.external_sessions.release()


def service_tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    category: str = "general",
    writes: bool = False,
    required_permission: CommandPermission | None = None,
    risk: Risk | str = Risk.LOW,
    repeatable: bool = False,
    timeout: float | None = None,
    subject: str = "",
    refreshes: RefreshTarget | None = None,
) -> ServiceTool:
    """Make a tool of `f(session, …)`. Parameters of type Session, Caller and ToolContext are injected.

    Without `writes` the transaction is read-only. With it the tool needs level WRITE or more, and an error
    rolls the transaction back. `refreshes`: the list that the page of the person loads again after a call.
    The other parameters are those of `@tool`. Raises ConfigError.
    """
    own_name = name or function.__name__
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"tool {own_name}: a service function must not be async; it runs in a thread")
    signature = Signature(own_name, function, injected=(Session, Caller, ToolContext))
    if Session not in signature.injected.values():
        raise ConfigError(f"tool {own_name}: none of its parameters is a Session; use @tool for it")
    text = description or inspect.getdoc(function)
    if not text:
        raise ConfigError(f"tool {own_name}: it needs a description or a docstring")
    level = CommandPermission.WRITE if writes else CommandPermission.READ_ONLY
    needed = level if required_permission is None else CommandPermission(required_permission)
    if writes and (repeatable or needed < level):
        raise ConfigError(
            f"tool {own_name}: with writes=True it cannot be repeatable and needs level WRITE or more"
        )
    make_tool = tool(
        name=own_name,
        description=text,
        parameters=signature.schema,
        category=category,
        required_permission=needed,
        risk=risk,
        repeatable=repeatable,
        timeout=timeout,
        subject=subject,
    )
    definition = make_tool(_unbound).definition
    return ServiceTool(
        function=function,
        signature=signature,
        definition=definition,
        writes=writes,
        refreshes=refreshes,
    )


def _unbound(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    """The handler of a service tool before `bind_store`."""
    raise ToolFailed("this tool has no database")


def service_caller(caller: ToolCaller) -> Caller:
    """The caller of a tool as the caller of a service. Raises ToolFailed if the call has no tenant."""
    if caller.tenant_id is None:
        raise ToolFailed("this call has no tenant, and the tool needs one")
    return Caller(
        user_id=caller.user_id,
        tenant_id=caller.tenant_id,
        username=caller.username,
        permission_level=caller.permission_level,
        sign_in_id="",
    )


LoadedItem = ToolDefinition | ServiceTool | ToolHook
ENTRY_POINT_GROUP = "luxx.tools"


def installed_entry_points() -> list[EntryPoint]:
    """The entry points of installed packages in the group `luxx.tools`."""
    return list(entry_points(group=ENTRY_POINT_GROUP))


def load_modules(
    registry: ToolRegistry,
    names: Iterable[str],
    entry_points: Iterable[EntryPoint] = (),
    store: Store | None = None,
) -> list[str]:
    """Register the tools and hooks of these modules and entry points; return the tool names, in order.

    An entry point may name a module, one tool, or a list of tools. Duplicates are registered once. Service
    tools take their sessions from `store` and are skipped without one.
    Raises ConfigError that names a module without tools or one that cannot be imported.
    """
    items_by_id: dict[int, LoadedItem] = {}
    for name in names:
        _collect(items_by_id, f"tools.modules: {name}", partial(importlib.import_module, name))
    for entry in entry_points:
        _collect(items_by_id, f"entry point {entry.name} ({entry.value})", entry.load)
    tool_names: list[str] = []
    for item in items_by_id.values():
        if isinstance(item, ToolHook):
            registry.hooks.add(item)
            continue
        if isinstance(item, ServiceTool):
            if store is None:
                continue
            item = item.bind_store(store)
        registry.register(item)
        tool_names.append(item.name)
    return tool_names


def _collect(items_by_id: dict[int, LoadedItem], where: str, load: Callable[[], Any]) -> None:
    try:
        item = load()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where} cannot be imported: {describe_error(error)}") from error
    tools = list(_tools_in(item))
    if not tools:
        raise ConfigError(f"{where} contains no tool; decorate a function in it with @tool")
    items_by_id.update({id(tool): tool for tool in tools})


def _tools_in(item: Any) -> Iterator[LoadedItem]:
    if isinstance(item, ModuleType):
        candidates: Iterable[Any] = list(vars(item).values())
    elif isinstance(item, list | tuple):
        candidates = cast("list[Any] | tuple[Any, ...]", item)
    else:
        candidates = [item]
    for value in candidates:
        if isinstance(value, ToolFunction):
            yield value.definition
        elif isinstance(value, LoadedItem):
            yield value
