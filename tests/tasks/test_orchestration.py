"""The orchestration of random graphs: which steps run, in which order, what a failure skips and a retry runs.

Nothing here has a database or a model: a test ends the turns that begin, in any order and with any outcome.
"""

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from luxx.domain.agents.queries import NO_AGENT
from luxx.errors import LuxxError
from luxx.features.tasks.graph import MAX_CYCLES, RESULT, GraphStep, ProblemKind, TaskGraph, TaskStepStatus
from luxx.features.tasks.models import NewTaskStep
from luxx.features.tasks.orchestration import TaskOrchestration
from luxx.features.tasks.planning import Planner
from luxx.features.tasks.run_rows import TaskValues
from luxx.features.tasks.turns import StepResults
from luxx.infra.clock import utc_now
from luxx.runs.log.events import stamped
from luxx.runs.orchestration.interface import Begin, End, RunTotals, TurnStart, Wait
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import FINISHED, failure_ending
from luxx.wire.event import LoggedEvent
from luxx.wire.orchestration_event import StepSkipped
from luxx.wire.run import RunKind, RunStatus
from luxx.wire.turn import Step, StepType, Usage

Needs = dict[str, set[str]]
PENDING, COMPLETED = TaskStepStatus.PENDING, TaskStepStatus.COMPLETED
FAILED, SKIPPED = TaskStepStatus.FAILED, TaskStepStatus.SKIPPED
WRITTEN = TurnState(steps=(Step(id="step-0", index=0, type=StepType.TEXT, content="Done."),))
TOTALS = RunTotals(usage=Usage(), cost=None, seconds=0.0)


def resolve(*_: Any, **__: Any) -> ChatRequest:
    return ChatRequest(provider_id=1, model="m")


PLANNER = Planner(resolve, None, None, lambda *_: NO_AGENT, None)  # type: ignore[arg-type]


@st.composite
def graphs(draw: st.DrawFn, most: int = 200) -> Needs:
    """Valid graphs: the steps that each step needs."""
    count = draw(st.integers(1, most))
    random = draw(st.randoms(use_true_random=False))
    density = draw(st.sampled_from([0, 1, 2, 4]))
    needs: Needs = {}
    for number in range(count):
        before = [f"s{one}" for one in range(max(0, number - draw(st.sampled_from([3, 30, 200]))), number)]
        needs[f"s{number}"] = set(random.sample(before, min(len(before), random.randint(0, density))))
    names = list(needs)
    random.shuffle(names)
    return {name: needs[name] for name in names}


