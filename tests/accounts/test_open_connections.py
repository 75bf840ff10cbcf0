"""Open connections are checked together, and only those that lost their sign-in or rights are closed."""

import asyncio
from datetime import timedelta

from sqlalchemy import event

from luxx.api.http import event_streams as kept_open
from luxx.api.http.event_streams import LiveConnections
from luxx.domain.accounts.caller import Caller

ALL = 40


class OpenStream:
    """An open stream or socket."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.refused = asyncio.Event()

    def revoke(self) -> None:
        self.refused.set()


async def sign_in(account_server, name: str) -> Caller:
    return await account_server.authenticator.authenticate((await account_server.enter(name))["access_token"])


async def test_many_connections_are_checked_in_one_query_and_ended_sign_ins_are_refused(
    account_server, monkeypatch
):
    monkeypatch.setattr(kept_open, "RECHECK_SECONDS", 0.05)

    await account_server.join("ada")
    lines = [OpenStream(await sign_in(account_server, "ada")) for _ in range(3)]
    lines += [OpenStream(lines[0].caller) for _ in range(ALL)]
    connections: LiveConnections[OpenStream] = LiveConnections(account_server.authenticator)
    for stream in lines:
        connections.add(stream)
    asked: list[str] = []
    checking = asyncio.create_task(connections.check_sign_ins())
    async with asyncio.timeout(10):
        await asyncio.sleep(0.2)
        event.listen(
            account_server.store.engine, "before_cursor_execute", lambda *given: asked.append(given[2])
        )
        # It expires by time, so that no code path reports it.
        account_server.clock.ahead = timedelta(days=31)
        for stream in lines:
            await stream.refused.wait()
    checking.cancel()
    assert sum(statement.startswith("SELECT") for statement in asked) < 4


async def test_only_connections_of_an_ended_sign_in_are_refused_and_closed_ones_forgotten(account_server):
    await account_server.join("ada")
    here, there, closed = [OpenStream(await sign_in(account_server, "ada")) for _ in range(3)]
    connections: LiveConnections[OpenStream] = LiveConnections(account_server.authenticator)
    for stream in (here, there, closed):
        connections.add(stream)
    connections.remove(closed)
    assert (len(connections), connections.count_of(here.caller.user_id), connections.count_of(0)) == (2, 2, 0)
    await account_server.accounts.sign_out(here.caller)
    await account_server.accounts.sign_out(closed.caller)
    assert [stream.refused.is_set() for stream in (here, there, closed)] == [True, False, False]
