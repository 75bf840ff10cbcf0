"""The steps of an answer whose text a person wrote in place of the model."""

from luxx.wire.source import Source
from luxx.wire.turn import Step, StepStatus, StepType, steps_text, with_edited_text

SOURCE = Source(url="https://example.org/a", title="A")


def step(type_: StepType, content: str = "", **more: object) -> Step:
    return Step(id="", index=0, type=type_, content=content, **more)  # type: ignore[arg-type]


def test_calls_results_and_messages_stay_and_the_text_is_the_last_step() -> None:
    steps = [
        step(StepType.THINKING, "I look it up"),
        step(StepType.TEXT, "One moment."),
        step(StepType.TOOL_CALL, name="web_fetch", id_ref="a", arguments="{}"),
        step(StepType.TOOL_RESULT, "{}", id_ref="a", is_untrusted=True),
        step(StepType.USER, "and be short"),
        step(StepType.TEXT, "Wrong.", superseded=True),
        step(StepType.TEXT, "It is A.", status=StepStatus.INTERRUPTED),
    ]
    edited = with_edited_text(steps, "It is B.", "anna")
    kinds = [each.type for each in edited]
    assert kinds == [StepType.TOOL_CALL, StepType.TOOL_RESULT, StepType.USER, StepType.TEXT]
    assert [(each.id, each.index) for each in edited] == [(f"step-{index}", index) for index in range(4)]
    assert edited[1].is_untrusted is True
    assert (steps_text(edited), edited[-1].edited_by) == ("It is B.", "anna")


def test_sources_of_the_old_texts_stay_and_a_second_edit_replaces_the_first() -> None:
    steps = [
        step(StepType.TEXT, "A [1].", sources=[SOURCE]),
        step(StepType.TOOL_CALL, name="now", id_ref="a"),
        step(StepType.TOOL_RESULT, "{}", id_ref="a"),
        step(StepType.TEXT, "", notice="an image is missing", sources=[SOURCE], superseded=True),
    ]
    once = with_edited_text(steps, "B [1].", "anna")
    again = with_edited_text(once, "C [1].", "bob")
    assert [each.sources for each in again if each.type == StepType.TEXT] == [[SOURCE], [SOURCE]]
    assert steps_text(again) == "C [1]."
    assert [each.edited_by for each in again if each.edited_by] == ["bob"]
    assert not again[-1].notice


def test_an_answer_without_steps_gets_a_text() -> None:
    assert steps_text(with_edited_text([], "Hello.", "anna")) == "Hello."
