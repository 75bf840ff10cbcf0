"""A user's defaults for new conversations."""

from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import UserSettings
from luxx.errors import InvalidInput, NotFound
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store

CheckProvider = Callable[[Caller, int], Awaitable[object]]
"""Raises NotFound or NotAllowed if the caller may not use the provider of this id."""


class SettingsView(msgspec.Struct, frozen=True, kw_only=True):
    """The settings as the API shows them; null leaves the choice to the provider and its model."""

    id: int
    user_id: int
    default_provider_id: int | None
    temperature: float | None
    max_tokens: int | None
    thinking_enabled: bool | None
    system_prompt: str | None
    created_at: datetime
    updated_at: datetime


class SettingsChange(msgspec.Struct, frozen=True, kw_only=True):
    """The fields to set: UNSET leaves a field unchanged, None clears it. The API checks the ranges."""

    default_provider_id: int | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    max_tokens: int | UnsetType | None = UNSET
    thinking_enabled: bool | UnsetType | None = UNSET
    system_prompt: str | UnsetType | None = UNSET


class SettingsService:
    """Every user has a settings row; it is created with the user."""

    def __init__(
        self, store: Store, *, check_provider: CheckProvider, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._store = store
        self._check_provider = check_provider
        self._clock = clock

    async def get(self, caller: Caller) -> SettingsView:
        return await self._store.read(lambda session: read_settings(session, caller))

    async def update(self, caller: Caller, change: SettingsChange) -> SettingsView:
        """Sets the given fields. Raises NotFound for a provider that the caller may not use."""
        if isinstance(change.default_provider_id, int):
            await self._check_provider(caller, change.default_provider_id)
        now = self._clock()

        def work(session: Session) -> SettingsView:
            row = _row(session, caller)
            for name in change.__struct_fields__:
                value = getattr(change, name)
                if value is not UNSET:
                    setattr(row, name, value)
            row.updated_at = now
            session.flush()
            return _view(row)

        try:
            return await self._store.write(work)
        except IntegrityError as error:
            raise InvalidInput(
                "this provider was deleted a moment ago; choose another", kind="provider_not_found"
            ) from error


_by_user = select(UserSettings).where(UserSettings.user_id == bindparam("user_id"))


def read_settings(session: Session, caller: Caller) -> SettingsView:
    """The caller's settings, for a caller that has a transaction already."""
    return _view(_row(session, caller))


def _row(session: Session, caller: Caller) -> UserSettings:
    row = session.scalar(_by_user, {"user_id": caller.user_id})
    if row is None:
        raise NotFound("this user no longer exists", kind="user_not_found")
    return row


def _view(row: UserSettings) -> SettingsView:
    return SettingsView(
        id=row.id,
        user_id=row.user_id,
        default_provider_id=row.default_provider_id,
        temperature=row.temperature,
        max_tokens=row.max_tokens,
        thinking_enabled=row.thinking_enabled,
        system_prompt=row.system_prompt,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
