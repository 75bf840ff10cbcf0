"""All that is open is looked after together, and only who lost something is refused."""

import asyncio
from datetime import timedelta

from sqlalchemy import event

from luxx.api.http import streaming as kept_open
from luxx.api.http.streaming import KeptOpen
from luxx.domain.accounts.caller import Caller

ALL = 40


class Line:
    """Something open."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.refused = asyncio.Event()

    def refuse(self) -> None:
        self.refused.set()


async def entered(house, name: str) -> Caller:
    return await house.accounts.authenticate((await house.enter(name))["access_token"])


def test_many_are_asked_after_at_once_and_those_whose_sign_in_ended_are_refused(house, run, monkeypatch):
    monkeypatch.setattr(kept_open, "RECHECK_SECONDS", 0.05)

    async def scenario():
        await house.join("ada")
        lines = [Line(await entered(house, "ada")) for _ in range(3)]
        lines += [Line(lines[0].caller) for _ in range(ALL)]
        kept: KeptOpen[Line] = KeptOpen(house.accounts)
        for line in lines:
            kept.add(line)
        asked: list[str] = []
        checking = asyncio.create_task(kept.keep_checking())
        async with asyncio.timeout(10):
            await asyncio.sleep(0.2)
            event.listen(house.store.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
            # By time, so that nobody here is told of it.
            house.clock.ahead = timedelta(days=31)
            for line in lines:
                await line.refused.wait()
        checking.cancel()
        assert sum(statement.startswith("SELECT") for statement in asked) < 4

    run(scenario())


def test_only_what_the_ended_sign_in_opened_is_refused_and_what_was_closed_is_forgotten(house, run):
    async def scenario():
        await house.join("ada")
        here, there, closed = [Line(await entered(house, "ada")) for _ in range(3)]
        kept: KeptOpen[Line] = KeptOpen(house.accounts)
        for line in (here, there, closed):
            kept.add(line)
        kept.remove(closed)
        assert (len(kept), kept.of(here.caller.user_id), kept.of(0)) == (2, 2, 0)
        await house.accounts.sign_out(here.caller)
        await house.accounts.sign_out(closed.caller)
        assert [line.refused.is_set() for line in (here, there, closed)] == [True, False, False]

    run(scenario())
