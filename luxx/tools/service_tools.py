"""Tools made of plain service functions: `service_tool(function)`, with a database session for every call.

The function knows nothing of tools. Its session, and its caller where it asks for one, are never arguments.
"""

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.errors import ConfigError, LuxxError, ToolFailed
from luxx.store.engine import Store
from luxx.store.lending import lent
from luxx.tools.core import CommandPermission, Risk, ToolContext, ToolDefinition, ToolResult
from luxx.tools.factory import tool
from luxx.tools.outcome import result_of
from luxx.tools.signature import Signature

GIVEN_UP = "nobody waits for this call any more, so what it did was undone"

LOOK_SECONDS = 0.25
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

    def on(self, store: Store) -> ToolDefinition:
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
            with _place(store, context):
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
            raise ToolFailed(GIVEN_UP)
        given: dict[type, Any] = {Session: session, ToolContext: context}
        if Caller in self._signature.given.values():
            given[Caller] = _caller(context)
        with lent(session, reads=not self._writes):
            # Made plain while the session is open: rows may still load what belongs to them.
            result = result_of(self._function(**self._signature.bind(arguments, given)))
            if not result.success:
                raise ToolFailed(result.error or "it says no more")
            session.flush()
        if context.cancelled() or (self._writes and not context.may_conclude()):
            raise ToolFailed(GIVEN_UP)
        return result


@contextmanager
def _place(store: Store, context: ToolContext) -> Generator[None]:
    """One of those that such calls have in the database. Raises ToolFailed where nobody waits any more."""
    while not store.guests.acquire(timeout=LOOK_SECONDS):
        if context.cancelled():
            raise ToolFailed(GIVEN_UP)
    try:
        yield
    finally:
        store.guests.release()


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
    signature = Signature(own_name, function, given=(Session, Caller, ToolContext))
    if Session not in signature.given.values():
        raise ConfigError(f"tool {own_name}: none of its parameters is a Session; use @tool for it")
    told = description or inspect.getdoc(function)
    if not told:
        raise ConfigError(f"tool {own_name}: it needs a description or a docstring")
    level = CommandPermission.WRITE if writes else CommandPermission.READ_ONLY
    needed = level if required_permission is None else CommandPermission(required_permission)
    if writes and (repeatable or needed < level):
        raise ConfigError(f"tool {own_name}: what writes is not repeatable and needs level WRITE or more")
    make = tool(
        name=own_name,
        description=told,
        parameters=signature.schema,
        category=category,
        required_permission=needed,
        risk=risk,
        repeatable=repeatable,
        timeout=timeout,
        subject=subject,
    )
    return ServiceTool(function, signature, make(_unbound).definition, writes=writes)


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
