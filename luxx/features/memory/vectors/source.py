"""Where vectors come from: the model that the configuration names, called for a user who pays for it.

A provider is used for those users only who may see it, as for chats. What is embedded is a line of its own in
the ledger.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, func, literal, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.context.tokens import text_tokens
from luxx.domain.usage.ledger import UsageEntry, clamped, record
from luxx.domain.usage.reserve import check_daily_limits, limits_of
from luxx.errors import Unavailable
from luxx.features.memory.vectors.models import EmbeddingModelRow
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import EMBEDDED_EMBEDDINGS, EmbeddingConfig, LimitsConfig
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.providers.catalog import ProviderSelection
from luxx.providers.embedding import EmbeddingClient, EmbeddingRequest
from luxx.providers.local.embedder import Embedder
from luxx.providers.models import ProviderRow
from luxx.providers.service import ProviderService
from luxx.wire.run import RunKind
from luxx.wire.turn import Usage

PURPOSE = "embedding"
"""The `purpose` of the ledger's rows."""

NO_PROVIDER = 0
"""The provider of the embedded model."""

EMBEDDER_SECONDS = 60.0
"""How long texts wait for the start of the embedded model."""

_models = table_of(EmbeddingModelRow)
_users, _providers = table_of(User), table_of(ProviderRow)
all_models: Select[Any] = select(*_models.c).order_by(_models.c.id.desc())
"""The models that have vectors or a test, the newest first."""


class VectorModel(msgspec.Struct, frozen=True, kw_only=True):
    """A tested model whose vectors are searched."""

    id: int
    provider_id: int
    name: str
    floor: float


class PaidBy(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is entered in the ledger for. Without a run it is work in the background."""

    run_id: str = ""
    subject_id: str = ""
    kind: RunKind | str = RunKind.MEMORY


class Payer(msgspec.Struct, frozen=True, kw_only=True):
    """A user with the provider that they use."""

    caller: Caller
    selection: ProviderSelection


class Free(msgspec.Struct, frozen=True):
    """The embedded model is used, which nobody pays for."""


class VectorServer(msgspec.Struct, frozen=True, kw_only=True):
    """For whom the model makes vectors: the owner of its provider, and all of a tenant that it `is_shared`
    with."""

    user_id: int
    tenant_id: int
    is_shared: bool


@dataclass(frozen=True, slots=True, repr=False)
class EmbeddingSource:
    """One per process."""

    store: Store
    providers: ProviderService
    client: EmbeddingClient
    config: EmbeddingConfig
    limits: LimitsConfig
    embedder: Embedder

    @property
    def provider_id(self) -> int:
        return self.config.provider_id or NO_PROVIDER

    def searched_model(self, connection: Connection) -> VectorModel | None:
        """The model whose vectors are searched: the configured one, or another one as long as that does not
        have all vectors. None: no model has passed its test."""
        rows = connection.execute(all_models).all()
        configured = self.configured_row(rows)
        if configured is not None and configured.tested_at is not None and not has_passed(configured):
            return None
        usable = [row for row in rows if has_passed(row)]
        ready = [row for row in usable if row.ready_at is not None]
        row = next(iter([*filter(self.is_configured, ready), *ready, *usable]), None)
        if row is None:
            return None
        return VectorModel(id=row.id, provider_id=row.provider_id, name=row.name, floor=row.floor or 0.0)

    def made_by(self, connection: Connection) -> int | None:
        """The id of the model whose vectors are being made or are there: the configured one, unless it finds
        too little."""
        if not self.config.model:
            return None
        row = self.configured_row(connection.execute(all_models).all())
        if row is None or (row.tested_at is not None and not has_passed(row)):
            return None
        return int(row.id)

    def configured_row(self, rows: Sequence[Row[Any]]) -> Row[Any] | None:
        """The row of the model that the configuration names, of those of `all_models`."""
        return next(filter(self.is_configured, rows), None)

    def is_configured(self, row: Row[Any]) -> bool:
        """Whether a row of `all_models` is of the model that the configuration names."""
        return (row.provider_id, row.name) == (self.provider_id, self.config.model)

    def servers(self, connection: Connection) -> list[VectorServer]:
        """The configured provider, unless it is deleted. The embedded model makes vectors for all: it is
        shared with each tenant, as if by the first of its active users."""
        if self.config.is_embedded:
            owner = func.min(_users.c.id)
            query = select(owner, _users.c.tenant_id, literal(True)).where(_users.c.is_active)
            query = query.group_by(_users.c.tenant_id)
        else:
            query = select(_providers.c.user_id, _providers.c.tenant_id, _providers.c.is_shared)
            query = query.where(_providers.c.id == self.provider_id)
        return [
            VectorServer(user_id=user_id, tenant_id=tenant_id, is_shared=is_shared)
            for user_id, tenant_id, is_shared in connection.execute(query)
        ]

    def payer(self, session: Session, user_id: int, provider_id: int, model: str) -> Payer | Free:
        """Raises LuxxError for a provider that the user may not use, a daily limit that is reached, or an
        embedded model that is not installed."""
        if provider_id == NO_PROVIDER:
            if reason := self.embedder.unavailable_reason():
                raise Unavailable(reason, kind="local_model_failed")
            return Free()
        caller = user_as_caller(session.connection(), user_id)
        selection = self.providers.select_provider(session, caller, provider_id, model)
        is_own = selection.row.user_id == user_id
        limits = limits_of(self.limits, caller.permission_level, is_own_provider=is_own)
        check_daily_limits(session.connection(), user_id, limits, utc_now())
        return Payer(caller=caller, selection=selection)

    async def embed(
        self,
        payer: Payer | Free,
        texts: list[str],
        paid_by: PaidBy,
        *,
        is_query: bool = False,
        has_retries: bool = True,
    ) -> list[list[float]]:
        """The vectors of the texts, with what they took entered in the ledger. Raises LuxxError."""
        if isinstance(payer, Free):
            request = EmbeddingRequest(model=EMBEDDED_EMBEDDINGS, texts=texts, is_query=is_query)
            target = await self.embedder.target(EMBEDDER_SECONDS)
            return (await self.client.embed(request, target, has_retries=has_retries)).vectors
        provider = await self.providers.resolve_selection(payer.selection)
        choice = provider.choice
        request = EmbeddingRequest(model=choice.model, texts=texts, is_query=is_query)
        found = await self.client.embed(request, provider.target, has_retries=has_retries)
        usage = clamped(Usage(prompt_tokens=found.tokens or sum(map(text_tokens, texts))))
        entry = UsageEntry(
            user_id=payer.caller.user_id,
            tenant_id=payer.caller.tenant_id,
            run_id=paid_by.run_id,
            subject_id=paid_by.subject_id,
            kind=paid_by.kind,
            purpose=PURPOSE,
            provider_id=choice.provider_id,
            model=choice.model,
            usage=usage,
            cost=choice.card.cost(usage),
            is_estimated=not found.tokens,
        )
        await self.store.write_rows(lambda connection: record(connection, entry))
        return found.vectors


def has_passed(row: Row[Any]) -> bool:
    """Whether a model finds at least as much as words do."""
    return row.tested_at is not None and row.vector_hit >= row.keyword_hit
