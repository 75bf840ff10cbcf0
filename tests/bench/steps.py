"""What a step of a graph costs without a model, in this process; prints CPU ms per step as JSON.

- `asyncio`: the same graph with plain tasks and counters, the baseline.
- `memory`: Luxx decides which steps begin, begins each in a task of its own, and takes in the events of its
  start and end; nothing is stored.
- `row`: one row inserted and committed with `sqlite3`, the baseline of storage.
- `durable`: a drive of a task's run as at a server. Each step is logged and marked as running before it
  begins; its end, its output and its rows are on disk before the next decision. Left out is what only a
  model call needs: the choice of a provider, the user's permissions, the call itself.

The turn in which a model writes the final result counts as a step.
"""

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from sqlalchemy.orm import Session

from luxx.app.container import Services
from luxx.app.startup import tune_gc
from luxx.domain.agents.queries import AgentSettings
from luxx.features.tasks.changes import replace_steps
from luxx.features.tasks.models import NewTaskStep, TaskRow
from luxx.features.tasks.orchestration import TaskOrchestration
from luxx.features.tasks.planning import Planner, settings_for
from luxx.features.tasks.proposals import load_task_run
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import Config, LimitsConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.migrate import migrate
from luxx.runs.cancel import CancelSignal, WallTime
from luxx.runs.log.events import LogEntry, RunLog, stamped
from luxx.runs.models import RunRow
from luxx.runs.orchestration.drive import LiveTurn, OrchestratedDrive
from luxx.runs.orchestration.interface import Begin, End, RunTotals, TurnStart
from luxx.runs.streams.hub import Hub
from luxx.runs.turn.context import DriveContext, RunServices
from luxx.runs.turn.resources import TurnServices
from luxx.runs.turn.run_rows import RunHead, RunOwner, insert_run, new_run
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import FINISHED
from luxx.wire.event import LoggedEvent
from luxx.wire.run import RunKind, RunStatus
from luxx.wire.turn import Step, StepType, Usage, step_id
from tests.bench.discussion import WIDTH, graph, pin, timed
from tests.sample_user import add_user

assert Services  # Importing `Services` imports every table.

GRAPHS = 20
"""Executions that are measured together."""

CONFIG = Config(limits=LimitsConfig(concurrent_runs_per_user=100))
"""The runs of all graphs are there from the start, and each takes slots of the same user."""

ROWS = 2000
OUTPUT = Step(id=step_id(0), index=0, type=StepType.TEXT, content="The output of a step without a model.")
ANSWERED = TurnState(steps=(OUTPUT,), finished_count=1, iterations=1, is_answered=True)
NOTHING_SPENT = RunTotals(usage=Usage(), cost=None, seconds=0.0)


def resolve(
    _session: Session, _user_id: int, _agent: AgentSettings, *, response_schema: dict[str, Any] | None = None
) -> ChatRequest:
    """The request of every turn: no provider is looked up."""
    return ChatRequest(provider_id=1, model="bench-model", response_schema=response_schema)


PLANNER = Planner(resolve, cast("Any", None), cast("Any", None), settings_for, cast("Any", None))
"""The graph has its steps, so nothing is planned."""


WITHOUT_ENGINE = SimpleNamespace(
    engine=lambda: SimpleNamespace(release_slot=lambda: None),
    read_access=lambda _session, _spec: None,
)
"""What a drive asks of its turns' services: nobody waits for the slots that it gives back."""


class DriveWithoutModel(OrchestratedDrive):
    """A drive whose turns end at once with the same output, as if the model had answered."""

    async def _run_turn(self, live: LiveTurn, _access: object) -> None:
        closing = self._orchestration.close(live.start, ANSWERED, FINISHED, None)
        await live.log.append(closing.events, extra_write=closing.write, extra_bytes=closing.size)
        live.is_over = True


async def with_asyncio() -> None:
    """Carries out the graph with a task per step."""
    steps = graph()
    missing = {one: len(needs) for one, needs in steps.items()}
    following: dict[str, list[str]] = {one: [] for one in steps}
    for one, needs in steps.items():
        for other in needs:
            following[other].append(one)
    outputs: dict[str, str] = {}

    async def work(one: str) -> str:
        outputs[one] = OUTPUT.content
        return one

    running = {asyncio.create_task(work(one)) for one, count in missing.items() if not count}
    while running:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            for one in following[task.result()]:
                missing[one] -= 1
                if not missing[one]:
                    running.add(asyncio.create_task(work(one)))
    assert len(outputs) == len(steps)


