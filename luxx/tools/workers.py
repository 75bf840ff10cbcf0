"""A thread pool for synchronous tools: limited per user, fair between users, safe against endless tools.

A thread cannot be killed. When a job exceeds its timeout, its caller continues at once and the thread's slot
becomes free for another thread. The overrun thread ends when its job returns.
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
# Limit of overrun threads per user, as a multiple of `per_owner`; beyond it new jobs are refused.
_MAX_OVERRUN_FACTOR = 4
COMMIT_GRACE_SECONDS = 30.0
"""How long the caller waits past the timeout for a job that is committing."""


class Overrun(Exception):
    """A job exceeded its timeout. `is_committing`: it is unknown whether the job took effect."""

    def __init__(self, timeout: float, *, is_committing: bool = False) -> None:
        unknown = "; it is not known whether it took effect" if is_committing else ""
        super().__init__(f"did not finish within {timeout:g} seconds and was cancelled{unknown}")


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
        """Do the work; the returned function delivers the outcome to the future."""
        try:
            value = self._context.run(self._work, cancel_token)
        except BaseException as error:
            failure = error
            return lambda: self.future.set_exception(failure)
        return lambda: self.future.set_result(value)


class CancelToken:
    """Tells a job about its caller. Calling it returns whether the caller stopped waiting."""

    def __init__(self, job: _Job[Any], condition: threading.Condition) -> None:
        self._job = job
        self._condition = condition

    def __call__(self) -> bool:
        return self._job.is_abandoned

    def may_commit(self) -> bool:
        """Whether the job may begin an irreversible action; if so, the caller waits past the timeout."""
        with self._condition:
            self._job.is_committing = not self._job.is_abandoned
            return self._job.is_committing


class Workers:
    """Runs at most `per_owner` jobs per owner and `total` jobs in all; the others wait in a queue."""

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
        """Run `work(cancel_token)` in a thread and return its value. The time in the queue does not count.

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
        """Start or wake a thread for the waiting jobs. The caller holds the lock."""
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
                self._waiting[owner] = jobs  # moves the owner to the end, so that the next job is another's
            self._running[owner] += 1
            job.started_at = time.monotonic()
            job.future.set_running_or_notify_cancel()
            return job
        return None

    def _abandon_unless_committing(self, job: "_Job[Any]") -> bool:
        """After the timeout: abandon the job unless it is committing; return whether it was abandoned."""
        with self._condition:
            if not job.is_committing:
                self._abandon(job)
            return not job.is_committing

    def _abandon(self, job: "_Job[Any]") -> None:
        """The caller stopped waiting: free the job's slot. A finished job stays as it is."""
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
