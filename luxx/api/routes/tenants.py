"""`/tenant`, the caller's own tenant, and `/admin/tenants`, all tenants, for operators."""

from typing import Annotated

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, Meta, UnsetType

from luxx.api.http.envelope import Page, Success, success
from luxx.api.http.parameters import InjectedCaller, PageNumber, PageSize
from luxx.domain.accounts.tenants import TenantChange, TenantService, TenantView
from luxx.wire.line import NAME

InjectedTenants = NamedDependency[TenantService]
TenantName = Annotated[str, Meta(min_length=1, max_length=200, pattern=NAME)]
AgentId = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class TenantBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted field does not change."""

    name: TenantName | UnsetType = UNSET
    default_agent_id: AgentId | UnsetType | None = UNSET
    allow_registration: bool | UnsetType = UNSET
    allow_own_providers: bool | UnsetType = UNSET


class NewTenantBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: TenantName
    default_agent_id: AgentId | None = None
    allow_own_providers: bool = True


class TenantController(Controller):
    path = "/tenant"
    tags = ("tenants",)

    @get()
    async def show(self, caller: InjectedCaller, tenants: InjectedTenants) -> Success[TenantView]:
        """Your own tenant."""
        return success(await tenants.own(caller))

    @put()
    async def update(
        self, caller: InjectedCaller, tenants: InjectedTenants, data: JSONBody[TenantBody]
    ) -> Success[TenantView]:
        """Change your own tenant. ADMIN only."""
        return success(await tenants.update_own(caller, _change(data)), "saved")


class TenantsController(Controller):
    path = "/admin/tenants"
    tags = ("admin",)

    @get()
    async def list_tenants(
        self, caller: InjectedCaller, tenants: InjectedTenants, page: PageNumber = 1, page_size: PageSize = 20
    ) -> Success[Page[TenantView]]:
        """All tenants, newest first. ADMINs of the default tenant only, like the other routes here."""
        items, total = await tenants.list_page(caller, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))

    @post(status_code=201)
    async def create_tenant(
        self, caller: InjectedCaller, tenants: InjectedTenants, data: JSONBody[NewTenantBody]
    ) -> Success[TenantView]:
        """Create a tenant; add its first ADMIN with POST /auth/users."""
        new = TenantChange(
            name=data.name,
            default_agent_id=data.default_agent_id,
            allow_own_providers=data.allow_own_providers,
        )
        return success(await tenants.create(caller, new), "created")

    @get("/{tenant_id:int}")
    async def show_tenant(
        self, caller: InjectedCaller, tenants: InjectedTenants, tenant_id: FromPath[int]
    ) -> Success[TenantView]:
        """One tenant."""
        return success(await tenants.get(caller, tenant_id))

    @put("/{tenant_id:int}")
    async def update_tenant(
        self,
        caller: InjectedCaller,
        tenants: InjectedTenants,
        tenant_id: FromPath[int],
        data: JSONBody[TenantBody],
    ) -> Success[TenantView]:
        """Change a tenant."""
        return success(await tenants.update(caller, tenant_id, _change(data)), "saved")

    @delete("/{tenant_id:int}", status_code=200)
    async def delete_tenant(
        self, caller: InjectedCaller, tenants: InjectedTenants, tenant_id: FromPath[int]
    ) -> Success[None]:
        """Delete a tenant that has no users."""
        await tenants.delete(caller, tenant_id)
        return success(None, "deleted")


def _change(data: TenantBody) -> TenantChange:
    return TenantChange(
        name=data.name,
        default_agent_id=data.default_agent_id,
        allow_registration=data.allow_registration,
        allow_own_providers=data.allow_own_providers,
    )
