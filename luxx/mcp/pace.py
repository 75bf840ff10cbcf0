"""How often something is done that is wanted again and again. Pure."""

from collections.abc import Callable


class Pace:
    """At once, then after `first` seconds, and after twice as long each time, up to `longest`.

    From the beginning again when nothing was done for `settled` seconds more than that.
    """

    def __init__(self, clock: Callable[[], float], first: float, longest: float, settled: float) -> None:
        self._clock = clock
        self._first = first
        self._longest = longest
        self._settled = settled
        self._pause = 0.0
        self._last = 0.0

    @property
    def seconds_to_wait(self) -> float:
        return max(self._last + self._pause - self._clock(), 0.0) if self._pause else 0.0

    def done(self) -> None:
        """It was done now."""
        now = self._clock()
        has_settled = not self._pause or now - self._last >= self._pause + self._settled
        self._pause = self._first if has_settled else min(self._pause * 2, self._longest)
        self._last = now
