"""That a client has left, for answers that go on for hours: a call instead of a task each that waits."""

from collections.abc import Callable

LEAVING = "luxx.leaving"
"""Where a request's scope has its connection's `Leaving`; see `heads.py`."""


class Leaving:
    """One per connection."""

    __slots__ = ("_calls", "has_left")

    def __init__(self) -> None:
        self.has_left = False
        self._calls: list[Callable[[], None]] = []

    def call(self, callback: Callable[[], None]) -> None:
        """Calls it when the client leaves; at once if it has."""
        if self.has_left:
            callback()
        else:
            self._calls.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """The answer is over."""
        if callback in self._calls:
            self._calls.remove(callback)

    def left(self) -> None:
        """The connection is gone."""
        self.has_left = True
        calls, self._calls = self._calls, []
        for callback in calls:
            callback()