async def in_memory(orchestration: TaskOrchestration, session: Session) -> None:
    """Carries out the decisions without a log."""
    running: dict[str, asyncio.Task[None]] = {}
    seq = 0

    def apply(entries: Sequence[LogEntry]) -> None:
        nonlocal seq
        for entry in entries:
            seq += 1
            event, note = entry if isinstance(entry, tuple) else (entry, None)
            orchestration.apply(LoggedEvent(seq=seq, event=stamped(event, "run"), note=note))

    async def turn(start: TurnStart) -> None:
        apply(orchestration.close(start, ANSWERED, FINISHED, None).events)

    while not isinstance(decision := orchestration.decide(running.keys(), 0, NOTHING_SPENT), End):
        if isinstance(decision, Begin):
            opening = orchestration.prepare(session, decision, WIDTH, NOTHING_SPENT)
            apply(opening.entries)
            for start in opening.turns:
                running[start.turn.key] = asyncio.create_task(turn(start))
            continue
        await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
        running = {key: task for key, task in running.items() if not task.done()}


def head_of_new_task(session: Session, run_id: str) -> RunHead:
    """Stores a task with the graph, and a run of it."""
    now, task_id = utc_now(), new_id()
    task = TaskRow(
        id=task_id, user_id=1, tenant_id=1, name="Bench", goal="Carry out a graph.",
        max_concurrent_steps=WIDTH, require_approval=False, run_id=None, created_at=now, updated_at=now,
    )  # fmt: skip
    session.add(task)
    session.flush()
    steps = [NewTaskStep(id=one, name=one, depends_on=list(needs)) for one, needs in graph().items()]
    replace_steps(session, task, steps)
    run = new_run(run_id, task_id, kind=RunKind.TASK)
    insert_run(session.connection(), run, "{}", RunOwner(1, 1), "bench")
    session.flush()
    return msgspec.convert(session.get_one(RunRow, run_id), RunHead, from_attributes=True)


async def durable(services: RunServices, head: RunHead) -> None:
    """One drive of the task's run to its end."""
    store, signal = services.store, CancelSignal()
    orchestration = await store.read(lambda session: load_task_run(session, head, PLANNER))
    with services.hub.driven(head.id, 0, 1) as channel:
        log = RunLog(store, channel, signal, run_id=head.id, fence=1, seq=0)
        wall_time = WallTime(store, signal, run_id=head.id, fence=1, limit=0, earlier_seconds=0)
        context = DriveContext(services, head, log, channel, signal, wall_time)
        drive = DriveWithoutModel(context, cast("TurnServices", WITHOUT_ENGINE), orchestration)
        await drive.run()
    if drive.status != RunStatus.COMPLETED:
        raise RuntimeError(f"the run is {drive.status}")


def insert_rows(folder: Path) -> None:
    """Commits ROWS rows one by one, with the settings of Luxx's connections."""
    connection = sqlite3.connect(folder / "rows.db", isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE steps (id INTEGER PRIMARY KEY, name TEXT, output TEXT)")
    for number in range(ROWS):
        connection.execute("INSERT INTO steps VALUES (?, ?, ?)", (number, "step", OUTPUT.content))
    connection.close()


async def measure(folder: Path) -> dict[str, float]:
    """Warms each up with one graph, then measures GRAPHS of them."""
    engine = open_engine(resolve_url("sqlite:///steps.db", folder))
    migrate(engine)
    store = Store(engine)
    await store.write(add_user)
    unused = cast("Any", None)
    services = RunServices(
        config=CONFIG, store=store, hub=Hub(), tools=unused, executor=unused, storage=unused,
        metrics=unused, notify=unused, fail_run=unused,
    )  # fmt: skip
    heads = [
        await store.write(lambda session: head_of_new_task(session, new_id())) for _ in range(GRAPHS + 1)
    ]
    steps, measured = len(graph()) * GRAPHS, dict[str, float]()
    tune_gc()
    await with_asyncio()
    with timed(measured, "asyncio", steps):
        for _ in range(GRAPHS):
            await with_asyncio()
    with Session(store.reading) as session:
        orchestrations = [load_task_run(session, head, PLANNER) for head in heads]
        await in_memory(orchestrations[0], session)
        with timed(measured, "memory", steps + GRAPHS):
            for orchestration in orchestrations[1:]:
                await in_memory(orchestration, session)
    with timed(measured, "row", ROWS):
        insert_rows(folder)
    await durable(services, heads[0])
    with timed(measured, "durable", steps + GRAPHS):
        for head in heads[1:]:
            await durable(services, head)
    store.close()
    return measured


if __name__ == "__main__":
    pin()
    with tempfile.TemporaryDirectory(prefix="luxx-bench-steps-") as temporary:
        print(json.dumps(asyncio.run(measure(Path(temporary)))))
