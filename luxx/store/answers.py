"""Whoever waits for a write, in a thread or on an event loop: those of one commit are answered together.

A `concurrent.futures.Future` for each would cost a fifth of the write: a condition and two locks, and for a
coroutine a wake-up of the loop by itself.
"""

import asyncio
import threading
from contextlib import suppress
from typing import Any, Protocol

Outcome = tuple["Waiter", Any, BaseException | None]
"""Who is answered, with what the work gave, or what it raised."""


class Waiter(Protocol):
    """`loop` is where it is to be answered; None: in any thread."""

    loop: asyncio.AbstractEventLoop | None

    def answer(self, value: Any, failure: BaseException | None) -> None:
        """Once."""
        ...


class InThread:
    """A thread that sleeps on a bare lock."""

    __slots__ = ("_failure", "_lock", "_value", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._value: Any = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def answer(self, value: Any, failure: BaseException | None) -> None:
        """See `Waiter`."""
        self._value, self._failure = value, failure
        self._lock.release()

    def result(self) -> Any:
        """Sleeps until the answer is there; once. Raises what the work raised."""
        self._lock.acquire()
        failure, self._failure = self._failure, None
        if failure is None:
            return self._value
        try:
            raise failure
        finally:
            # Its traceback knows this frame: a circle that would stay until the collector comes by.
            del failure


class InLoop:
    """A coroutine of the running loop, which awaits `future`. Cancelled, it is not answered."""

    __slots__ = ("future", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def answer(self, value: Any, failure: BaseException | None) -> None:
        """See `Waiter`."""
        if self.future.done():
            return
        if failure is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(failure)


def answer_all(outcomes: list[Outcome]) -> None:
    """Answers each where it waits; a loop is woken once for all of its own."""
    on_loops: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for waiter, value, failure in outcomes:
        if waiter.loop is None:
            waiter.answer(value, failure)
        else:
            on_loops.setdefault(waiter.loop, []).append((waiter, value, failure))
    for loop, some in on_loops.items():
        # A loop that has been closed: nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_answer_here, some)


def _answer_here(outcomes: list[Outcome]) -> None:
    for waiter, value, failure in outcomes:
        waiter.answer(value, failure)
