"""What is asked of whoever drives runs in this process; `durable.py` is it."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from luxx.wire.run import Run


class Engine(Protocol):
    """Who drives runs (`durable.py`)."""

    process: str
    """The name of this process, which owns the runs that it drives."""

    is_open: bool
    """Whether it takes anything more."""

    turn: AbstractAsyncContextManager[object]
    """For whatever counts places: where processes share a database, one at a time in each of them. A frozen
    one then stands in the line for the lock once, and not with every message that it was sent."""

    async def begin(self, run: Run) -> None:
        """Drives a run that was admitted just now, or sees to it that it is driven in its turn."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Fires the cancel signal of a run that a person has ended, wherever it is driven.

        One that nobody drives is driven to its end here.
        """
        ...

    def wake(self) -> None:
        """A run waits for a place: somebody is to look."""
        ...

    async def wait(self, run_id: str, seconds: float | None) -> None:
        """Returns when the run is no longer driven in this process, or after `seconds`."""
        ...

    async def wait_for_start(self, run_id: str, seconds: float) -> None:
        """Returns once the run is driven in this process, or after `seconds`. For one waiter at a time."""
        ...
