"""What a user owns here: defaults for new conversations, and the directory of the user's files.

The directories are below `workspace.root`, one per user. Nothing here reads the files.
"""

import hashlib
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import msgspec
import structlog
from msgspec import UNSET, UnsetType
from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import TitleColumns, UserSettings
from luxx.errors import InvalidInput, NotFound, Unavailable
from luxx.infra.clock import utc_now
from luxx.infra.data_permissions import make_directory
from luxx.infra.removal import remove_tree
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.wire.model_settings import (
    Extraction,
    MemoryMode,
    ModelSettings,
    ModelSettingsChange,
    PlanningMode,
    RoutingMode,
    TitleMode,
)

CheckProvider = Callable[[Caller, int, str], Awaitable[object]]
"""Raises NotFound or NotAllowed if the caller may not use the provider of this id, or InvalidInput for the
field of this JSON path."""


class SettingsView(ModelSettings, frozen=True, kw_only=True):
    """The settings as the API shows them; null leaves the choice to the provider and its model.

    `lost_default_provider`: the name of your default provider that was deleted; choose another.
    `lost_title_provider`: the same for the provider that named your conversations.
    """

    id: int
    user_id: int
    default_provider_id: int | None
    lost_default_provider: str | None
    max_tokens: int | None = None  # It may be larger than what others may choose.
    system_prompt: str | None
    planning: PlanningMode | None
    routing: RoutingMode | None
    memory: MemoryMode | None
    extraction: Extraction | None
    titles: TitleMode | None
    follow_ups: bool
    title_provider_id: int | None
    lost_title_provider: str | None
    title_model: str | None
    created_at: datetime
    updated_at: datetime


class SettingsChange(ModelSettingsChange, frozen=True, kw_only=True):
    """The fields to set: UNSET leaves a field unchanged, None clears it. The API checks the ranges."""

    default_provider_id: int | UnsetType | None = UNSET
    system_prompt: str | UnsetType | None = UNSET
    planning: PlanningMode | UnsetType | None = UNSET
    routing: RoutingMode | UnsetType | None = UNSET
    memory: MemoryMode | UnsetType | None = UNSET
    extraction: Extraction | UnsetType | None = UNSET
    titles: TitleMode | UnsetType | None = UNSET
    follow_ups: bool | UnsetType = UNSET
    title_provider_id: int | UnsetType | None = UNSET
    title_model: str | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class SettingsService:
    """Every user has a settings row; it is created with the user."""

    store: Store
    check_provider: CheckProvider
    clock: Callable[[], datetime] = utc_now

    async def get(self, caller: Caller) -> SettingsView:
        return await self.store.read(lambda session: read_settings(session, caller))

    async def update(self, caller: Caller, change: SettingsChange) -> SettingsView:
        """Sets the given fields. Raises NotFound for a provider that the caller may not use."""
        if isinstance(change.default_provider_id, int):
            await self.check_provider(caller, change.default_provider_id, "$.default_provider_id")
        if isinstance(change.title_provider_id, int):
            await self.check_provider(caller, change.title_provider_id, "$.title_provider_id")
        now = self.clock()

        def work(session: Session) -> SettingsView:
            row = _row(session, caller)
            if change.default_provider_id is not UNSET:
                row.lost_default_provider = None
            if change.title_provider_id is not UNSET:
                row.lost_title_provider = None
            title_provider_before = row.title_provider_id
            for name in change.__struct_fields__:
                value = getattr(change, name)
                if value is not UNSET:
                    setattr(row, name, value)
            check_titles(row, title_provider_before, change.title_model)
            row.updated_at = now
            session.flush()
            return _view(row)

        try:
            return await self.store.write(work)
        except IntegrityError as error:
            raise InvalidInput(
                "this provider was deleted a moment ago; choose another",
                kind="provider_not_found",
                field="$.default_provider_id",
            ) from error


def check_titles(row: TitleColumns, provider_before: int | None, model: str | UnsetType | None) -> None:
    """Forgets the model of another provider. `model`: the one of the request. Raises InvalidInput for a model
    without a provider."""
    if row.title_provider_id != provider_before and model is UNSET:
        row.title_model = None
    row.title_model = (row.title_model or "").strip() or None
    if row.title_model is not None and row.title_provider_id is None:
        problem = "a model of titles needs the provider that has it (title_provider_id)"
        raise InvalidInput(problem, field="$.title_model")


_by_user = select(UserSettings).where(UserSettings.user_id == bindparam("user_id"))


_values_of_user = select(*(table_of(UserSettings).c[name] for name in SettingsView.__struct_fields__)).where(
    table_of(UserSettings).c.user_id == bindparam("user_id")
)


def read_settings(session: Session, caller: Caller) -> SettingsView:
    """The caller's settings, for a caller that has a transaction already; each turn of a room reads them."""
    row = session.connection().execute(_values_of_user, {"user_id": caller.user_id}).one_or_none()
    if row is None:
        raise _not_found()
    return msgspec.convert(row, SettingsView, from_attributes=True)


def _row(session: Session, caller: Caller) -> UserSettings:
    row = session.scalar(_by_user, {"user_id": caller.user_id})
    if row is None:
        raise _not_found()
    return row


def _not_found() -> NotFound:
    return NotFound("this user no longer exists", kind="user_not_found")


def _view(row: UserSettings) -> SettingsView:
    return msgspec.convert(row, SettingsView, from_attributes=True)


logger = structlog.get_logger()


KEPT_PATHS = 1000
"""Users whose path is kept: each turn of a run needs it."""


class Workspaces:
    """The directories of users: `{root}/{sha256 of the user's id}`, relative if the root is."""

    def __init__(self, root: str, *, auto_create: bool = True) -> None:
        self._root = Path(root)
        self._auto_create = auto_create
        self._kept_path = lru_cache(maxsize=KEPT_PATHS)(self._path)

    def path_of(self, user_id: int) -> Path:
        """The path of the user's workspace; it may not exist."""
        return self._kept_path(user_id)

    def _path(self, user_id: int) -> Path:
        return self._root / hashlib.sha256(str(user_id).encode()).hexdigest()

    def prepare(self, user_id: int) -> Path:
        """The user's workspace; created with mode 0700 if it is missing and `workspace.auto_create` is on.

        Raises Unavailable if it is missing and cannot be created, or is not a directory.
        """
        path = self.path_of(user_id)
        try:
            if self._auto_create and not os.path.lexists(path):
                make_directory(self._root)
                path.mkdir(mode=0o700, exist_ok=True)
            mode = path.lstat().st_mode
        except OSError as error:
            raise Unavailable(
                f"the workspace {path} is missing: {error.strerror}; create it or set workspace.auto_create",
                kind="workspace_missing",
            ) from error
        if not stat.S_ISDIR(mode):
            raise Unavailable(
                f"the workspace {path} is not a directory (a link is not allowed)", kind="workspace_missing"
            )
        return path

    def prepare_if_enabled(self, user_id: int) -> Path:
        """Like `prepare` if workspaces are created automatically, else only the path."""
        return self.prepare(user_id) if self._auto_create else self.path_of(user_id)

    def remove(self, user_id: int) -> None:
        """Deletes the workspace of a deleted user; logs what cannot be deleted.

        It is renamed first, so that a process that still has its path no longer reaches it.
        """
        path = self.path_of(user_id)
        deleted_path = path.with_name(f"{path.name}.deleted")
        try:
            path.rename(deleted_path)
        except FileNotFoundError:
            return
        if not remove_tree(str(deleted_path)):
            logger.warning("workspace_not_deleted", path=str(deleted_path))
