"""The graph of a task: what is wrong with it, what can run, and in which order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.features.tasks.graph import MAX_CYCLES, GraphStep, ProblemKind, TaskGraph, TaskStepStatus


def step(id: str, *depends_on: str, name: str = "") -> GraphStep:
    return GraphStep(id=id, name=name, depends_on=depends_on)


DIAMOND = TaskGraph([step("d", "b", "c"), step("a"), step("c", "a"), step("b", "a")])


def test_a_valid_graph_has_no_problems() -> None:
    assert DIAMOND.problems() == []


def test_the_order_puts_dependencies_first_and_keeps_the_given_order() -> None:
    assert DIAMOND.order() == ["a", "c", "b", "d"]


def test_levels_group_what_can_run_at_the_same_time() -> None:
    assert DIAMOND.levels() == [["a"], ["c", "b"], ["d"]]


def test_a_step_is_ready_once_all_its_dependencies_are_completed() -> None:
    pending = dict.fromkeys("abcd", TaskStepStatus.PENDING)
    assert DIAMOND.ready(pending) == ["a"]
    assert DIAMOND.ready(pending | {"a": TaskStepStatus.RUNNING}) == []
    assert DIAMOND.ready(pending | {"a": TaskStepStatus.COMPLETED}) == ["c", "b"]
    half = pending | {
        "a": TaskStepStatus.COMPLETED,
        "b": TaskStepStatus.COMPLETED,
        "c": TaskStepStatus.FAILED,
    }
    assert DIAMOND.ready(half) == []


def test_descendants_are_all_that_need_a_step() -> None:
    assert DIAMOND.descendants("a") == ["d", "c", "b"]
    assert DIAMOND.descendants("b") == ["d"]
    assert DIAMOND.descendants("d") == []


def test_the_critical_path_takes_longest() -> None:
    assert DIAMOND.critical_path({"a": 1, "b": 5, "c": 2, "d": 1}) == ["a", "b", "d"]
    assert TaskGraph([]).critical_path({}) == []


def test_every_problem_is_named() -> None:
    graph = TaskGraph(
        [step("a", "a"), step("b", "zz", "c"), step("c", "b"), step("d"), step("d"), step("e", "nn", "nn")]
    )
    assert [(problem.kind, problem.step_ids) for problem in graph.problems()] == [
        (ProblemKind.DUPLICATE_ID, ("d",)),
        (ProblemKind.SELF_DEPENDENCY, ("a",)),
        (ProblemKind.MISSING_DEPENDENCY, ("b", "zz")),
        (ProblemKind.MISSING_DEPENDENCY, ("e", "nn")),
        (ProblemKind.CYCLE, ("b", "c")),
    ]


def test_the_cycle_is_named_in_its_direction() -> None:
    (problem,) = TaskGraph([step("a", "c"), step("b", "a"), step("c", "b")]).problems()
    assert problem.message == "these steps wait for each other: a → b → c → a"


def test_a_dense_graph_names_a_bounded_number_of_cycles() -> None:
    ids = [f"s{n}" for n in range(60)]
    graph = TaskGraph([step(one, *(other for other in ids if other != one)) for one in ids])
    assert len(graph.cycles()) == MAX_CYCLES


def test_drawings_escape_names() -> None:
    graph = TaskGraph([step("a", name='say "hi" <b>`x`#1\nnow'), step("b", "a", name="back\\slash")])
    assert graph.mermaid() == (
        'graph TD\n  s0["say #quot;hi#quot; #lt;b#gt;#96;x#96;#35;1 now"]\n  s1["back\\slash"]\n  s0 --> s1\n'
    )
    assert graph.dot() == (
        'digraph task {\n  s0 [label="say \\"hi\\" <b>`x`#1 now"];\n'
        '  s1 [label="back\\\\slash"];\n  s0 -> s1;\n}\n'
    )


@st.composite
def valid_graphs(draw: st.DrawFn, most: int = 200) -> TaskGraph:
    """Steps that depend only on earlier ones, in random order."""
    count = draw(st.integers(1, most))
    ids = [f"s{n}" for n in range(count)]
    picks = st.lists(st.integers(0, count), max_size=4)
    steps = [step(ids[n], *{ids[pick] for pick in draw(picks) if pick < n}) for n in range(count)]
    return TaskGraph(draw(st.permutations(steps)))


@given(valid_graphs())
def test_running_ready_steps_runs_each_step_once_and_after_its_dependencies(graph: TaskGraph) -> None:
    assert graph.problems() == []
    needs = {one.id: set(one.depends_on) for one in graph.steps}
    statuses = dict.fromkeys(needs, TaskStepStatus.PENDING)
    waves: list[set[str]] = []
    while ready := graph.ready(statuses):
        done = {one for one, status in statuses.items() if status == TaskStepStatus.COMPLETED}
        assert all(needs[one] <= done for one in ready)
        statuses |= dict.fromkeys(ready, TaskStepStatus.COMPLETED)
        waves.append(set(ready))
    assert set(statuses.values()) == {TaskStepStatus.COMPLETED}
    assert waves == [set(level) for level in graph.levels()]
    order = graph.order()
    assert all(order.index(need) < order.index(one) for one in needs for need in needs[one])


@given(valid_graphs(most=60), st.data())
def test_a_failure_keeps_exactly_the_descendants_from_running(graph: TaskGraph, data: st.DataObject) -> None:
    failed = data.draw(st.sampled_from([one.id for one in graph.steps]))
    statuses = {one.id: TaskStepStatus.PENDING for one in graph.steps}
    while ready := graph.ready(statuses):
        statuses |= {
            one: TaskStepStatus.FAILED if one == failed else TaskStepStatus.COMPLETED for one in ready
        }
    left = {one for one, status in statuses.items() if status == TaskStepStatus.PENDING}
    assert left == set(graph.descendants(failed))


@given(valid_graphs(most=60), st.data())
def test_an_added_back_edge_is_reported_as_a_cycle_of_real_edges(
    graph: TaskGraph, data: st.DataObject
) -> None:
    parents = [one for one in graph.steps if graph.descendants(one.id)]
    if not parents:
        return
    parent = data.draw(st.sampled_from(parents))
    child = data.draw(st.sampled_from(graph.descendants(parent.id)))
    steps = [
        GraphStep(id=one.id, depends_on=(*one.depends_on, child)) if one.id == parent.id else one
        for one in graph.steps
    ]
    broken = TaskGraph(steps)
    edges = set(broken.edges())
    cycles = [problem.step_ids for problem in broken.problems()]
    assert cycles
    for cycle in cycles:
        assert all(pair in edges for pair in zip(cycle, (*cycle[1:], cycle[0]), strict=True))
        assert parent.id in cycle


@pytest.mark.parametrize("size", [1, 2, 7])
def test_separate_cycles_are_all_named(size: int) -> None:
    steps = [step(f"{name}{n}", f"{name}{(n - 1) % (size + 1)}") for name in "xyz" for n in range(size + 1)]
    assert len(TaskGraph(steps).cycles()) == 3
