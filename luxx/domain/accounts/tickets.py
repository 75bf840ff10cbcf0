"""Tickets: each opens one socket, once and soon, because a token must not appear in a URL."""

import hashlib
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller, Peer
from luxx.domain.accounts.models import TicketRow
from luxx.domain.accounts.service import AccountService
from luxx.errors import NotSignedIn
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of

TICKET_LIFETIME = timedelta(seconds=30)
TICKET_BYTES = 32
MAX_TICKET_LENGTH = 100
"""Maximum characters of a ticket; longer ones are refused unread."""

_tickets = table_of(TicketRow)
_delete_expired = delete(_tickets).where(_tickets.c.expires_at <= bindparam("now"))
_insert = insert(_tickets)
_is_valid = (_tickets.c.ticket_hash == bindparam("hash"), _tickets.c.expires_at > bindparam("now"))
_find = select(_tickets.c.ticket_hash).where(*_is_valid)
_delete_ticket = delete(_tickets).where(*_is_valid).returning(_tickets.c.sign_in_id)


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_in` is its lifetime in seconds; it opens one socket."""

    ticket: str
    expires_in: int


class TicketService:
    """One per process. A ticket is valid at any process of the same database."""

    def __init__(
        self, store: Store, accounts: AccountService, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._store = store
        self._accounts = accounts
        self._clock = clock

    async def issue(self, caller: Caller) -> Ticket:
        """A new ticket for the caller's sign-in; it ends with the sign-in. Deletes all expired tickets."""
        ticket, now = secrets.token_urlsafe(TICKET_BYTES), self._clock()
        row = {
            "ticket_hash": _hash(ticket),
            "sign_in_id": caller.sign_in_id,
            "expires_at": now + TICKET_LIFETIME,
        }

        def work(session: Session) -> None:
            connection = session.connection()
            connection.execute(_delete_expired, {"now": now})
            connection.execute(_insert, row)

        await self._store.write(work)
        return Ticket(ticket=ticket, expires_in=int(TICKET_LIFETIME.total_seconds()))

    async def redeem(self, ticket: str, peer: Peer) -> Caller:
        """The caller whose ticket it is; the ticket is used up. Raises NotSignedIn."""
        if not ticket or len(ticket) > MAX_TICKET_LENGTH:
            raise _invalid_ticket()
        parameters = {"hash": _hash(ticket), "now": self._clock()}
        # Read first, so that invalid tickets cost no write.
        existing = await self._store.read(lambda session: session.connection().scalar(_find, parameters))
        if existing is None:
            raise _invalid_ticket()
        sign_in_id = await self._store.write(
            lambda session: session.connection().scalar(_delete_ticket, parameters)
        )
        if sign_in_id is None:
            raise _invalid_ticket()
        return await self._accounts.caller_of_sign_in(sign_in_id, peer)


def _hash(ticket: str) -> str:
    """The hash under which the database stores a ticket, so that reading the database gives no ticket."""
    return hashlib.sha256(ticket.encode("utf-8", "replace")).hexdigest()


def _invalid_ticket() -> NotSignedIn:
    return NotSignedIn(
        "this ticket is invalid, used or expired; get a new one (POST /auth/ticket)",
        kind="ticket_invalid",
    )
