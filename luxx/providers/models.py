"""Tables and API structs of model providers and of allowed private hosts.

`service.py` decrypts keys and chooses models.
"""

import re
from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import ForeignKey, Index, String, Text, exists, text
from sqlalchemy.orm import Mapped, column_property, mapped_column

from luxx.domain.accounts.models import Tenant
from luxx.domain.owned import SharedRow
from luxx.errors import InvalidInput
from luxx.infra.store.tables import Base, UtcDateTime
from luxx.infra.strict_json import IN_LINE, IN_NAME, IN_PASTED, LINE, NAME, PASTED
from luxx.wire.turn import MODEL_LENGTH


class ProviderRow(SharedRow):
    """`api_key` is encrypted, empty if there is none. A user has at most one default.

    `base_url` is empty for the embedded model, whose address exists only while it runs. Ids are never
    reused, so that a stored id of a deleted provider cannot refer to another one. `models` is the list of its
    models as JSON, fetched at `models_at`; both are null where it is not known.
    """

    __tablename__ = "llm_providers"
    __table_args__ = (
        Index(
            "uq_llm_providers_default",
            "user_id",
            unique=True,
            sqlite_where=text("is_default"),
            postgresql_where=text("is_default"),
        ),
        Index("ix_llm_providers_user_id", "user_id"),
        Index("ix_llm_providers_tenant_id_is_shared", "tenant_id", "is_shared"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    provider_type: Mapped[str] = mapped_column(String(40))
    base_url: Mapped[str] = mapped_column(String(500), default="")
    api_key: Mapped[str] = mapped_column(Text, default="")
    default_model: Mapped[str] = mapped_column(String(200), default="")
    max_tokens: Mapped[int | None] = mapped_column()
    is_default: Mapped[bool] = mapped_column(default=False)
    enabled: Mapped[bool] = mapped_column(default=True)
    models: Mapped[str | None] = mapped_column(Text, deferred=True)
    models_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    is_tenant_default: Mapped[bool] = column_property(
        exists().where(Tenant.default_provider_id == id).correlate_except(Tenant), deferred=True
    )


class ServerValueRow(Base):
    """A value of the whole server, such as the check of its secret key."""

    __tablename__ = "server_values"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class AllowedHostRow(Base):
    """A private `host:port` that Luxx may connect to; `allowed_by` is null after that user was deleted."""

    __tablename__ = "allowed_hosts"

    host_port: Mapped[str] = mapped_column(String(300), primary_key=True)
    allowed_by: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ProviderFailureRow(Base):
    """When calls of a model failed for good at its provider, so that a fallback made them."""

    __tablename__ = "provider_failures"

    provider_id: Mapped[int] = mapped_column(
        ForeignKey("llm_providers.id", ondelete="CASCADE"), primary_key=True
    )
    model: Mapped[str] = mapped_column(String(MODEL_LENGTH), primary_key=True)
    failed_at: Mapped[datetime] = mapped_column(UtcDateTime)


ProviderName = Annotated[str, Meta(min_length=1, max_length=100, pattern=NAME, description=IN_NAME)]
TypeName = Annotated[str, Meta(min_length=1, max_length=40, pattern=LINE, description=IN_LINE)]
BaseUrl = Annotated[str, Meta(max_length=500, pattern=LINE, description=IN_LINE)]
ApiKey = Annotated[str, Meta(max_length=4096, pattern=PASTED, description=IN_PASTED)]
ModelName = Annotated[str, Meta(max_length=200, pattern=PASTED, description=IN_PASTED)]
MaxTokens = Annotated[int, Meta(ge=1, le=10_000_000)]
HostPort = Annotated[str, Meta(min_length=3, max_length=300, pattern=LINE, description=IN_LINE)]


class NewProvider(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`base_url` may be omitted for a type with a default base URL."""

    name: ProviderName
    provider_type: TypeName
    base_url: BaseUrl = ""
    api_key: ApiKey = ""
    default_model: ModelName = ""
    max_tokens: MaxTokens | None = None
    is_default: bool | UnsetType = UNSET
    is_shared: bool = False
    enabled: bool = True

    def __repr__(self) -> str:
        return f"NewProvider({self.name!r}, {self.provider_type})"


class ProviderChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change. `api_key`: a new key, or empty or null to remove the stored one."""

    name: ProviderName | UnsetType = UNSET
    provider_type: TypeName | UnsetType = UNSET
    base_url: BaseUrl | UnsetType = UNSET
    api_key: ApiKey | UnsetType | None = UNSET
    default_model: ModelName | UnsetType = UNSET
    max_tokens: MaxTokens | UnsetType | None = UNSET
    is_default: bool | UnsetType = UNSET
    is_shared: bool | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET

    def __repr__(self) -> str:
        return "ProviderChanges(…)"


class ProviderView(Struct, frozen=True, kw_only=True):
    """`api_key` is `****` and at most its last four characters; empty if there is none or it is another
    user's. `is_default`: of its user; `is_tenant_default`: of all users of the tenant without a default.
    """

    id: int
    user_id: int
    name: str
    provider_type: str
    base_url: str
    api_key: str
    default_model: str
    max_tokens: int | None
    is_default: bool
    is_tenant_default: bool
    is_shared: bool
    is_own: bool
    enabled: bool
    created_at: datetime
    updated_at: datetime
    models_at: Annotated[
        datetime | None,
        Meta(description="when its list of models was fetched; null: not known, no name is checked"),
    ] = None


class ModelView(Struct, frozen=True, kw_only=True):
    """The properties of a model, by its name. If `is_known` is false, the catalogue does not know it: they
    are those that the provider's list states, and assumed ones. `chat` is false for a model that only makes
    embeddings or ranks texts: chats do not offer it.

    Windows are in tokens, prices in US dollars per million tokens, null if unknown.
    """

    name: str
    is_known: bool
    chat: bool
    context_window: int
    max_output: int
    tools: bool
    thinking: bool
    images: bool
    structured: bool
    input_price: float | None
    output_price: float | None
    cached_input_price: float | None
    cache_write_price: float | None


class UsableProvider(Struct, frozen=True, kw_only=True):
    """An enabled provider that a user may use, without its key. `is_embedded`: it has its default model
    only."""

    id: int
    name: str
    default_model: str
    is_own: bool
    is_embedded: bool
    updated_at: datetime


class UpstreamModels(Struct, frozen=True, kw_only=True):
    """The model names as the server lists them, and a card for each in the same order.

    `is_known`: whether the provider lists its models. If not, `note` says why, and every name is sent to it.
    """

    models: list[str]
    cards: list[ModelView]
    is_known: bool = True
    note: str | None = None


class AllowedHostView(Struct, frozen=True, kw_only=True):
    """`source`: allowed by the configuration, or by an administrator, who can change it in the API."""

    host: str
    source: Literal["config", "admin"]
    allowed_by: int | None = None
    created_at: datetime | None = None


class AllowedHosts(Struct, frozen=True, kw_only=True):
    hosts: list[AllowedHostView]


class NewAllowedHosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The complete list; hosts that are not in it are no longer allowed."""

    hosts: Annotated[list[HostPort], Meta(max_length=1000)]


def validate_api_key(api_key: str) -> str:
    """The key without surrounding whitespace. Raises InvalidInput if it cannot be sent in an HTTP header."""
    api_key = api_key.strip()
    if not re.fullmatch(r"[\x21-\x7e]*", api_key):
        problem = "api_key must be plain ASCII without spaces or line breaks; copy it again"
        raise InvalidInput(problem, field="$.api_key")
    return api_key
