"""Provider management for users and provider selection for runs; `resolve_selection` returns a target with
its key.

API views never contain a key. `queries.py` decides who may see and change a provider, `addresses.py`
checks addresses, `registry.py` has the adapters.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from msgspec import UNSET
from sqlalchemy import select
from sqlalchemy.orm import Session, undefer

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.tenants import check_may_connect_provider
from luxx.domain.accounts.user_data import SettingsView
from luxx.domain.owned import given_fields, view_of
from luxx.errors import InvalidInput, LuxxError, ProviderError, Unavailable
from luxx.infra.clock import utc_now
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Uses
from luxx.providers.adapter import Target, run_sized
from luxx.providers.addresses import AddressGuard, check_provider_url, parse_allowed_hosts
from luxx.providers.catalog import (
    DEMO_CARD,
    Catalog,
    ModelCard,
    ProviderChoice,
    ProviderSelection,
    ResolvedProvider,
    embedded_card,
)
from luxx.providers.check import OnAnswer, ProviderCheck, check_provider
from luxx.providers.choosing import (
    apply_changes,
    check_complete,
    delete_provider,
    missing_of,
    select_provider_row,
    set_default,
    uses_of_provider,
)
from luxx.providers.client import ModelClient
from luxx.providers.demo.server import DemoServer
from luxx.providers.local.model import LOCAL, LocalModel
from luxx.providers.model_lists import ModelLists, is_fresh, listed_views, store_list, unlisted
from luxx.providers.models import (
    AllowedHostRow,
    AllowedHostView,
    NewProvider,
    ProviderChanges,
    ProviderRow,
    ProviderView,
    UpstreamModels,
    UsableProvider,
    validate_api_key,
)
from luxx.providers.queries import (
    PROVIDERS,
    allow_host,
    change_key,
    check_type,
    enabled_rows,
    has_no_provider,
    masked_key,
    read_key,
    replace_allowed_hosts,
    store_key,
    visible_row,
)
from luxx.providers.registry import ProviderType, base_url_of_type

NO_LIST = frozenset({404, 405, 501})  # The statuses of a server without a list of models.
REFETCH_SECONDS = 5.0
LOCAL_START_SECONDS = 60.0  # How long a run waits for the embedded model to start.


class ProviderService:
    """The providers of users. `local`, the embedded model, and `demo` are None if they are disabled."""

    def __init__(
        self,
        store: Store,
        vault: Vault,
        client: ModelClient,
        guard: AddressGuard,
        *,
        local: LocalModel | None = None,
        demo: DemoServer | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        self._store = store
        self._vault = vault
        self._client = client
        self._guard = guard
        self._local = local
        self._demo = demo
        self._catalog = catalog or Catalog()
        self.model_lists = ModelLists()

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[ProviderView], int]:
        """The caller's providers and those shared in the tenant, newest first, and their total number."""

        def work(session: Session) -> tuple[list[ProviderView], int]:
            options = [undefer(ProviderRow.is_tenant_default)]
            rows, total = PROVIDERS.page(session, caller, page=page, page_size=page_size, options=options)
            return [self._view(row, caller) for row in rows], total

        return await self._store.read(work)

    async def get(self, caller: Caller, provider_id: int) -> ProviderView:
        return await self._store.read(
            lambda session: self._view(visible_row(session, caller, provider_id), caller)
        )

    async def check_default(self, caller: Caller, provider_id: int, field: str) -> None:
        """Raises NotFound or InvalidInput if the provider cannot be the default of this field of settings."""
        row = await self._store.read(lambda session: visible_row(session, caller, provider_id))
        check_complete(row, field)

    async def create(self, caller: Caller, new: NewProvider) -> ProviderView:
        """A user's first provider becomes the default unless the request says otherwise."""
        check_type(caller, new.provider_type)
        PROVIDERS.check_sharing(None, caller, new.is_shared)
        api_key = validate_api_key(new.api_key)
        url, newly_allowed = await check_provider_url(self._guard, caller, new.provider_type, new.base_url)
        now = utc_now()

        def work(session: Session) -> ProviderView:
            check_may_connect_provider(session, caller)
            PROVIDERS.check_sharing(session, caller, new.is_shared)
            row = ProviderRow(
                user_id=caller.user_id,
                tenant_id=caller.tenant_id,
                name=new.name.strip(),
                provider_type=new.provider_type,
                base_url=url,
                default_model=new.default_model.strip(),
                max_tokens=new.max_tokens,
                is_shared=new.is_shared,
                enabled=new.enabled,
                created_at=now,
                updated_at=now,
            )
            is_first = has_no_provider(session, caller.user_id)
            session.add(row)
            session.flush()
            store_key(self._vault, row, api_key)
            wants_default = is_first and not missing_of(row) if new.is_default is UNSET else new.is_default
            set_default(session, row, wants_default)
            allow_host(session, caller, newly_allowed)
            PROVIDERS.record(session, caller.actor, "create", row)
            return self._view(row, caller)

        return await self._save(work)

    async def _save(self, work: Callable[[Session], ProviderView]) -> ProviderView:
        try:
            return await self._store.write(work)
        finally:
            self._guard.clear_cache()  # Saving may have allowed a host.

    async def update(self, caller: Caller, provider_id: int, changes: ProviderChanges) -> ProviderView:
        """A new base_url removes the stored key unless the changes have a new key. A new type alone keeps it
        or, if it has another address, is refused.
        """
        current = await self._store.read(
            lambda session: PROVIDERS.to_change(session, caller, provider_id, changes, is_locked=False)
        )
        provider_type = current.provider_type if changes.provider_type is UNSET else changes.provider_type
        if provider_type != current.provider_type:
            check_type(caller, provider_type)
        url, newly_allowed = current.base_url, None
        if changes.base_url is not UNSET or provider_type != current.provider_type:
            kept = base_url_of_type(provider_type, current.provider_type, current.base_url)
            wanted = kept if changes.base_url is UNSET else changes.base_url
            url, newly_allowed = await check_provider_url(self._guard, caller, provider_type, wanted)

        def work(session: Session) -> ProviderView:
            row = PROVIDERS.to_change(session, caller, provider_id, changes)
            check_may_connect_provider(session, caller)
            before = row.base_url, row.api_key
            change_key(self._vault, row, changes, url)
            row.provider_type, row.base_url = provider_type, url
            if (row.base_url, row.api_key) != before:
                # The provider may have other models there, or for the other key.
                row.models = row.models_at = None
            apply_changes(session, row, changes)
            if isinstance(changes.default_model, str) and row.default_model:
                self.model_lists.check(row, row.default_model, "$.default_model")
            if changes.is_default is not UNSET:
                set_default(session, row, changes.is_default)
            allow_host(session, caller, newly_allowed)
            row.updated_at = utc_now()
            session.flush()
            PROVIDERS.record(session, caller.actor, "change", row, list(given_fields(changes)))
            return self._view(row, caller)

        return await self._save(work)

    async def delete(self, caller: Caller, provider_id: int) -> Uses:
        """What used the provider keeps its name and stops until another is chosen; returns how much."""

        def work(session: Session) -> Uses:
            row = PROVIDERS.to_change(session, caller, provider_id, None)
            PROVIDERS.record(session, caller.actor, "delete", row)
            return delete_provider(session, row)

        return await self._store.write(work)

    async def uses(self, caller: Caller, provider_id: int) -> Uses:
        """How much uses a provider, of all users who may. For those who may delete it."""
        return await self._store.read(lambda session: uses_of_provider(session, caller, provider_id))

    async def test(
        self, caller: Caller, provider_id: int, *, on_answer: OnAnswer | None = None
    ) -> ProviderCheck:
        """Checks the provider with real requests: its model list, and a short completion for `on_answer`."""
        row = await self._store.read(lambda session: visible_row(session, caller, provider_id))
        model = row.default_model or self._running_model(row)
        try:
            target = await self._target(row)
        except Unavailable as error:
            return ProviderCheck(ok=False, latency_ms=0, kind=error.kind, error=error.message)
        on_completion = on_answer and partial(on_answer, self._card(row, model))
        check = await check_provider(self._client, target, model, on_completion=on_completion)
        await self._store.write(lambda session: store_list(session, row.id, check.models or ()))
        return check

    async def list_models(self, caller: Caller, provider_id: int) -> UpstreamModels:
        """The models that the upstream offers. Raises ProviderError."""
        row = await self._store.read(lambda session: visible_row(session, caller, provider_id))
        note, facts = None, dict[str, dict[str, Any]]()
        try:
            names, facts = await self._client.list_models_with_facts(await self._target(row))
        except ProviderError as error:
            if error.status not in NO_LIST:
                raise
            names = []
        if not names:
            note = f"{row.base_url} does not list its models; any name is sent to it"
        await self._store.write(lambda session: store_list(session, row.id, names))
        cards = await run_sized(len(names), listed_views, names, facts, partial(self._card, row))
        return UpstreamModels(models=names, cards=cards, is_known=note is None, note=note)

    async def refetch_models(self, caller: Caller, provider_id: int) -> bool:
        """Asks the provider for its list again, unless it was asked a moment ago; whether it was asked.

        A list that cannot be fetched counts as not known.
        """
        row = await self._store.read(lambda session: visible_row(session, caller, provider_id))
        if is_fresh(row):
            return False
        try:
            async with asyncio.timeout(REFETCH_SECONDS):
                await self.list_models(caller, provider_id)
        except (LuxxError, TimeoutError):
            await self._store.write(lambda session: store_list(session, provider_id, ()))
        return True

    async def usable(self, caller: Caller) -> list[UsableProvider]:
        """The enabled providers that the caller may use, without the demo: the caller's own first, each kind
        oldest first.
        """

        def work(session: Session) -> list[UsableProvider]:
            rows = enabled_rows(session, caller)
            found = [
                UsableProvider(
                    id=row.id,
                    name=row.name,
                    default_model=self._running_model(row) or row.default_model,
                    is_own=row.user_id == caller.user_id,
                    is_embedded=row.provider_type == LOCAL,
                    updated_at=row.updated_at,
                )
                for row in rows
                if row.provider_type != ProviderType.DEMO
            ]
            return sorted(found, key=lambda one: not one.is_own)

        return await self._store.read(work)

    def _running_model(self, row: ProviderRow) -> str:
        return self._local.model_name if self._local is not None and row.provider_type == LOCAL else ""

    def select_provider(
        self,
        session: Session,
        caller: Caller,
        provider_id: int | None,
        model: str | None,
        *,
        default: SettingsView | None = None,
    ) -> ProviderSelection:
        """The provider of `provider_id` if given, else the first that was chosen: the default of the user's
        settings, the user's own default, the tenant's shared one; any other where none was chosen.

        Raises NotFound, InvalidInput or Conflict, whose message says what to do.
        """
        row = select_provider_row(session, caller, provider_id, default)
        return ProviderSelection(choice=self._choice(row, model), row=row)

    async def resolve_selection(self, selection: ProviderSelection) -> ResolvedProvider:
        """The choice with its target and key; starts the embedded model if needed. Raises Unavailable."""
        return ResolvedProvider(choice=selection.choice, target=await self._target(selection.row))

    def _choice(self, row: ProviderRow, model: str | None) -> ProviderChoice:
        name = model or row.default_model
        if row.provider_type == LOCAL:
            name = self._embedded_model(row, model)
        if not name:
            raise InvalidInput(
                f"provider '{row.name}' has no default model; name a model, or set its default_model",
                kind="no_model",
                field="$.model",
            )
        return ProviderChoice(
            provider_id=row.id,
            name=row.name,
            model=name,
            max_tokens=row.max_tokens,
            card=self._card(row, name),
        )

    def _embedded_model(self, row: ProviderRow, model: str | None) -> str:
        """The embedded model, which answers whatever the name in a request is. Raises UnlistedModel."""
        running = self._running_model(row)
        if model and running and model != running:
            raise unlisted(row.id, row.name, model, (running,))
        return running or model or row.default_model or self._embedded().model_name

    def _card(self, row: ProviderRow, model: str) -> ModelCard:
        if row.provider_type == ProviderType.DEMO:
            return DEMO_CARD
        return embedded_card(model) if row.provider_type == LOCAL else self._catalog.find(model)

    async def allowed_hosts(self, caller: Caller) -> list[AllowedHostView]:
        """The configured hosts, then those that operators allowed, oldest first. Operators only."""
        caller.require_operator()
        oldest = select(AllowedHostRow).order_by(AllowedHostRow.created_at)
        rows = await self._store.read(lambda session: list(session.scalars(oldest)))
        return [AllowedHostView(host=host, source="config") for host in sorted(self._guard.configured)] + [
            AllowedHostView(
                host=row.host_port, source="admin", allowed_by=row.allowed_by, created_at=row.created_at
            )
            for row in rows
        ]

    async def set_allowed_hosts(self, caller: Caller, hosts: Collection[str]) -> list[AllowedHostView]:
        """Replaces the hosts that operators allowed; configured hosts stay. Operators only.

        Raises InvalidInput for a forbidden address.
        """
        caller.require_operator()
        wanted = parse_allowed_hosts(hosts)
        try:
            await self._store.write(lambda session: replace_allowed_hosts(session, caller, wanted))
        finally:
            self._guard.clear_cache()
        return await self.allowed_hosts(caller)

    async def _target(self, row: ProviderRow) -> Target:
        if row.provider_type == LOCAL:
            address = await self._embedded().ensure_ready(LOCAL_START_SECONDS)
            base_url, api_key = address.base_url, address.api_key
        elif row.provider_type == ProviderType.DEMO:
            base_url, api_key = (self._demo.base_url, self._demo.api_key) if self._demo else ("", "")
            if not base_url:
                raise Unavailable("the demo is disabled (demo.enabled); connect a model")
        else:
            base_url, api_key = row.base_url, read_key(self._vault, row)
        return Target(provider_id=row.id, provider_type=row.provider_type, base_url=base_url, api_key=api_key)

    def _embedded(self) -> LocalModel:
        if self._local is None:
            raise Unavailable("the embedded model is disabled (local.enabled); choose another provider")
        return self._local

    def _view(self, row: ProviderRow, caller: Caller) -> ProviderView:
        key = masked_key(self._vault, row) if row.user_id == caller.user_id else ""
        return view_of(ProviderView, row, caller, api_key=key)
