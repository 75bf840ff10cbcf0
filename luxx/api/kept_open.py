"""What clients keep open for hours, by user; who loses the sign-in or rights it was opened with loses it.

One task looks after all that is open. Whether that is streams or sockets is not known here.
"""

import asyncio
from collections import Counter
from typing import Generic, Protocol, TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError

from luxx.accounts.caller import Caller
from luxx.accounts.changes import AccountChange
from luxx.accounts.service import AccountService
from luxx.errors import TooMany

RECHECK_SECONDS = 3.0
"""What an ended sign-in has open is cut within 5 s, whoever ended it; at once where the bus tells it."""

PATIENCE_SECONDS = 1.0
"""How long something that must close waits for a client that does not read."""

RETRY_SECONDS = 5

logger = structlog.get_logger()


class Open(Protocol):
    """Something that is kept open for a caller."""

    @property
    def caller(self) -> Caller: ...

    def refuse(self) -> None:
        """Ends it within PATIENCE_SECONDS, whether or not the client reads; may come more than once."""
        ...


class StreamLimit:
    """How many streams and sockets together one user has open at this process; `most` 0 means no limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[int] = Counter()

    def take(self, user_id: int) -> None:
        """Counts one. Raises TooMany."""
        if self._most and self._open[user_id] >= self._most:
            raise TooMany(
                f"you have {self._most} streams and sockets open and may have no more; close one "
                "and try again",
                retry_after=RETRY_SECONDS,
                kind="too_many_streams",
            )
        self._open[user_id] += 1

    def release(self, user_id: int) -> None:
        """One is closed."""
        self._open[user_id] -= 1
        if not self._open[user_id]:
            del self._open[user_id]


T = TypeVar("T", bound=Open)


class KeptOpen(Generic[T]):
    """One per process and kind."""

    def __init__(self, accounts: AccountService) -> None:
        self._accounts = accounts
        self._open: dict[int, set[T]] = {}
        accounts.subscribe(self._refuse_who_changed)

    def __len__(self) -> int:
        return sum(len(each) for each in self._open.values())

    def of(self, user_id: int) -> int:
        """How many this user has."""
        return len(self._open.get(user_id, ()))

    def add(self, one: T) -> None:
        """Looks after it from now on."""
        self._open.setdefault(one.caller.user_id, set()).add(one)

    def remove(self, one: T) -> None:
        """It is closed."""
        theirs = self._open[one.caller.user_id]
        theirs.remove(one)
        if not theirs:
            del self._open[one.caller.user_id]

    async def keep_checking(self) -> None:
        """Refuses those whose sign-in ended or whose rights shrank, until cancelled."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            # Not here: what it looks at would be kept until it looks again.
            await self._check()

    async def _check(self) -> None:
        open_ = [one for each in self._open.values() for one in each]
        if not open_:
            return
        try:
            fallen = await self._accounts.fallen([one.caller for one in open_])
        except SQLAlchemyError:
            return  # The database does not answer just now; ask again.
        except Exception:
            logger.exception("sign_ins_not_checked")
            return
        for one in open_:
            if one.caller in fallen:
                one.refuse()

    def _refuse_who_changed(self, change: AccountChange) -> None:
        for one in tuple(self._open.get(change.user_id, ())):
            if change.concerns(one.caller):
                one.refuse()
