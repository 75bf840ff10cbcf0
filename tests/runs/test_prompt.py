"""The prompt from any log: every call has its result, and interrupted completions are left out."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from whole_prompt import prompt_messages

from luxx.domain.context.messages import PastMessage, assistant_messages, user_text
from luxx.wire.message import (
    AssistantPrompt,
    Attachment,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserContent,
    UserPrompt,
)
from luxx.wire.turn import Step, StepStatus, StepType
from runs.random_logs import Log, logs


def prompt_of(log: Log) -> list[PromptMessage]:
    return assistant_messages(log.state.steps, [dict(note.replay) for note in log.state.notes])


@given(log=logs())
def test_every_call_has_one_result_right_after_its_completion_and_in_its_order(log: Log) -> None:
    wanted: list[str] = []
    for message in prompt_of(log):
        match message:
            case ToolPrompt():
                assert wanted, f"a result without a call: {message}"
                assert message.call_id == wanted.pop(0)
            case AssistantPrompt():
                assert not wanted, f"calls without results: {wanted}"
                wanted = [call.call_id for call in message.tool_calls]
                assert len(wanted) == len(set(wanted)), "one id twice in one completion"
            case _:
                raise AssertionError(message)
    assert not wanted


@given(log=logs())
def test_every_result_is_in_the_prompt_and_no_call_without_one(log: Log) -> None:
    messages = prompt_of(log)
    results = [step for step in log.state.steps if step.type == StepType.TOOL_RESULT]
    assert sorted(step.content for step in results) == sorted(
        message.content for message in messages if isinstance(message, ToolPrompt)
    )
    asked = [
        call for message in messages if isinstance(message, AssistantPrompt) for call in message.tool_calls
    ]
    assert len(asked) == len(results)


@given(log=logs())
def test_interrupted_completions_are_left_out_and_complete_ones_are_in(log: Log) -> None:
    said = [
        step.content
        for step in log.state.steps
        if step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED
    ]
    messages = [message for message in prompt_of(log) if isinstance(message, AssistantPrompt)]
    assert "".join(message.text for message in messages) == "".join(said)
    assert all(message.text or message.tool_calls for message in messages)


@given(log=logs())
def test_a_call_that_was_cancelled_without_a_result_is_left_out(log: Log) -> None:
    """Cancelling closes open calls as cancelled; the prompt of the next message has neither call nor
    result."""
    cancelled = [
        replace(step, status=StepStatus.CANCELLED)
        if step.type == StepType.TOOL_CALL and step.status in (StepStatus.PENDING, StepStatus.RUNNING)
        else step
        for step in log.state.steps
    ]
    request_count = sum(
        len(message.tool_calls)
        for message in assistant_messages(cancelled, [])
        if isinstance(message, AssistantPrompt)
    )
    assert request_count == sum(step.type == StepType.TOOL_RESULT for step in cancelled)


def test_a_call_made_again_under_the_same_id_after_a_crash_is_shown_once() -> None:
    def call(index: int, status: StepStatus) -> Step:
        return Step(
            id=f"step-{index}", index=index, type=StepType.TOOL_CALL, name="file_read", arguments="{}",
            id_ref="call_0", status=status,
        )  # fmt: skip

    result = Step(
        id="step-2", index=2, type=StepType.TOOL_RESULT, id_ref="call_0", name="file_read", content="{}"
    )
    messages = assistant_messages([call(0, StepStatus.INTERRUPTED), call(1, StepStatus.DONE), result], [{}])
    assert isinstance(messages[0], AssistantPrompt)
    assert len(messages[0].tool_calls) == 1
    assert len(messages) == 2


def text_step(index: int, text: str) -> Step:
    return Step(id=f"step-{index}", index=index, type=StepType.TEXT, content=text)


def test_a_paused_completion_and_its_continuation_are_one_message() -> None:
    notes = [{"paused": True, "blocks": [1], "who": "a"}, {"paused": True, "blocks": [2]}, {"blocks": [3]}]

    messages = assistant_messages(
        [text_step(0, "one, "), text_step(1, "two, "), text_step(2, "three")], notes
    )

    assert messages == [
        AssistantPrompt(text="one, two, three", replay={"paused": True, "blocks": [1, 2, 3], "who": "a"})
    ]


def test_notes_after_a_pause_still_belong_to_their_own_completions() -> None:
    call = Step(id="step-1", index=1, type=StepType.TOOL_CALL, name="f", arguments="{}", id_ref="c")
    result = Step(id="step-2", index=2, type=StepType.TOOL_RESULT, name="f", id_ref="c", content="{}")
    notes = [{"paused": True, "blocks": [1]}, {"blocks": [2]}, {"blocks": [3]}]

    messages = assistant_messages([text_step(0, "a"), call, result, text_step(3, "b")], notes)

    assert [m.replay.get("blocks") for m in messages if isinstance(m, AssistantPrompt)] == [[1, 2], [3]]


def test_a_completion_that_paused_without_text_is_continued() -> None:
    call = Step(id="step-0", index=0, type=StepType.TOOL_CALL, name="f", arguments="{}", id_ref="c")
    result = Step(id="step-1", index=1, type=StepType.TOOL_RESULT, name="f", id_ref="c", content="{}")
    silent = {"paused": True, "blocks": [2]}

    assert assistant_messages([], [silent]) == [AssistantPrompt(replay=silent)]
    assert assistant_messages([call, result], [{}, silent])[-1] == AssistantPrompt(replay=silent)
    assert len(assistant_messages([call, result], [{}, {"blocks": [2]}])) == 2


NAMES = st.text(alphabet="ab.`c", min_size=1, max_size=5)


@given(text=st.text(max_size=10), system=st.text(max_size=3), content=st.text(alphabet="`a\n", max_size=12))
def test_a_users_text_and_files_are_whole_and_no_file_closes_its_own_fence(
    text: str, system: str, content: str
) -> None:
    file = Attachment(name="a.md", extension="md", content=content)
    past = [PastMessage(user=UserContent(text=text, attachments=[file]))]
    messages = prompt_messages(system, past)
    assert isinstance(messages[0], SystemPrompt) is bool(system)
    user = messages[-1]
    assert isinstance(user, UserPrompt)
    assert user.text.startswith(text)
    head, _, rest = user.text.removeprefix(text).partition("a.md:\n")
    assert head.strip() == "Attached file"
    fence = rest[: len(rest) - len(rest.lstrip("`"))]
    assert rest == f"{fence}md\n{content}\n{fence}"
    assert fence not in content


@given(earlier=logs(), later=logs())
def test_messages_keep_their_order_and_do_not_run_into_each_other(earlier: Log, later: Log) -> None:
    past = [
        PastMessage(user=UserContent(text="one")),
        PastMessage(steps=earlier.state.steps, replay=()),
        PastMessage(user=UserContent(text="two")),
    ]
    messages = prompt_messages("be brief", past, later.state.steps)
    alone = [
        SystemPrompt(text="be brief"),
        UserPrompt(text="one"),
        *assistant_messages(earlier.state.steps, []),
    ]
    assert messages == [*alone, UserPrompt(text="two"), *assistant_messages(later.state.steps, [])]


def test_a_file_of_backticks_is_fenced_by_more_of_them_at_once() -> None:
    file = Attachment(name="ticks.md", extension="md", content="`" * 500_000)
    # Trying one longer fence after another would take minutes.
    text = user_text(UserContent(text="look", attachments=[file]))
    assert text.endswith("\n" + "`" * 500_001)
