"""Rows of tenants, users, their sign-ins, API keys, tickets and settings. Rows never leave this feature."""

from datetime import datetime

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    false,
    text,
    true,
)
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.store.tables import (
    Base,
    ExtractionType,
    MemoryColumn,
    ModelSettingsColumns,
    RequestColumns,
    UtcDateTime,
)
from luxx.wire.model_settings import Extraction, TitleMode
from luxx.wire.turn import MODEL_LENGTH


class ExtractionColumn:
    """The column of a row that may turn extraction on or off; null leaves it to the next source, and in the
    end it is off."""

    extraction: Mapped[Extraction | None] = mapped_column(ExtractionType)


class TitleColumns:
    """The columns of a row that may choose the model which names conversations. The provider has no foreign
    key: one that is gone or cannot be used names nothing. `lost_title_provider` is the name of one that was
    deleted or is no longer shared; no other takes its place."""

    title_provider_id: Mapped[int | None] = mapped_column(Integer)
    lost_title_provider: Mapped[str | None] = mapped_column(String(100))
    title_model: Mapped[str | None] = mapped_column(String(MODEL_LENGTH))


class Tenant(ExtractionColumn, TitleColumns, Base):
    """An isolated group of users. Exactly one is the default, with the id 1.

    People register into the default tenant, so `allow_registration` is false in all others.
    `lost_default_agent` and `lost_default_provider` are the names of defaults that were deleted or are no
    longer shared; `default_provider_id` stays while the provider exists, to be valid when it is shared again.
    """

    __tablename__ = "tenants"
    __table_args__ = (
        Index(
            "uq_tenants_is_default",
            "is_default",
            unique=True,
            sqlite_where=text("is_default"),
            postgresql_where=text("is_default"),
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    is_default: Mapped[bool] = mapped_column(Boolean, default=False)
    default_agent_id: Mapped[int | None] = mapped_column(Integer)
    lost_default_agent: Mapped[str | None] = mapped_column(String(100))
    allow_registration: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    allow_own_providers: Mapped[bool] = mapped_column(Boolean, default=True, server_default=true())
    learn_patterns: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    public_links: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    lost_default_provider: Mapped[str | None] = mapped_column(String(100))
    default_provider_id: Mapped[int | None] = mapped_column(Integer)


class User(Base):
    """`username_key` is the name in lower case: names that differ only in case are the same user.

    `has_default_password` is true while the user has the published default password. Ids are never reused
    (autoincrement), because the workspace path is derived from the id.
    """

    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint("permission_level BETWEEN 1 AND 4", name="permission_level"),
        CheckConstraint("role = CASE WHEN permission_level = 4 THEN 'admin' ELSE 'user' END", name="role"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    username: Mapped[str] = mapped_column(String(64))
    username_key: Mapped[str] = mapped_column(String(64), unique=True)
    email: Mapped[str | None] = mapped_column(String(254), unique=True)
    password_hash: Mapped[str] = mapped_column(String(100))
    must_change_password: Mapped[bool] = mapped_column(Boolean, default=False)
    has_default_password: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    role: Mapped[str] = mapped_column(String(20))
    permission_level: Mapped[int] = mapped_column(Integer)
    workspace_path: Mapped[str] = mapped_column(Text, default="")
    is_active: Mapped[bool] = mapped_column(Boolean, default=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SignIn(Base):
    """One sign-in with its chain of refresh tokens; `refresh_hash` is that of the only valid one."""

    __tablename__ = "sign_ins"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    refresh_hash: Mapped[str] = mapped_column(String(64))
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_because: Mapped[str | None] = mapped_column(String(20))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ApiKeyRow(Base):
    """A personal API key. `prefix` is public; `key_hash` is the SHA-256 hash of the whole key.

    `name_key` is the name without regard to letter case. `scopes` are separated by commas. `last_used_at` is
    up to an hour old.
    """

    __tablename__ = "api_keys"
    __table_args__ = (Index("uq_api_keys_user_id_name_key", "user_id", "name_key", unique=True),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(100))
    name_key: Mapped[str] = mapped_column(String(300))
    prefix: Mapped[str] = mapped_column(String(20), unique=True)
    key_hash: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[str] = mapped_column(String(40))
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class TicketRow(Base):
    """A ticket that opens a socket for the sign-in or API key that asked for it; using it deletes the row."""

    __tablename__ = "tickets"
    __table_args__ = (CheckConstraint("(sign_in_id IS NULL) <> (key_id IS NULL)", name="credential"),)

    ticket_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    sign_in_id: Mapped[str | None] = mapped_column(ForeignKey("sign_ins.id", ondelete="CASCADE"), index=True)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class UserSettings(ExtractionColumn, TitleColumns, MemoryColumn, ModelSettingsColumns, RequestColumns, Base):
    """A user's defaults for new conversations; null leaves the choice to the provider and its model.

    `titles` null: on, where a model is named for it; `follow_ups`: the same model proposes next messages.
    `lost_default_provider` is the name of a default that was deleted: of the settings, or of the providers.
    """

    __tablename__ = "user_settings"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), unique=True)
    default_provider_id: Mapped[int | None] = mapped_column(
        ForeignKey("llm_providers.id", ondelete="SET NULL"), index=True
    )
    temperature: Mapped[float | None] = mapped_column(Float)
    system_prompt: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    lost_default_provider: Mapped[str | None] = mapped_column(String(100))
    titles: Mapped[TitleMode | None] = mapped_column(
        Enum(TitleMode, native_enum=False, length=10, values_callable=list)
    )
    follow_ups: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
