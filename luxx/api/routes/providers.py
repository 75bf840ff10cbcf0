"""`/providers` and `/admin/allowed-hosts`: connect models, and allow private addresses for them. `/usage`:
sums of their tokens and cost, also per conversation, and the remaining limits."""

from datetime import date
from typing import Annotated

from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.conversations.service import ConversationService
from luxx.domain.usage.provider_tests import ProviderTests
from luxx.domain.usage.report import GroupBy, UsageLimits, UsageQuery, UsageReport, UsageScope, UsageService
from luxx.infra.store.tables import Uses
from luxx.providers.check import ProviderCheck
from luxx.providers.models import (
    AllowedHosts,
    NewAllowedHosts,
    NewProvider,
    ProviderChanges,
    ProviderView,
    UpstreamModels,
)
from luxx.providers.service import ProviderService

InjectedProviders = NamedDependency[ProviderService]


class ProvidersController(Controller):
    path = "/providers"
    tags = ("providers",)

    @get()
    async def list_providers(
        self,
        providers: InjectedProviders,
        caller: InjectedCaller,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ProviderView]]:
        """Your providers and those shared in the tenant, newest first."""
        found = await providers.list_page(caller, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post()
    async def create(
        self, providers: InjectedProviders, caller: InjectedCaller, data: JSONBody[NewProvider]
    ) -> Success[ProviderView]:
        """Connect a model; the first one becomes the default. Only an ADMIN may share it."""
        return success(await providers.create(caller, data), "provider created")

    @get("/{provider_id:int}")
    async def read(
        self, providers: InjectedProviders, caller: InjectedCaller, provider_id: FromPath[int]
    ) -> Success[ProviderView]:
        """A provider with a masked key."""
        return success(await providers.get(caller, provider_id))

    @put("/{provider_id:int}")
    async def update(
        self,
        providers: InjectedProviders,
        caller: InjectedCaller,
        provider_id: FromPath[int],
        data: JSONBody[ProviderChanges],
    ) -> Success[ProviderView]:
        """Change a provider. A new base_url deletes the stored key unless the request has a new key.

        An ADMIN may change only `enabled` and `is_shared` of a provider that another ADMIN shares."""
        return success(await providers.update(caller, provider_id, data), "provider saved")

    @delete("/{provider_id:int}", status_code=200)
    async def remove(
        self, providers: InjectedProviders, caller: InjectedCaller, provider_id: FromPath[int]
    ) -> Success[Uses]:
        """Delete a provider; an ADMIN also one that another ADMIN shares. What used it stays, keeps its name
        and stops until another provider is chosen; the answer counts it."""
        return success(await providers.delete(caller, provider_id), "provider deleted")

    @get("/{provider_id:int}/uses")
    async def uses(
        self, providers: InjectedProviders, caller: InjectedCaller, provider_id: FromPath[int]
    ) -> Success[Uses]:
        """What has chosen the provider and would stop if it were deleted, of all users. For those who may
        delete it."""
        return success(await providers.uses(caller, provider_id))

    @post("/{provider_id:int}/test", status_code=200)
    async def test(
        self,
        provider_tests: NamedDependency[ProviderTests],
        caller: InjectedCaller,
        provider_id: FromPath[int],
    ) -> Success[ProviderCheck]:
        """Send a small request to the provider and report what is wrong if it does not answer.

        What it took is part of your usage."""
        return success(await provider_tests.test(caller, provider_id))

    @get("/{provider_id:int}/models")
    async def models(
        self, providers: InjectedProviders, caller: InjectedCaller, provider_id: FromPath[int]
    ) -> Success[UpstreamModels]:
        """The models that the provider offers, with their known properties."""
        return success(await providers.list_models(caller, provider_id))


class AllowedHostsController(Controller):
    path = "/admin/allowed-hosts"
    tags = ("admin",)

    @get()
    async def read(self, providers: InjectedProviders, caller: InjectedCaller) -> Success[AllowedHosts]:
        """The private addresses allowed for providers. ADMINs of the default tenant only."""
        return success(AllowedHosts(hosts=await providers.allowed_hosts(caller)))

    @put()
    async def replace(
        self, providers: InjectedProviders, caller: InjectedCaller, data: JSONBody[NewAllowedHosts]
    ) -> Success[AllowedHosts]:
        """Replace the addresses that administrators allowed. ADMINs of the default tenant only."""
        return success(AllowedHosts(hosts=await providers.set_allowed_hosts(caller, data.hosts)), "saved")


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
