"""Socket tickets: short-lived, single-use, and stored only as hashes."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select

from luxx.domain.accounts.authentication import TICKET_LIFETIME, TicketService
from luxx.domain.accounts.caller import Peer
from luxx.domain.accounts.models import SignIn, TicketRow
from luxx.errors import NotSignedIn

PEER = Peer(address="127.0.0.1", is_local=True, is_direct=True)


async def signed_in(account_server: Any, name: str = "ada") -> tuple[TicketService, Any]:
    token = (await account_server.join(name))["access_token"]
    tickets = TicketService(account_server.store, account_server.authenticator, clock=account_server.clock)
    return tickets, await account_server.authenticator.authenticate(token, PEER)


async def rows(account_server: Any) -> list[TicketRow]:
    return await account_server.store.read(lambda session: list(session.scalars(select(TicketRow))))


async def test_a_ticket_identifies_its_user_once(account_server):
    tickets, caller = await signed_in(account_server)
    issued = await tickets.issue(caller)
    assert issued.expires_in == 30
    assert await tickets.redeem(issued.ticket, PEER) == caller
    assert await rows(account_server) == []
    with pytest.raises(NotSignedIn, match="POST /auth/ticket"):
        await tickets.redeem(issued.ticket, PEER)


async def test_a_ticket_is_valid_for_30_seconds_and_then_deleted(account_server):
    tickets, caller = await signed_in(account_server)
    early, late = await tickets.issue(caller), await tickets.issue(caller)
    account_server.clock.ahead = TICKET_LIFETIME - timedelta(seconds=1)
    await tickets.redeem(early.ticket, PEER)
    account_server.clock.ahead = TICKET_LIFETIME + timedelta(seconds=1)
    with pytest.raises(NotSignedIn):
        await tickets.redeem(late.ticket, PEER)
    assert len(await rows(account_server)) == 1
    await tickets.issue(caller)
    assert len(await rows(account_server)) == 1, "the old one is forgotten"


async def test_the_database_contains_no_usable_ticket(account_server):
    tickets, caller = await signed_in(account_server)
    issued = await tickets.issue(caller)
    (row,) = await rows(account_server)
    assert issued.ticket not in (row.ticket_hash, row.sign_in_id)
    for text in (row.ticket_hash, row.sign_in_id, caller.sign_in_id, "", "x" * 101, "\ud800", "\0"):
        with pytest.raises(NotSignedIn):
            await tickets.redeem(text, PEER)
    await tickets.redeem(issued.ticket, PEER)


async def test_a_ticket_ends_with_its_sign_in(account_server):
    tickets, caller = await signed_in(account_server)
    revoked, forgotten = await tickets.issue(caller), await tickets.issue(caller)
    await account_server.accounts.sign_out(caller)
    with pytest.raises(NotSignedIn, match="ended"):
        await tickets.redeem(revoked.ticket, PEER)
    await account_server.store.write(lambda session: session.execute(delete(SignIn)))
    assert await rows(account_server) == []
    with pytest.raises(NotSignedIn):
        await tickets.redeem(forgotten.ticket, PEER)


async def test_revoked_callers_are_found_for_many_at_once(account_server):
    admin = await account_server.join("root", level=4)
    callers = {}
    for name in ("stays", "leaves", "demoted", "disabled", "raised"):
        _, callers[name] = await signed_in(account_server, name)
        raised = {"permission_level": 2}
        answer = await account_server.ask(
            "PUT", f"/auth/users/{callers[name].user_id}", raised, token=admin["access_token"]
        )
        assert answer.status_code == 200
        callers[name] = await account_server.authenticator.recheck(callers[name])
    assert await account_server.authenticator.revoked_callers(list(callers.values())) == set()
    await account_server.accounts.sign_out(callers["leaves"])
    for name, change in (
        ("demoted", {"permission_level": 1}), ("disabled", {"is_active": False}),
        ("raised", {"permission_level": 3}),
    ):  # fmt: skip
        await account_server.ask(
            "PUT", f"/auth/users/{callers[name].user_id}", change, token=admin["access_token"]
        )
    revoked_callers = await account_server.authenticator.revoked_callers(list(callers.values()))
    assert revoked_callers == {callers["leaves"], callers["demoted"], callers["disabled"]}
    account_server.clock.ahead = timedelta(days=31)
    assert await account_server.authenticator.revoked_callers(list(callers.values())) == set(callers.values())