class SimulatedRun:
    """A run of these steps. `begun` are the steps whose turns began, in order."""

    def __init__(self, needs: Needs, slots: int, statuses: dict[str, TaskStepStatus]) -> None:
        self.needs, self.slots, self.statuses = needs, slots, dict(statuses)
        self.begun: list[str] = []
        self.skipped: dict[str, str] = {}
        self.end: End | None = None
        self._running: dict[str, TurnStart] = {}
        self._seq = 0
        steps = tuple(NewTaskStep(id=one, name=one, depends_on=sorted(needs[one])) for one in needs)
        task = TaskValues(
            task_id="t", user_id=1, tenant_id=1, name="T", goal="G", provider_id=None, agent_id=None,
            max_concurrent_steps=slots, require_approval=False, steps=steps,
            results=StepResults(outputs={one: "" for one in needs if statuses[one] == COMPLETED}),
            attempts={}, lost_provider=None, lost_agent=None, lost_agents={}, project_id=None,
        )  # fmt: skip
        head = RunHead(
            id="r", kind=RunKind.TASK, subject_id="t", user_id=1, tenant_id=1, fence=1, is_cancelled=False,
            driven_seconds=0.0, request="{}", last_seq=0, created_at=utc_now(), started_at=None,
        )  # fmt: skip
        self._orchestration = TaskOrchestration(head, PLANNER, task, statuses)

    def _log(self, entries: list[Any]) -> None:
        for entry in entries:
            event, note = entry if isinstance(entry, tuple) else (entry, None)
            self._seq += 1
            if isinstance(event, StepSkipped):
                self.statuses[str(event.step_id)] = SKIPPED
                self.skipped[str(event.step_id)] = event.because
            self._orchestration.apply(LoggedEvent(seq=self._seq, event=stamped(event, "r"), note=note))

    def go(self, choose: Any, failing: set[str]) -> None:
        """Runs to the end; `choose` picks which of the running turns ends next."""
        while self.end is None:
            decision = self._orchestration.decide(self._running.keys(), 0, TOTALS)
            match decision:
                case Begin():
                    opening = self._orchestration.prepare(None, decision, decision.turns, TOTALS)  # type: ignore[arg-type]
                    self._log(opening.entries)
                    for start in opening.turns:
                        self._begin(start)
                case Wait():
                    self._check_busy()
                    self._finish(choose(sorted(self._running)), failing)
                case End():
                    self.end = decision
                case _:
                    raise AssertionError(decision)

    def _begin(self, start: TurnStart) -> None:
        key = start.turn.key
        self._running[key] = start
        if key == RESULT:
            return
        assert self.statuses[key] == PENDING, f"{key} began again"
        assert all(self.statuses[one] == COMPLETED for one in self.needs[key]), f"{key} began too early"
        assert len(self._running) <= self.slots
        self.begun.append(key)
        self.statuses[key] = TaskStepStatus.RUNNING

    def _check_busy(self) -> None:
        """Nothing is ready while a slot is free."""
        assert self._running
        if len(self._running) < self.slots and RESULT not in self._running:
            ready = [
                one
                for one in self.needs
                if self.statuses[one] == PENDING
                and all(self.statuses[other] == COMPLETED for other in self.needs[one])
            ]
            assert ready == [], f"{ready} wait while a slot is free"

    def _finish(self, key: str, failing: set[str]) -> None:
        ending = failure_ending(LuxxError("no")) if key in failing else FINISHED
        if key != RESULT:
            self.statuses[key] = FAILED if key in failing else COMPLETED
        closing = self._orchestration.close(self._running.pop(key), WRITTEN, ending, None)
        self._log(closing.events)


def below(needs: Needs, causes: set[str]) -> set[str]:
    """All that needs one of these, directly or not."""
    found: set[str] = set()
    while more := {one for one, needed in needs.items() if needed & (causes | found)} - found:
        found |= more
    return found


@settings(max_examples=30, deadline=None)
@given(graphs(), st.integers(1, 20), st.randoms(use_true_random=False), st.data())
def test_steps_run_once_in_order_and_a_failure_skips_exactly_what_needs_it(
    needs: Needs, slots: int, random: Any, data: st.DataObject
) -> None:
    rate = data.draw(st.sampled_from([0, 0.02, 0.2]))
    failing = {one for one in needs if random.random() < rate}
    run = SimulatedRun(needs, slots, dict.fromkeys(needs, PENDING))
    run.go(random.choice, failing)
    failed = {one for one in run.begun if one in failing}
    skipped = below(needs, failed)
    assert len(run.begun) == len(set(run.begun))
    assert set(run.begun) == needs.keys() - skipped
    assert run.skipped.keys() == skipped
    assert all(cause in failed and one in below(needs, {cause}) for one, cause in run.skipped.items())
    assert run.end is not None
    assert (run.end.status, run.end.entries[-1].status) == (  # type: ignore[union-attr]
        RunStatus.FAILED if failed else RunStatus.COMPLETED,
        "failed" if failed else "completed",
    )


