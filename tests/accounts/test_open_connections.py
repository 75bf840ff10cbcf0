"""All that is open is looked after together, and only who lost something is refused."""

import asyncio
from datetime import timedelta

from sqlalchemy import event

from luxx.api.http import event_streams as kept_open
from luxx.api.http.event_streams import LiveConnections
from luxx.domain.accounts.caller import Caller

ALL = 40


class OpenStream:
    """Something open."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.refused = asyncio.Event()

    def revoke(self) -> None:
        self.refused.set()


async def entered(account_server, name: str) -> Caller:
    return await account_server.authenticator.authenticate((await account_server.enter(name))["access_token"])


async def test_many_are_asked_after_at_once_and_those_whose_sign_in_ended_are_refused(
    account_server, monkeypatch
):
    monkeypatch.setattr(kept_open, "RECHECK_SECONDS", 0.05)

    await account_server.join("ada")
    lines = [OpenStream(await entered(account_server, "ada")) for _ in range(3)]
    lines += [OpenStream(lines[0].caller) for _ in range(ALL)]
    kept: LiveConnections[OpenStream] = LiveConnections(account_server.authenticator)
    for stream in lines:
        kept.add(stream)
    asked: list[str] = []
    checking = asyncio.create_task(kept.keep_checking())
    async with asyncio.timeout(10):
        await asyncio.sleep(0.2)
        event.listen(
            account_server.store.engine, "before_cursor_execute", lambda *given: asked.append(given[2])
        )
        # By time, so that nobody here is told of it.
        account_server.clock.ahead = timedelta(days=31)
        for stream in lines:
            await stream.refused.wait()
    checking.cancel()
    assert sum(statement.startswith("SELECT") for statement in asked) < 4


async def test_only_what_the_ended_sign_in_opened_is_refused_and_what_was_closed_is_forgotten(account_server):
    await account_server.join("ada")
    here, there, closed = [OpenStream(await entered(account_server, "ada")) for _ in range(3)]
    kept: LiveConnections[OpenStream] = LiveConnections(account_server.authenticator)
    for stream in (here, there, closed):
        kept.add(stream)
    kept.remove(closed)
    assert (len(kept), kept.of(here.caller.user_id), kept.of(0)) == (2, 2, 0)
    await account_server.accounts.sign_out(here.caller)
    await account_server.accounts.sign_out(closed.caller)
    assert [stream.refused.is_set() for stream in (here, there, closed)] == [True, False, False]
