"""What the server is told of calls: counters of every one, and the audit log of those that were refused."""

from luxx.audit.entries import Action, Actor, Detail
from luxx.audit.refusals import Refusals
from luxx.observe import Metrics
from luxx.tools.core import ToolContext, ToolRegistry
from luxx.tools.history import CallRecord, CallStatus
from luxx.tools.permission import Verdict

_ANSWERED = frozenset({CallStatus.DONE, CallStatus.CACHED})


class Witness:
    """One per process."""

    def __init__(self, registry: ToolRegistry, metrics: Metrics, refusals: Refusals) -> None:
        self._registry = registry
        self._metrics = metrics
        self._refusals = refusals

    def ended(self, call: CallRecord) -> None:
        """Counts a call."""
        # A model may ask for a tool of any name; only known ones become labels.
        name = call.name if self._registry.get(call.name) is not None else "unknown"
        self._metrics.tool_called(name, call.duration_ms / 1000, success=call.status in _ANSWERED)

    async def refused(self, context: ToolContext, tool: str, verdict: Verdict) -> None:
        """Records a call that a run or a composition was not allowed; a request has its own entry."""
        if context.run_id is None and not context.chaining.is_member:
            return
        actor = Actor(user_id=context.user_id, tenant_id=context.tenant_id, username=context.username)
        target = None if context.run_id is None else ("run", context.run_id)
        detail = Detail(name=tool[:64], permission_level=int(context.user_permission_level))
        await self._refusals.note(
            Action.TOOL_CALL, actor, verdict.decided_by.value, detail=detail, target=target
        )
