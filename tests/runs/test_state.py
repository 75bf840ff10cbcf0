"""The fold of a log into a state: it does not depend on how the log is cut, and always knows the
next action.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from luxx.runs.turn.state import (
    NextAction,
    TurnState,
    decide,
    fold,
    open_calls,
    open_questions,
    unfinished_steps,
)
from luxx.wire.event import CompletionNote, CostUpdate, LoggedEvent, ProcessStep
from luxx.wire.turn import Step, StepStatus, StepType, Usage, step_id
from luxx.wire.turn_event import Warning
from runs.random_logs import Log, logs, make_answer, make_question


@given(log=logs(), data=st.data())
def test_a_log_cut_anywhere_and_folded_on_gives_the_same_state(log: Log, data: st.DataObject) -> None:
    events = log.events
    cut = data.draw(st.integers(0, len(events)))
    assert fold(events[cut:], fold(events[:cut])) == fold(events)


@given(log=logs())
def test_folding_one_by_one_is_folding_at_once(log: Log) -> None:
    state = TurnState()
    for event in log.events:
        state = fold([event], state)
    assert state == fold(log.events) == log.state


@given(log=logs())
def test_the_state_is_consistent_after_every_transaction(log: Log) -> None:
    state = TurnState()
    for batch in log.batches:
        state = fold(batch, state)
        assert state.seq == batch[-1].seq
        assert [step.index for step in state.steps] == list(range(len(state.steps)))
        assert 0 <= state.finished_count <= len(state.steps)
        assert state.iterations == len(state.notes)
        sums = sum((note.usage for note in state.notes), Usage())
        assert state.usage == sums


@given(log=logs())
def test_the_next_action_always_fits_the_state(log: Log) -> None:
    state = TurnState()
    for batch in [[], *log.batches]:
        state = fold(batch, state)
        todo = decide(state)
        assert (todo == NextAction.NOTHING) is state.is_done
        match todo:
            case NextAction.REPAIR:
                assert unfinished_steps(state)
            case NextAction.RUN_TOOLS:
                assert open_calls(state)
                assert not open_questions(state)
                assert not unfinished_steps(state)
            case NextAction.WAIT:
                assert {question.call_id for question in open_questions(state)} <= {
                    call.id_ref for call in open_calls(state)
                }
                assert not unfinished_steps(state)
            case NextAction.CALL_MODEL:
                assert not unfinished_steps(state)
                assert not open_calls(state)
                assert not state.is_answered
            case NextAction.FINISH:
                assert not unfinished_steps(state)
                assert not open_calls(state)
                assert state.is_answered
                assert state.iterations > 0
            case NextAction.NOTHING:
                pass


@given(log=logs())
def test_a_question_is_answered_once_and_its_first_answer_stays(log: Log) -> None:
    state = log.state
    answered = {
        question.question.question_id: question.answer
        for question in state.questions
        if question.answer is not None
    }
    again = [
        LoggedEvent(seq=state.seq + at, event=replace(make_answer(question.question), answer="another"))
        for at, question in enumerate(state.questions, 1)
    ]
    for question in fold(again, state).questions:
        assert question.answer is not None
        expected = answered.get(question.question.question_id)
        assert question.answer == expected if expected else question.answer.answer == "another"


@given(log=logs())
def test_a_call_with_a_result_in_the_log_is_never_run_again(log: Log) -> None:
    state = TurnState()
    closed: set[int] = set()
    for event in log.events:
        state = fold([event], state)
        step = event.event.step if isinstance(event.event, ProcessStep) else None
        if (
            step is not None
            and step.type == StepType.TOOL_CALL
            and step.status
            in (
                StepStatus.DONE,
                StepStatus.ERROR,
                StepStatus.INTERRUPTED,
            )
        ):
            closed.add(step.index)
        assert not closed & {call.index for call in open_calls(state)}


@given(log=logs())
def test_a_continued_run_ends_after_a_bounded_number_of_steps(log: Log) -> None:
    """From any log, a model that only answers and tools that succeed bring the run to its end."""
    state = log.state
    for _ in range(7):
        match decide(state):
            case NextAction.REPAIR:
                entries = [_logged_step(step, StepStatus.INTERRUPTED) for step in unfinished_steps(state)]
            case NextAction.WAIT:
                entries = [
                    LoggedEvent(seq=0, event=make_answer(question)) for question in open_questions(state)
                ]
            case NextAction.RUN_TOOLS:
                entries = []
                for at, call in enumerate(open_calls(state), len(state.steps)):
                    result = replace(call, index=at, id=step_id(at), type=StepType.TOOL_RESULT)
                    entries += [_logged_step(call, StepStatus.DONE), _logged_step(result, StepStatus.DONE)]
            case NextAction.CALL_MODEL:
                at = len(state.steps)
                text = Step(id=step_id(at), index=at, type=StepType.TEXT, content="the end")
                note = CompletionNote(finish="stop", usage=Usage())
                entries = [
                    _logged_step(text, StepStatus.DONE),
                    LoggedEvent(seq=0, event=CostUpdate(usage=state.usage), note=note),
                ]
            case NextAction.FINISH | NextAction.NOTHING:
                return
        state = fold([replace(entry, seq=state.seq + at) for at, entry in enumerate(entries, 1)], state)
    raise AssertionError(f"still {decide(state)}")


def test_a_paused_completion_is_not_the_answer() -> None:
    text = Step(id="step-0", index=0, type=StepType.TEXT, content="so far")

    def ended(finish: str, at: int) -> LoggedEvent:
        note = CompletionNote(finish=finish, usage=Usage())
        return LoggedEvent(seq=at, event=CostUpdate(usage=Usage()), note=note)

    paused = fold([LoggedEvent(seq=1, event=ProcessStep(step=text)), ended("paused", 2)])
    assert decide(paused) == NextAction.CALL_MODEL
    assert decide(fold([ended("stop", 3)], paused)) == NextAction.FINISH


ANY_STEP = st.builds(
    lambda index, type_, status: Step(id=step_id(index), index=index, type=type_, status=status, id_ref="c"),
    st.integers(0, 4),
    st.sampled_from(StepType),
    st.sampled_from(StepStatus),
)
ANY_ENTRY = st.one_of(
    ANY_STEP.map(lambda step: (ProcessStep(step=step), None)),
    st.just((Warning(message="w"), None)),
    ANY_STEP.map(lambda step: (make_question("q", step), None)),
    ANY_STEP.map(lambda step: (make_answer(make_question("q", step)), None)),
    st.just((CostUpdate(usage=Usage()), CompletionNote(finish="stop", usage=Usage()))),
    st.just((CostUpdate(usage=Usage()), None)),
)


@settings(max_examples=300)
@given(entries=st.lists(ANY_ENTRY, max_size=12), data=st.data())
def test_an_arbitrary_log_folds_the_same_in_parts(entries: list, data: st.DataObject) -> None:
    events = [LoggedEvent(seq=at, event=event, note=note) for at, (event, note) in enumerate(entries, 1)]
    cut = data.draw(st.integers(0, len(events)))
    state = fold(events)
    assert fold(events[cut:], fold(events[:cut])) == state
    todo = decide(state)
    if todo == NextAction.RUN_TOOLS:
        assert open_calls(state)
    if todo == NextAction.REPAIR:
        assert unfinished_steps(state)
    if todo == NextAction.WAIT:
        assert open_questions(state)


def _logged_step(step: Step, status: StepStatus) -> LoggedEvent:
    return LoggedEvent(seq=0, event=ProcessStep(step=replace(step, status=status)))
