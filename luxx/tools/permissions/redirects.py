"""Checks the redirects that a tool follows: each target is judged like a separate call.

`luxx.infra.network` reads redirects; `judge` decides.
"""

from collections.abc import Awaitable, Callable
from typing import Any, assert_never

from luxx.errors import InvalidInput, ToolFailed
from luxx.infra.network.hosts import DEFAULT_PORTS
from luxx.infra.network.urls import WebUrl, parse_url
from luxx.tools.core import ToolContext, ToolDefinition, approve_as_caller
from luxx.tools.permissions.judge import DecidedBy, Judge, PermissionVerdict
from luxx.tools.permissions.subjects import subject_of
from luxx.wire.tool import RuleAction

OnRefused = Callable[[ToolContext, str, PermissionVerdict], Awaitable[None]]
"""Called with context, tool name and verdict for each refused call."""

_DEFAULT_DECISIONS = (DecidedBy.TAINT, DecidedBy.RISK)


def with_redirect_check(
    judge: Judge,
    tool: ToolDefinition,
    arguments: dict[str, Any],
    context: ToolContext,
    on_refused: OnRefused,
) -> ToolContext:
    """The context for a call with these arguments, with a `check_redirect` that applies the rules."""

    async def check_redirect(url: str, target: str, next_arguments: dict[str, Any]) -> None:
        # The rules may differ at the next call, so a redirected result is not cached.
        context.metadata.is_redirected = True
        verdict = await judge.verdict_async(tool, next_arguments, context)
        match verdict.action:
            case RuleAction.ALLOW:
                return
            case RuleAction.DENY:
                await on_refused(context, tool.name, verdict)
                raise ToolFailed(
                    f"{url} redirects to {target}, which was not fetched: {verdict.because}. "
                    "A user cannot approve it."
                )
            case RuleAction.ASK:
                if not _is_approved(tool, arguments, context, verdict, target):
                    raise ToolFailed(
                        f"{url} redirects to {target}, which was not fetched: it needs a permission of its "
                        f"own ({verdict.because}); to ask for it, call {tool.name} with that address"
                    )
            case _:
                assert_never(verdict.action)

    return context.with_permissions(check_redirect=check_redirect)


def _is_approved(
    tool: ToolDefinition,
    arguments: dict[str, Any],
    context: ToolContext,
    verdict: PermissionVerdict,
    target: str,
) -> bool:
    """Whether a user makes the call directly, or approved it for the target's host and no rule says ask."""
    if context.permissions.approve is approve_as_caller:
        return True
    if context.permissions.earlier_approval is None or verdict.decided_by not in _DEFAULT_DECISIONS:
        return False
    parts = subject_of(tool, arguments, context.permissions.workspace).parts
    return any(_is_same_host(part.text, target) for part in parts)


def _is_same_host(approved: str, target: str) -> bool:
    try:
        one, other = parse_url(approved), parse_url(target)
    except InvalidInput:
        return False
    return one.host == other.host and (
        one.port == other.port or (_has_default_port(one) and _has_default_port(other))
    )


def _has_default_port(url: WebUrl) -> bool:
    return DEFAULT_PORTS[url.scheme] == url.port
