"""The personal API keys of users: create, list, revoke. `key_access.py` has how a key signs in."""

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import AccountResources
from luxx.domain.accounts.caller import Caller, KeyScope
from luxx.domain.accounts.key_access import KEY_START, new_secret, scopes_of, stored_scopes
from luxx.domain.accounts.models import ApiKeyRow
from luxx.domain.accounts.rights import AccountChange, RevocationReason
from luxx.domain.audit import Action, AuditEntry, Detail, record
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.infra.clock import new_id
from luxx.infra.store.tables import read_page

MAX_KEYS_PER_USER = 100


class ApiKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key as lists show it, without its secret. `prefix` is the public beginning of the key."""

    id: str
    name: str
    prefix: str
    scopes: list[KeyScope]
    expires_at: datetime | None
    last_used_at: datetime | None
    created_at: datetime


class CreatedApiKey(ApiKeyView, frozen=True, kw_only=True):
    """A new key. `key` is the whole key, which the server shows only now."""

    key: str


class NewApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key to create; without `expires_at` it stays valid until it is revoked."""

    name: str
    scopes: list[KeyScope]
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ApiKeyService:
    """One per process. Everybody has only their own keys."""

    resources: AccountResources

    async def list_keys(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[ApiKeyView], int]:
        """The caller's keys, newest first, expired ones too, and their number."""

        def work(session: Session) -> tuple[list[ApiKeyView], int]:
            own = select(ApiKeyRow).where(ApiKeyRow.user_id == caller.user_id)
            newest = own.order_by(ApiKeyRow.id.desc())
            rows, total = read_page(session, newest, page=page, page_size=page_size)
            return [_view_of(row) for row in rows], total

        return await self.resources.store.read(work)

    async def create(self, caller: Caller, new: NewApiKey) -> CreatedApiKey:
        """Raises InvalidInput for an expiry that is not in the future, Conflict for a taken name or too many
        keys."""
        now, secret = self.resources.clock(), new_secret()
        expires_at = _checked_expiry(new.expires_at, now)
        row = ApiKeyRow(
            id=new_id(),
            user_id=caller.user_id,
            name=new.name.strip(),
            name_key=_name_key(new.name),
            prefix=secret.prefix,
            key_hash=secret.key_hash,
            scopes=stored_scopes(new.scopes),
            expires_at=expires_at,
            created_at=now,
        )

        def work(session: Session) -> CreatedApiKey:
            _check_limits(session, caller, row)
            session.add(row)
            try:
                session.flush()
            except IntegrityError as error:
                raise _name_taken(row.name) from error
            record(session, _entry(Action.KEY_CREATE, caller, row))
            view = msgspec.structs.asdict(_view_of(row))
            return CreatedApiKey(**view, key=secret.key)

        return await self.resources.store.write(work)

    async def revoke(self, caller: Caller, key_id: str) -> None:
        """Deletes a key; its streams and sockets end. Raises NotFound."""
        user_id = caller.user_id

        def work(session: Session) -> None:
            row = session.scalar(
                delete(ApiKeyRow)
                .where(ApiKeyRow.id == key_id, ApiKeyRow.user_id == user_id)
                .returning(ApiKeyRow)
            )
            if row is None:
                raise NotFound(f"you have no API key with the id {key_id[:100]!r}", kind="key_not_found")
            record(session, _entry(Action.KEY_REVOKE, caller, row))

        await self.resources.store.write(work)
        because = RevocationReason.KEY_REVOKED
        self.resources.changes.publish(AccountChange(user_id=user_id, because=because, only=key_id))


def _checked_expiry(expires_at: datetime | None, now: datetime) -> datetime | None:
    """The time in UTC. Raises InvalidInput."""
    if expires_at is None:
        return None
    try:
        in_utc = expires_at.astimezone(UTC)
    except OverflowError:
        in_utc = None  # In UTC it is before the year 1 or after the year 9999.
    if in_utc is None or in_utc <= now:
        raise InvalidInput(
            "must be a time in the future, before the year 10000, or null for a key that does not expire",
            kind="expiry_refused",
            field="$.expires_at",
        )
    return in_utc


def _check_limits(session: Session, caller: Caller, new: ApiKeyRow) -> None:
    own_names = set(session.scalars(select(ApiKeyRow.name_key).where(ApiKeyRow.user_id == caller.user_id)))
    if new.name_key in own_names:
        raise _name_taken(new.name)
    if len(own_names) >= MAX_KEYS_PER_USER:
        raise Conflict(
            f"you have {MAX_KEYS_PER_USER} API keys, which is the limit; revoke one that you no longer use",
            kind="too_many_keys",
        )


def _name_taken(name: str) -> Conflict:
    return Conflict(
        f"you already have an API key named {name!r}; choose another name or revoke that key",
        kind="key_name_taken",
    )


def _name_key(name: str) -> str:
    return name.strip().casefold()


def _view_of(row: ApiKeyRow) -> ApiKeyView:
    return ApiKeyView(
        id=row.id,
        name=row.name,
        prefix=KEY_START + row.prefix,
        scopes=scopes_of(row.scopes),
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        created_at=row.created_at,
    )


def _entry(action: Action, caller: Caller, row: ApiKeyRow) -> AuditEntry:
    detail = Detail(name=row.name, added=[*scopes_of(row.scopes)] if action is Action.KEY_CREATE else UNSET)
    return AuditEntry(action=action, actor=caller.actor, target_type="key", target_id=row.id, detail=detail)
