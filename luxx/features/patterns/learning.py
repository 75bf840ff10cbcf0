"""Learning: what follows for patterns from the run of a chat or a task that has ended. Each heartbeat of any
process looks at the runs whose `run_ended` row has waited long enough: an answer that is written anew
meanwhile teaches nothing.

A run that was given a pattern counts for it. A successful run without one counts for a similar pattern of its
user; if there is none, a run of the kind `pattern` makes one. What a person decided and corrected in a run
becomes a part of their pattern.
"""

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import msgspec
import structlog
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant
from luxx.domain.agents.queries import AgentSettings
from luxx.errors import LimitReached, LuxxError, TooMany, Unavailable
from luxx.features.patterns.extraction import PROMPT, SCHEMA, PatternRequest
from luxx.features.patterns.models import PatternRow, UseKind
from luxx.features.patterns.refining import refine
from luxx.features.patterns.rows import archive_unused, learn_from, record_use
from luxx.features.patterns.traces import Looked, Trace, TraceOutcome, look_at
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.admission import Admission
from luxx.runs.log.endings import PATTERNS, RunEndedRow
from luxx.runs.models import RunRow
from luxx.runs.orchestration.interface import ResolveTurn
from luxx.runs.turn.run_rows import RunOwner
from luxx.wire.run import Run, RunKind

RUNS_AT_ONCE = 50
WAITS_FOR_LIMIT = timedelta(minutes=10)
GIVEN_UP_AFTER = timedelta(days=1)
"""How long a run whose pattern no limit allows is tried again, and until when."""

AGEING_SECONDS = 3600.0
"""How often a process looks for patterns that were not used for long."""

_ended = table_of(RunEndedRow)
_due = (
    select(_ended.c.run_id, _ended.c.user_id)
    .where(_ended.c.reader == PATTERNS, _ended.c.ended_at <= bindparam("until"))
    .order_by(_ended.c.ended_at)
    .limit(RUNS_AT_ONCE)
)
_lock = (
    select(_ended.c.run_id)
    .where(_ended.c.reader == PATTERNS, _ended.c.run_id == bindparam("run"))
    .with_for_update()
)
_forget = delete(_ended).where(_ended.c.reader == PATTERNS, _ended.c.run_id == bindparam("run"))
_postpone = (
    update(_ended)
    .where(_ended.c.reader == PATTERNS, _ended.c.run_id == bindparam("run"))
    .values(ended_at=bindparam("later"))
)
"""So that other runs are looked at meanwhile."""

_encode = msgspec.json.Encoder().encode

logger = structlog.get_logger()


class LearnedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that a new pattern is made of, with the provider and model of its answer."""

    trace: Trace
    provider_id: int | None
    model: str | None


@dataclass(slots=True, repr=False)
class PatternLearning:
    """One per process. `wait_seconds`: how long after the end of a run it is looked at."""

    admission: Admission
    resolve: ResolveTurn
    wait_seconds: float
    _next_ageing: float = field(default=0.0)

    async def look(self) -> None:
        """Looks at the runs that are due; called at heartbeats."""
        store = self.admission.services.store
        until = utc_now() - timedelta(seconds=self.wait_seconds)
        due = await store.read_rows(lambda connection: connection.execute(_due, {"until": until}).all())
        for row in due:
            try:
                await self._look_at(row.run_id, row.user_id)
            except Unavailable:
                return  # This server stops; another one, or its next start, goes on.
            except (LimitReached, TooMany) as error:
                logger.info("extraction_waits", run_id=row.run_id, kind=error.kind)
                later = {"run": row.run_id, "later": utc_now() + WAITS_FOR_LIMIT}
                await store.write_rows(lambda connection, later=later: connection.execute(_postpone, later))
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:
                # Otherwise this run would keep all later ones from being looked at.
                is_known = isinstance(error, LuxxError)
                problem, trace = str(error), None if is_known else error
                logger.warning("nothing_learned", run_id=row.run_id, problem=problem, exc_info=trace)
                await store.write(partial(_forget_run, row.run_id))
        if time.monotonic() >= self._next_ageing:
            self._next_ageing = time.monotonic() + AGEING_SECONDS
            await store.write(lambda session: archive_unused(session, utc_now()))

    async def _look_at(self, run_id: str, user_id: int) -> None:
        services = self.admission.services
        found = await services.store.write(partial(self._count, run_id))
        if found is None:
            return
        caller = await services.store.read_rows(lambda connection: user_as_caller(connection, user_id))
        run = await self.admission.admit(caller, partial(self._insert, caller, found))
        if run is not None:
            await self.admission.begin(run)

    def _count(self, run_id: str, session: Session) -> LearnedRun | None:
        """Counts what the run says about patterns. Returns what a new one is made of; the row stays until the
        run that makes it is inserted."""
        if session.execute(_lock, {"run": run_id}).first() is None:
            return None  # Another process was faster.
        run = session.get(RunRow, run_id)
        tenant = None if run is None else session.get(Tenant, run.tenant_id)
        looked = look_at(session, run) if run is not None and tenant and tenant.learn_patterns else None
        if run is None or looked is None:
            return _forget_run(run_id, session)
        now = utc_now()
        if looked.used:
            self._count_used(session, run, looked, now)
            return _forget_run(run_id, session)
        is_old = run.finished_at is not None and run.finished_at < now - GIVEN_UP_AFTER
        if looked.trace is None or looked.outcome != TraceOutcome.SUCCESS or is_old:
            return _forget_run(run_id, session)
        if self._count_similar(session, run, looked.trace, now) or not looked.makes_one:
            return _forget_run(run_id, session)
        return LearnedRun(trace=looked.trace, provider_id=run.provider_id, model=run.model)

    def _count_similar(self, session: Session, run: RunRow, trace: Trace, now: datetime) -> bool:
        """Whether the run, which was given no pattern, counted for a similar one of its user."""
        pattern_id = learn_from(session, run.user_id, trace.signature, run.id, trace.duration_ms, now)
        row = None if pattern_id is None else session.get(PatternRow, pattern_id)
        if row is not None:
            refine(session, row, trace, now)
        return row is not None

    def _count_used(self, session: Session, run: RunRow, looked: Looked, now: datetime) -> None:
        for used in looked.used:
            if looked.outcome != TraceOutcome.DOUBTFUL:
                record_use(
                    session, used.pattern_id, run.id, UseKind.USED, similarity=used.similarity, now=now,
                    is_success=looked.outcome == TraceOutcome.SUCCESS, duration_ms=looked.duration_ms,
                )  # fmt: skip
            row = session.get(PatternRow, used.pattern_id)
            if row is not None and looked.trace is not None and row.user_id == run.user_id:
                refine(session, row, looked.trace, now)

    def _insert(self, caller: Caller, learned: LearnedRun, session: Session) -> Run | None:
        run_id = learned.trace.run_id
        if session.connection().execute(_forget, {"run": run_id}).rowcount != 1:
            return None  # Another process was faster.
        settings = AgentSettings(
            provider_id=learned.provider_id, model=learned.model, system_prompt=PROMPT, tools=[]
        )
        request = PatternRequest(
            trace=learned.trace,
            request=self.resolve(session, caller.user_id, settings, response_schema=SCHEMA),
        )
        owner, stored = RunOwner(caller.user_id, caller.tenant_id), _encode(request).decode()
        return self.admission.insert(session, owner, RunKind.PATTERN, run_id, stored)


def _forget_run(run_id: str, session: Session) -> None:
    session.connection().execute(_forget, {"run": run_id})
