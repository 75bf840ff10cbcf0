"""`/usage`: sums of tokens and cost, also per conversation, and the remaining limits."""

from datetime import date
from typing import Annotated

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from luxx.api.http.envelope import Success, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.conversations.service import ConversationService
from luxx.domain.usage.report import GroupBy, UsageLimits, UsageQuery, UsageReport, UsageScope, UsageService

InjectedUsage = NamedDependency[UsageService]
FirstDay = Annotated[date | None, QueryParameter(name="from", description="the first day, in UTC")]
LastDay = Annotated[date | None, QueryParameter(name="to", description="the last day, in UTC")]

ScopeParameter = Annotated[UsageScope, QueryParameter(name="scope")]
"""The Python parameter is not named `scope`, because Litestar passes the ASGI scope under that name."""


class UsageController(Controller):
    path = "/"
    tags = ("usage",)

    @get("/usage")
    async def report(
        self,
        caller: InjectedCaller,
        usage: InjectedUsage,
        group_by: FromQuery[GroupBy] = GroupBy.DAY,
        report_scope: ScopeParameter = UsageScope.OWN,
        first_day: FirstDay = None,
        last_day: LastDay = None,
        conversation_id: Annotated[str | None, QueryParameter(max_length=64)] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[UsageReport]:
        """Your usage and its cost; for an ADMIN also the tenant's, for an operator everybody's."""
        query = UsageQuery(
            group_by=group_by, scope=report_scope, first=first_day, last=last_day, subject_id=conversation_id,
            page=page, page_size=page_size,
        )  # fmt: skip
        return success(await usage.report(caller, query))

    @get("/usage/limits")
    async def limits(self, caller: InjectedCaller, usage: InjectedUsage) -> Success[UsageLimits]:
        """The rest of your limits: for today, and for one run."""
        return success(await usage.limits(caller))

    @get("/conversations/{conversation_id:str}/usage")
    async def of_conversation(
        self,
        caller: InjectedCaller,
        usage: InjectedUsage,
        conversations: NamedDependency[ConversationService],
        conversation_id: TextId,
        group_by: FromQuery[GroupBy] = GroupBy.MODEL,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[UsageReport]:
        """The usage of a conversation and its cost."""
        await conversations.get(caller, conversation_id)
        query = UsageQuery(group_by=group_by, subject_id=conversation_id, page=page, page_size=page_size)
        return success(await usage.report(caller, query))
