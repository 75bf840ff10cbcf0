"""Tools made of plain service functions: `service_tool(function)`, with a database session for every call.

The function knows nothing of tools. Its session, and its caller where it asks for one, are never arguments.
"""

import inspect
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec
import structlog
from sqlalchemy import event, text
from sqlalchemy.orm import Session, SessionTransaction

from luxx.domain.accounts.caller import Caller
from luxx.errors import ConfigError, LuxxError, ToolFailed
from luxx.infra.store.engine import Store
from luxx.tools.core import CommandPermission, Risk, ToolContext, ToolDefinition, ToolResult
from luxx.tools.factory import Signature, tool
from luxx.tools.hooks import result_of

NO_TRANSACTION_CONTROL = (
    "a function that is lent a session neither commits nor rolls back: whoever lends it does"
)

_PRAGMAS_DENIED = frozenset({"query_only", "writable_schema"})
_DENIED = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})

_only_read = text("SET TRANSACTION READ ONLY")
# PostgreSQL refuses to lift it once anything has been asked.
_anything = text("SELECT 1")


@contextmanager
def scoped_session(session: Session, *, reads: bool) -> Generator[None]:
    """Savepoints are the borrower's own affair. Raises RuntimeError where it ended the transaction.

    `reads`: and no statement makes it one that can write.
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
        with _only_reading(session) if reads else nullcontext():
            yield
    finally:
        event.remove(session, "before_commit", refuse)
        event.remove(session, "after_soft_rollback", remember)
    if ends:
        raise RuntimeError(NO_TRANSACTION_CONTROL)


@contextmanager
def _only_reading(session: Session) -> Generator[None]:
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        connection.execute(_only_read)
        connection.execute(_anything)
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.set_authorizer(_authorize)
    try:
        yield
    finally:
        driver.set_authorizer(None)


def _authorize(action: int, name: str | None, value: str | None, *_where: str | None) -> int:
    """Search asks pragmas of its own, so only those are denied that let a statement write."""
    if action in _DENIED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and value is not None and (name or "").lower() in _PRAGMAS_DENIED:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


CALL_ABANDONED = "nobody waits for this call any more, so what it did was undone"

POLL_SECONDS = 0.25
"""How often a call that waits for its place looks whether anybody still waits for it."""

logger = structlog.get_logger()


class ServiceTool:
    """A service function that is to be a tool; `on(store)` is what a registry takes."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        definition: ToolDefinition,
        *,
        writes: bool,
    ) -> None:
        self._function = function
        self._signature = signature
        self._definition = definition
        self._writes = writes

    def bind_store(self, store: Store) -> ToolDefinition:
        """The tool whose sessions are those of this database."""

        def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
            return self._call(store, arguments, context)

        return msgspec.structs.replace(self._definition, handler=handler)

    def _call(self, store: Store, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """In one transaction, in the thread that the call has. Raises ToolFailed."""

        def work(session: Session) -> ToolResult:
            return self._perform(session, arguments, context)

        name = self._definition.name
        try:
            with _database_slot(store, context):
                return store.write_now(work) if self._writes else store.read_now(work)
        except LuxxError as error:
            raise ToolFailed(error.message) from error
        except Exception as error:
            logger.exception("service_tool_broke", tool=name, user_id=context.user_id)
            raise ToolFailed(
                f"{name} could not do this: something in it broke, which the server's log tells of"
                + ("; nothing was changed" if self._writes else "")
            ) from error

    def _perform(self, session: Session, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Raises ToolFailed for what must undo the transaction: a failure that the function returned, too."""
        if context.cancelled():
            raise ToolFailed(CALL_ABANDONED)
        injected: dict[type, Any] = {Session: session, ToolContext: context}
        if Caller in self._signature.injected.values():
            injected[Caller] = _caller(context)
        with scoped_session(session, reads=not self._writes):
            # Made plain while the session is open: rows may still load what belongs to them.
            result = result_of(self._function(**self._signature.bind(arguments, injected)))
            if not result.success:
                raise ToolFailed(result.error or "it says no more")
            session.flush()
        if context.cancelled() or (self._writes and not context.may_commit()):
            raise ToolFailed(CALL_ABANDONED)
        return result


@contextmanager
def _database_slot(store: Store, context: ToolContext) -> Generator[None]:
    """One of those that such calls have in the database. Raises ToolFailed where nobody waits any more."""
    while not store.external_sessions.acquire(timeout=POLL_SECONDS):
        if context.cancelled():
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
) -> ServiceTool:
    """Make a tool of `f(session, …)`; a parameter that is a Session, a Caller or a ToolContext is given.

    It may only read, unless it `writes`: then it needs level WRITE or more, all it does is one transaction,
    and an error undoes that. The rest is as for `@tool`. Raises ConfigError.
    """
    own_name = name or function.__name__
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"tool {own_name}: a service function is not async; it gets a thread of its own")
    signature = Signature(own_name, function, injected=(Session, Caller, ToolContext))
    if Session not in signature.injected.values():
        raise ConfigError(f"tool {own_name}: none of its parameters is a Session; use @tool for it")
    text = description or inspect.getdoc(function)
    if not text:
        raise ConfigError(f"tool {own_name}: it needs a description or a docstring")
    level = CommandPermission.WRITE if writes else CommandPermission.READ_ONLY
    needed = level if required_permission is None else CommandPermission(required_permission)
    if writes and (repeatable or needed < level):
        raise ConfigError(f"tool {own_name}: what writes is not repeatable and needs level WRITE or more")
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
    return ServiceTool(function, signature, make_tool(_unbound).definition, writes=writes)


def _unbound(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    """The handler of a service tool that is on no database."""
    raise ToolFailed("this tool has no database")


def _caller(context: ToolContext) -> Caller:
    """Whoever the call is made for. Raises ToolFailed where it belongs to no tenant."""
    if context.tenant_id is None:
        raise ToolFailed("it is not known for which tenant this call is made")
    return Caller(
        user_id=context.user_id,
        tenant_id=context.tenant_id,
        username=context.username,
        permission_level=context.user_permission_level,
        sign_in_id="",
    )
