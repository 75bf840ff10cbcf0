"""`/admin/audit`: reads the audit log; and the hook that adds refused requests to it."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter
from litestar.types import Scope
from msgspec import Meta

from luxx.api.http.authentication import caller_of
from luxx.api.http.envelope import Page, Success, page_of
from luxx.api.http.request_input import BeforeId, InjectedCaller, LimitParameter, PageNumber, PageSize
from luxx.domain.accounts.administration import Administration
from luxx.domain.audit import Action, AuditFilter, AuditOutcome, AuditView, Detail, Refusals
from luxx.errors import InvalidInput, NotAllowed

ExceptionHook = Callable[[Exception, Scope], Awaitable[None]]
RowIdFilter = Annotated[int | None, QueryParameter(ge=1, le=2**31 - 1)]
AwareDatetime = Annotated[datetime, Meta(tz=True)]
Since = Annotated[AwareDatetime | None, QueryParameter(name="from", description="not before this time")]
Until = Annotated[AwareDatetime | None, QueryParameter(name="to", description="before this time")]


class AuditController(Controller):
    path = "/admin/audit"
    tags = ("admin",)

    @get()
    async def audit(
        self,
        caller: InjectedCaller,
        administration: NamedDependency[Administration],
        action: FromQuery[Action | None] = None,
        user_id: RowIdFilter = None,
        outcome: FromQuery[AuditOutcome | None] = None,
        since: Since = None,
        until: Until = None,
        tenant_id: RowIdFilter = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
        before: BeforeId = None,
        limit: LimitParameter = None,
    ) -> Success[Page[AuditView]]:
        """The audit log, newest first; `user_id`: the acting user. ADMINs see their tenant, operators all."""
        audit_filter = AuditFilter(
            tenant_id=tenant_id,
            action=action,
            user_id=user_id,
            outcome=outcome,
            since=_in_utc(since, "from"),
            until=_in_utc(until, "to"),
            before=before,
        )
        size = limit or page_size
        found = await administration.audit(caller, audit_filter, page=page, page_size=size)
        return page_of(found, page, size)


def record_refusals(refusals: Refusals) -> ExceptionHook:
    """The application's hook that adds an entry for each NotAllowed error of a signed-in user."""

    async def hook(error: Exception, scope: Scope) -> None:
        caller = caller_of(scope) if isinstance(error, NotAllowed) else None
        if caller is None or not isinstance(error, NotAllowed):
            return
        request_scope = cast("Mapping[str, Any]", scope)
        route, method = str(request_scope.get("path_template", "")), str(request_scope.get("method", ""))
        path_params = [(name, str(value)) for name, value in request_scope.get("path_params", {}).items()]
        await refusals.record_refusal(
            Action.REQUEST,
            caller.actor,
            error.kind,
            detail=Detail(method=method, route=route[:200]),
            target=(path_params[0][0].removesuffix("_id"), path_params[0][1]) if path_params else None,
        )

    return hook


def _in_utc(time: datetime | None, name: str) -> datetime | None:
    """Converts to UTC; at the limits of `datetime` to the first or last time. Raises InvalidInput."""
    if time is None:
        return None
    if time.tzinfo is None:
        problem = "a time needs a time zone, such as 2026-01-31T12:00:00Z"
        raise InvalidInput(f"{name}: {problem}", field=name)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        return (datetime.min if time.year == 1 else datetime.max).replace(tzinfo=UTC)
