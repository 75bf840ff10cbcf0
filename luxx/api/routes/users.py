"""Administration of users and tenants, and `/settings`, the caller's own defaults."""

from typing import Annotated

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize
from luxx.api.routes.auth import Email, NewPassword, Username
from luxx.domain.accounts.administration import Administration, NewAccount
from luxx.domain.accounts.rights import UserChange
from luxx.domain.accounts.tenants import TenantChange, TenantService, TenantView
from luxx.domain.accounts.user_data import SettingsChange, SettingsService, SettingsView
from luxx.domain.accounts.users import UserFilter, UserView
from luxx.infra.strict_json import IN_NAME, NAME
from luxx.wire.model_settings import Extraction
from luxx.wire.tool import CommandPermission
from luxx.wire.turn import MODEL_LENGTH

InjectedSettings = NamedDependency[SettingsService]

InjectedAdministration = NamedDependency[Administration]
RowId = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TenantFilter = Annotated[int | None, QueryParameter(ge=1, le=2**31 - 1, description="only of this tenant")]
UserSearchText = Annotated[
    str, QueryParameter(max_length=100, description="a part of the name or e-mail address")
]


class NewUserBody(NewAccount, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tenant_id`: default your own tenant; only operators may set another."""

    username: Username
    password: NewPassword
    email: Email | None = None
    permission_level: CommandPermission = CommandPermission.READ_ONLY
    tenant_id: RowId | None = None


class UserBody(UserChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted field does not change; `role` follows the level. Null removes the email address."""

    permission_level: CommandPermission | UnsetType = UNSET
    is_active: bool | UnsetType = UNSET
    email: Email | UnsetType | None = UNSET
    tenant_id: RowId | UnsetType = UNSET


class NewPasswordBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    new_password: NewPassword


class UserController(Controller):
    path = "/auth/users"
    tags = ("users",)

    @get()
    async def list_users(
        self,
        caller: InjectedCaller,
        administration: InjectedAdministration,
        q: UserSearchText = "",
        tenant_id: TenantFilter = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[UserView]]:
        """The users you administer, newest first; operators see all. ADMIN only, like the other routes."""
        user_filter = UserFilter(tenant_id=tenant_id, q=q)
        found = await administration.list_users(caller, user_filter, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, administration: InjectedAdministration, data: JSONBody[NewUserBody]
    ) -> Success[UserView]:
        """Add a user."""
        return success(await administration.create_user(caller, data), "created")

    @get("/{user_id:int}")
    async def show(
        self, caller: InjectedCaller, administration: InjectedAdministration, user_id: FromPath[int]
    ) -> Success[UserView]:
        """One user."""
        return success(await administration.get_user(caller, user_id))

    @put("/{user_id:int}")
    async def update(
        self,
        caller: InjectedCaller,
        administration: InjectedAdministration,
        user_id: FromPath[int],
        data: JSONBody[UserBody],
    ) -> Success[UserView]:
        """Change the level or email address of a user, disable or enable the user, or (operators) change the
        tenant. The user's runs end when you disable the user or change the tenant."""
        return success(await administration.update_user(caller, user_id, data), "saved")

    @post("/{user_id:int}/password", status_code=200)
    async def reset_password(
        self,
        caller: InjectedCaller,
        administration: InjectedAdministration,
        user_id: FromPath[int],
        data: JSONBody[NewPasswordBody],
    ) -> Success[UserView]:
        """Set a password that the user must change before anything else; the user's sign-ins end."""
        user = await administration.reset_password(caller, user_id, data.new_password)
        return success(user, "password reset; all sign-ins of this user have ended")

    @delete("/{user_id:int}", status_code=200)
    async def remove(
        self, caller: InjectedCaller, administration: InjectedAdministration, user_id: FromPath[int]
    ) -> Success[None]:
        """Delete a user with all data and files. Another ADMIN gets the user's shared providers."""
        await administration.delete_user(caller, user_id)
        return success(None, "deleted")


TitleModel = Annotated[str, Meta(min_length=1, max_length=MODEL_LENGTH)]


class SettingsBody(SettingsChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted field does not change; null clears it."""

    default_provider_id: RowId | UnsetType | None = UNSET
    title_provider_id: RowId | UnsetType | None = UNSET
    title_model: TitleModel | UnsetType | None = UNSET
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType | None = UNSET
    system_prompt: Annotated[str, Meta(max_length=100_000)] | UnsetType | None = UNSET


class SettingsController(Controller):
    path = "/settings"
    tags = ("settings",)

    @get()
    async def read(self, user_settings: InjectedSettings, caller: InjectedCaller) -> Success[SettingsView]:
        """Your defaults."""
        return success(await user_settings.get(caller))

    @put()
    async def update(
        self, user_settings: InjectedSettings, caller: InjectedCaller, data: JSONBody[SettingsBody]
    ) -> Success[SettingsView]:
        """Change your defaults."""
        return success(await user_settings.update(caller, data), "saved")


InjectedTenants = NamedDependency[TenantService]
TenantName = Annotated[str, Meta(min_length=1, max_length=200, pattern=NAME, description=IN_NAME)]


class TenantBody(TenantChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted field does not change."""

    name: TenantName | UnsetType = UNSET
    default_agent_id: RowId | UnsetType | None = UNSET
    default_provider_id: RowId | UnsetType | None = UNSET
    allow_registration: bool | UnsetType = UNSET
    allow_own_providers: bool | UnsetType = UNSET
    extraction: Extraction | UnsetType | None = UNSET
    learn_patterns: bool | UnsetType = UNSET
    title_provider_id: RowId | UnsetType | None = UNSET
    title_model: TitleModel | UnsetType | None = UNSET
    public_links: bool | UnsetType = UNSET


class NewTenantBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: TenantName
    default_agent_id: RowId | None = None
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
        return success(await tenants.update_own(caller, data), "saved")


class TenantsController(Controller):
    path = "/admin/tenants"
    tags = ("admin",)

    @get()
    async def list_tenants(
        self, caller: InjectedCaller, tenants: InjectedTenants, page: PageNumber = 1, page_size: PageSize = 20
    ) -> Success[Page[TenantView]]:
        """All tenants, newest first. ADMINs of the default tenant only, like the other routes here."""
        found = await tenants.list_page(caller, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create_tenant(
        self, caller: InjectedCaller, tenants: InjectedTenants, data: JSONBody[NewTenantBody]
    ) -> Success[TenantView]:
        """Create a tenant; add its first ADMIN with POST /auth/users."""
        new = TenantChange(**msgspec.structs.asdict(data))
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
        return success(await tenants.update(caller, tenant_id, data), "saved")

    @delete("/{tenant_id:int}", status_code=200)
    async def delete_tenant(
        self, caller: InjectedCaller, tenants: InjectedTenants, tenant_id: FromPath[int]
    ) -> Success[None]:
        """Delete a tenant that has no users."""
        await tenants.delete(caller, tenant_id)
        return success(None, "deleted")
