"""Threads for synchronous tools: a few per user, taken in turn, and none lost to a tool that never ends.

A thread cannot be killed. When a job overruns its time its caller goes on at once; the thread gives
up its place, another one may start in it, and it ends by itself when the job at last returns.
"""

import asyncio
import contextvars
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from luxx.errors import ToolFailed

T = TypeVar("T")

_IDLE_SECONDS = 30.0
# Overrun threads per user, as a multiple of what a user may run at once; past it new jobs are refused.
_MAX_OVERRUN_FACTOR = 4


COMMIT_GRACE_SECONDS = 30.0
"""How long a job is waited for past its time that has begun with what cannot be undone."""


class Overrun(Exception):
    """A job did not end in time. `is_concluding`: so whether it has done what it does is not known."""

    def __init__(self, timeout: float, *, is_committing: bool = False) -> None:
        unknown = "; it is not known whether it took effect" if is_committing else ""
        super().__init__(f"did not finish within {timeout:g} seconds and was given up{unknown}")


class _Job(Generic[T]):
    def __init__(self, owner: int, work: Callable[["CancelToken"], T]) -> None:
        self.owner = owner
        self.future: Future[T] = Future()
        self.started_at: float | None = None
        self.is_abandoned = False
        self.is_committing = False
        self.is_finished = False
        self._work = work
        self._context = contextvars.copy_context()

    def perform(self, cancel_token: "CancelToken") -> Callable[[], None]:
        """Do the work; what is returned hands over its outcome."""
        try:
            value = self._context.run(self._work, cancel_token)
        except BaseException as error:
            failure = error
            return lambda: self.future.set_exception(failure)
        return lambda: self.future.set_result(value)


class CancelToken:
    """A job's view of its caller. Called, it says whether nobody waits for the job any more."""

    def __init__(self, job: _Job[Any], condition: threading.Condition) -> None:
        self._job = job
        self._condition = condition

    def __call__(self) -> bool:
        return self._job.is_abandoned

    def may_commit(self) -> bool:
        """Whether it may begin with what cannot be undone: if so it is waited for past its time."""
        with self._condition:
            self._job.is_committing = not self._job.is_abandoned
            return self._job.is_committing


class Workers:
    """At most `per_owner` jobs of one owner and `total` of all run at once; the others wait in turn."""

    def __init__(self, per_owner: int, total: int) -> None:
        self._per_owner = per_owner
        self._total = total
        self._condition = threading.Condition()
        self._waiting: dict[int, deque[_Job[Any]]] = {}
        self._running: Counter[int] = Counter()
        self._overrun_threads: Counter[int] = Counter()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    async def run(self, owner: int, work: Callable[[CancelToken], T], timeout: float) -> T:
        """What `work` returns. Time counts from its start, not from its place in the queue.

        `work` is given a Watch, which says whether nobody waits for it any more.
        Raises Overrun after `timeout` seconds, ToolFailed if the owner has too many overrun jobs.
        """
        job = self._submit(owner, work)
        waiter = asyncio.wrap_future(job.future)
        limit = timeout
        try:
            while not waiter.done():
                elapsed = 0.0 if job.started_at is None else time.monotonic() - job.started_at
                if elapsed < limit:
                    await asyncio.wait({waiter}, timeout=limit - elapsed)
                elif self._abandon_unless_committing(job):
                    raise Overrun(timeout)
                elif limit > timeout:
                    raise Overrun(timeout, is_committing=True)
                else:
                    limit = timeout + COMMIT_GRACE_SECONDS
            return waiter.result()
        finally:
            self._abandon(job)
            waiter.cancel()

    def close(self) -> None:
        """Let idle threads end; busy ones end with their job."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def _submit(self, owner: int, work: Callable[[CancelToken], T]) -> _Job[T]:
        job = _Job(owner, work)
        with self._condition:
            if self._overrun_threads[owner] >= _MAX_OVERRUN_FACTOR * self._per_owner:
                raise ToolFailed("too many of your earlier calls overran their time and still run; try later")
            self._waiting.setdefault(owner, deque()).append(job)
            self._provide_thread()
        return job

    def _provide_thread(self) -> None:
        """See to it that somebody comes for what waits. The lock is held."""
        ready = sum(min(len(jobs), self._free_slots(owner)) for owner, jobs in self._waiting.items())
        if ready > self._idle and self._threads < self._total:
            self._threads += 1
            threading.Thread(target=self._serve, name="luxx-tool", daemon=True).start()
        else:
            self._condition.notify()

    def _serve(self) -> None:
        while (job := self._next_job()) is not None:
            deliver = job.perform(CancelToken(job, self._condition))
            with self._condition:
                job.is_finished = True
                if job.is_abandoned:
                    self._overrun_threads -= Counter([job.owner])
                else:
                    self._release_slot(job.owner)
            deliver()
            if job.is_abandoned:
                return

    def _next_job(self) -> "_Job[Any] | None":
        with self._condition:
            while True:
                job = self._pop_job()
                if job is not None:
                    return job
                self._idle += 1
                was_notified = self._condition.wait(_IDLE_SECONDS)
                self._idle -= 1
                if self._is_closed or (not was_notified and not self._waiting):
                    self._threads -= 1
                    return None

    def _pop_job(self) -> "_Job[Any] | None":
        for owner, jobs in list(self._waiting.items()):
            if self._free_slots(owner) <= 0:
                continue
            job = jobs.popleft()
            del self._waiting[owner]
            if jobs:
                self._waiting[owner] = jobs  # to the end: the next one is another owner's
            self._running[owner] += 1
            job.started_at = time.monotonic()
            job.future.set_running_or_notify_cancel()
            return job
        return None

    def _abandon_unless_committing(self, job: "_Job[Any]") -> bool:
        """Its time is over: whether it is abandoned, as one is that has not begun to conclude."""
        with self._condition:
            if not job.is_committing:
                self._abandon(job)
            return not job.is_committing

    def _abandon(self, job: "_Job[Any]") -> None:
        """Nobody waits for the job any more; nothing happens if it is finished."""
        with self._condition:
            if job.is_finished or job.is_abandoned:
                return
            job.is_abandoned = True
            if job.started_at is None:
                jobs = self._waiting[job.owner]
                jobs.remove(job)
                if not jobs:
                    del self._waiting[job.owner]
                return
            self._overrun_threads[job.owner] += 1
            self._threads -= 1
            self._release_slot(job.owner)
            if self._waiting:
                self._provide_thread()

    def _free_slots(self, owner: int) -> int:
        return self._per_owner - self._running[owner]

    def _release_slot(self, owner: int) -> None:
        self._running -= Counter([owner])
        self._condition.notify()