@settings(max_examples=30, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_a_retry_runs_the_failed_step_and_exactly_what_was_skipped_because_of_it(
    needs: Needs, random: Any
) -> None:
    failing = {one for one in needs if random.random() < 0.1} or {random.choice(sorted(needs))}
    first = SimulatedRun(needs, 5, dict.fromkeys(needs, PENDING))
    first.go(random.choice, failing)
    failed = sorted(one for one in first.begun if one in failing)
    left_out = {one for one in first.skipped if random.random() < 0.05}
    retried = random.choice(failed)
    # What still cannot run: what another failed step or a person keeps from running.
    kept = (set(failed) - {retried}) | left_out
    expected = {retried} | ((below(needs, {retried}) - below(needs, kept)) - left_out)
    graph = TaskGraph([GraphStep(id=one, depends_on=tuple(sorted(needs[one]))) for one in needs])
    pending = graph.retried(retried, first.statuses, left_out)
    assert set(pending) == expected
    second = SimulatedRun(needs, 5, first.statuses | dict.fromkeys(pending, PENDING))
    second.go(random.choice, set())
    assert set(second.begun) == expected
    assert second.begun[0] == retried


def elementary_cycles(needs: Needs, most: int) -> set[tuple[str, ...]] | None:
    """All cycles of two and more steps, each from its smallest step; None if there are too many."""
    found: set[tuple[str, ...]] = set()
    effort = 0
    for first in sorted(needs):
        paths = [(first,)]
        while paths:
            effort += 1
            if len(found) > most or effort > 20_000:
                return None
            path = paths.pop()
            for other in needs.get(path[-1], ()):
                if other == first and len(path) > 1:
                    found.add(path)
                elif other > first and other not in path and other in needs:
                    paths.append((*path, other))
    return found


@settings(max_examples=40, deadline=None)
@given(graphs(), st.randoms(use_true_random=False), st.integers(0, 4), st.integers(0, 4), st.integers(0, 3))
def test_validation_names_exactly_what_is_wrong(
    needs: Needs, random: Any, backward: int, missing: int, twice: int
) -> None:
    names = sorted(needs)
    steps = [GraphStep(id=one, depends_on=tuple(sorted(needs[one]))) for one in needs]
    for _ in range(backward):
        index = random.randrange(len(steps))
        steps[index] = GraphStep(
            id=steps[index].id, depends_on=(*steps[index].depends_on, random.choice(names))
        )
    for number in range(missing):
        index = random.randrange(len(steps))
        steps[index] = GraphStep(
            id=steps[index].id, depends_on=(*steps[index].depends_on, f"gone{number % 2}")
        )
    for _ in range(twice):
        steps.insert(random.randrange(len(steps) + 1), GraphStep(id=random.choice(names)))
    problems = TaskGraph(steps).problems()

    def named(kind: ProblemKind) -> list[tuple[str, ...]]:
        return [one.step_ids for one in problems if one.kind == kind]

    counts = Counter(one.id for one in steps)
    assert sorted(named(ProblemKind.DUPLICATE_ID)) == sorted((one,) for one in counts if counts[one] > 1)
    absent = {(one.id, other) for one in steps for other in one.depends_on if other not in needs}
    assert set(named(ProblemKind.MISSING_DEPENDENCY)) == absent
    itself = {(one.id,) for one in steps if one.id in one.depends_on}
    assert set(named(ProblemKind.SELF_DEPENDENCY)) == itself
    edges: Needs = {one: set() for one in needs}
    for one in steps:
        edges[one.id] |= set(one.depends_on)
    cycles = named(ProblemKind.CYCLE)
    assert len(cycles) == len(set(cycles)) <= MAX_CYCLES
    for cycle in cycles:
        assert all(one in edges[after] for one, after in zip(cycle, (*cycle[1:], cycle[0]), strict=True))
        assert len(set(cycle)) == len(cycle) > 1
    in_cycles = {one for one in needs if one in reaching(edges, one)}
    assert bool(cycles) == bool(in_cycles)
    expected = elementary_cycles(edges, MAX_CYCLES)
    if expected is not None and len(expected) <= MAX_CYCLES:
        assert {normal(cycle) for cycle in cycles} == {normal(cycle[::-1]) for cycle in expected}


def reaching(edges: Needs, start: str) -> set[str]:
    """All that this step needs through others; the step itself if it is part of a cycle of two and more."""
    found: set[str] = set()
    todo = [one for one in edges[start] if one != start]
    while todo:
        one = todo.pop()
        if one in found or one not in edges:
            continue
        found.add(one)
        todo += [other for other in edges[one] if other != one]
    return found


def normal(cycle: tuple[str, ...]) -> tuple[str, ...]:
    start = cycle.index(min(cycle))
    return (*cycle[start:], *cycle[:start])
