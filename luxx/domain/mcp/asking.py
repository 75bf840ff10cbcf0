"""A call that cannot go on before its user has signed in: the run asks, and waits for the sign-in.

Not here: how the sign-in is made (`oauth`), and who answers the question when it is (`runs`).
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import quote

from luxx.domain.mcp.sign_in import NeedsSignIn
from luxx.errors import ToolFailed
from luxx.tools.core import CommandPermission, ToolContext
from luxx.wire.run import QuestionKind, SignInChoice

T = TypeVar("T")

MOST_QUESTIONS = 5
"""How often one call asks: for the first sign-in, and for each time the server wants more scopes."""


def sign_in_page(public_url: str, server: str) -> str:
    """The page of Luxx at which a person signs in at a server; without `public_url` relative to the server.

    Others may read the log of a run, so it does not contain the address of a sign-in that has begun.
    """
    return f"{public_url}/ui/tools/mcp/{quote(server, safe='')}"


async def call_signed_in(
    call: Callable[[], Awaitable[T]], context: ToolContext, public_url: str, *, is_for_all: bool = False
) -> T:
    """The result of the call; where it needs a sign-in, the run's user is asked for it first.

    After the answer the run makes the call again. `is_for_all`: only an administrator can sign in there.
    Raises ToolFailed if nobody signs in.
    """
    for _ in range(MOST_QUESTIONS):
        try:
            return await call()
        except NeedsSignIn as error:
            if context.caller.run_id is None:
                raise
            if is_for_all and context.caller.permission_level < CommandPermission.ADMIN:
                raise ToolFailed(
                    f"an administrator has to sign in at the MCP server {error.server} for all its users; "
                    "tell the user so"
                ) from error
            await _ask(error, context, public_url)
    raise ToolFailed("the sign-in does not give what the MCP server asks for; try again later")


async def _ask(needed: NeedsSignIn, context: ToolContext, public_url: str) -> None:
    question = {
        "kind": QuestionKind.SIGN_IN.value,
        "prompt": f"Sign in at the MCP server {needed.server}, so that its tools can work for you",
        "required": True,
        "server": needed.server,
        "authorization_url": sign_in_page(public_url, needed.server),
    }
    try:
        answer = await context.actions.ask(question)
    except ToolFailed as error:
        raise ToolFailed(f"the MCP server {needed.server} needs a sign-in, and {error.message}") from error
    if answer["answer"] != SignInChoice.SIGNED_IN:
        raise ToolFailed(
            f"the user did not sign in at the MCP server {needed.server}; do not call its tools again unless "
            "the user asks for it"
        )
