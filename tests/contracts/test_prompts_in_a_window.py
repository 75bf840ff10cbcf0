"""Whatever is left out of a prompt, it stays valid for each dialect, and what must be sent is sent."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import pytest
from dialects import ROWS
from histories import said, turns
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from luxx.domain.context.messages import PastMessage
from luxx.domain.context.prompt import History, Prompt, SectionKind, TextSection
from luxx.domain.context.tokens import ESTIMATOR, correction
from luxx.domain.context.window import Cut, next_cut, summarized, truncated, window_limits
from luxx.errors import ContextTooLong
from luxx.infra.config.schema import ContextConfig
from luxx.providers.adapter import CompletionRequest
from luxx.providers.failures import as_provider_error, read_error_body
from luxx.providers.scripted.http import overflow_body
from luxx.providers.scripted.script import ScriptedRequest
from luxx.wire.event import CompletionNote
from luxx.wire.message import (
    AssistantPrompt,
    CompressionStrategy,
    ContextRecord,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserContent,
    UserPrompt,
    objection_note,
)
from luxx.wire.turn import CompletionEnd, Step, StepStatus, StepType, Usage, step_id, with_end

LONG = "x" * 2_000
NOTE = CompletionNote(finish="tool_calls", usage=Usage())
PROTECTED = "ask_decision"


def steps_of(messages: list[PromptMessage], protects: bool) -> Iterator[Step]:
    """The steps of a turn; its results are long or short, and some are those of a protected tool."""
    index = 0
    for message in messages:
        parts: list[dict[str, Any]] = []
        if isinstance(message, AssistantPrompt):
            parts += [{"type": StepType.THINKING, "content": message.thinking}] if message.thinking else []
            parts += [{"type": StepType.TEXT, "content": message.text}] if message.text else []
            parts += [
                {"type": StepType.TOOL_CALL, "id_ref": c.call_id, "name": named(c.name, protects)}
                | {"arguments": c.arguments}
                for c in message.tool_calls
            ]
        elif isinstance(message, ToolPrompt):
            content = message.content if len(message.call_id) % 2 else message.content + LONG
            parts = [{"type": StepType.TOOL_RESULT, "id_ref": message.call_id}]
            parts[0] |= {"name": named(message.name, protects)}
            parts[0] |= {"content": content, "success": message.success}
        for part in parts:
            yield Step(id=step_id(index), index=index, **part)
            index += 1


def named(name: str, protects: bool) -> str:
    return PROTECTED if protects and len(name) % 3 == 0 else name


class DrawnPrompt(NamedTuple):
    system: str
    past: list[PastMessage]
    steps: list[Step]
    has_task: bool

    def prompt(self, calls: int | None = None) -> Prompt:
        """The prompt of the model call after this many calls of the turn; None: after all."""
        history = History(
            self.past, has_task=self.has_task, protected=[PROTECTED], read_tool="result_read", model="m"
        )
        for steps, notes in [*self.states()][: None if calls is None else calls + 1]:
            history.extend(steps, notes)
        section = TextSection(kind=SectionKind.SYSTEM, owner="tests", text=self.system)
        return Prompt([section], history)

    def states(self) -> Iterator[tuple[list[Step], list[CompletionNote]]]:
        """The steps and notes before each model call of the turn."""
        yield [], []
        ends = [
            at + 1
            for at, step in enumerate(self.steps)
            if step.type == StepType.TOOL_RESULT
            and (at + 1 == len(self.steps) or self.steps[at + 1].type != StepType.TOOL_RESULT)
        ]
        for number, end in enumerate(ends, 1):
            yield self.steps[:end], [NOTE] * number


@st.composite
def prompts(draw: st.DrawFn) -> DrawnPrompt:
    """A chat, or a room with its task: past turns, and a turn in progress that waits for the model."""
    past: list[PastMessage] = []
    protects = draw(st.booleans())
    for turn in draw(st.lists(turns(), max_size=5)):
        steps = tuple(steps_of(turn[1:], protects))
        past += [user_message(turn), PastMessage(steps=steps)]
    last = draw(turns())
    current = [one for one in last[1:] if isinstance(one, ToolPrompt) or one.tool_calls]
    has_task = draw(st.booleans())
    task = [PastMessage(user=UserContent(text="The task: talk."))] if has_task else []
    return DrawnPrompt(
        draw(said), [*task, *past, user_message(last)], [*steps_of(current, protects)], has_task
    )


def user_message(turn: list[PromptMessage]) -> PastMessage:
    assert isinstance(turn[0], UserPrompt)
    return PastMessage(user=UserContent(text=turn[0].text))


records = st.builds(
    ContextRecord,
    messages=st.integers(0, 12), window=st.sampled_from([0, 50, 4_000]),
    estimator=st.sampled_from([0, ESTIMATOR]),
    estimated=st.integers(0, 500), counted=st.integers(0, 500), next_at=st.integers(0, 3_000),
    cleared=st.tuples(st.integers(0, 12), st.integers(0, 3)),
)  # fmt: skip
"""Records, also of older versions and of messages that were deleted since."""
windows = st.none() | st.integers(10, 6_000)
CONFIG = ContextConfig(max_tokens=8_000, protected_tools=[PROTECTED])
HYPOTHESIS = {
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
    "suppress_health_check": [HealthCheck.too_slow],
    "deadline": None,
}


def passes(drawn: DrawnPrompt, record: ContextRecord, window: int | None, data: st.DataObject) -> list[Cut]:
    """Three passes while the turn grows, each of a kind that is drawn."""
    found: list[Cut] = []
    limits = window_limits(window, 1_000, CONFIG)
    for calls in (*sorted(data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))), None):
        prompt = drawn.prompt(calls)
        kind = data.draw(st.sampled_from(["next", "summary", "overflow"]))
        if kind == "overflow":
            cut = truncated(prompt, record, limits, most=data.draw(st.integers(0, 2_000)))
        else:
            cut = next_cut(
                prompt, record, limits, summarizes=kind == "summary", is_asked=data.draw(st.booleans())
            )
        if cut is not None and cut.strategy == CompressionStrategy.SUMMARIZE:
            cut = summarized(prompt, cut, "What was done: a lot.", limits)
        if cut is not None:
            assert cut.after < cut.before
            assert cut.after == round(prompt.estimate(cut.record) * correction(cut.record))
            found.append(cut)
            record = cut.record
    return found


def check(data: st.DataObject) -> None:
    drawn, record, window = data.draw(prompts()), data.draw(records), data.draw(windows)
    cuts = passes(drawn, record, window, data)
    final = cuts[-1].record if cuts else record
    sent = drawn.prompt().messages(final)
    for dialect, row in ROWS.items():
        model = data.draw(st.sampled_from(row.models), label=dialect)
        asked = CompletionRequest(model=model, messages=sent, max_tokens=2_000)
        provider = row.provider_types[0]
        row.rules(row.accepts(row.body(asked, provider), provider), asked)
    first, *others = sent
    assert first == SystemPrompt(text=drawn.system)
    called = {
        call.call_id for each in others if isinstance(each, AssistantPrompt) for call in each.tool_calls
    }
    answered = {each.call_id for each in others if isinstance(each, ToolPrompt)}
    assert called == answered, "no call is without its result, and no result without its call"
    last = drawn.past[-1].user
    assert last is not None
    assert last.text in [message.text for message in others if isinstance(message, UserPrompt)]
    assert not drawn.has_task or others[0] == UserPrompt(text="The task: talk.")


@settings(max_examples=25, **HYPOTHESIS)
@given(data=st.data())
def test_a_prompt_that_was_cut_obeys_the_rules_of_each_dialect(data: st.DataObject) -> None:
    check(data)


@pytest.mark.heavy
@settings(max_examples=500, **HYPOTHESIS)
@given(data=st.data())
def test_500_prompts_that_were_cut_obey_the_rules_of_each_dialect(data: st.DataObject) -> None:
    check(data)


@settings(max_examples=25, **HYPOTHESIS)
@given(drawn=prompts(), record=records, window=windows)
def test_a_pass_is_followed_by_none_before_the_prompt_has_grown(
    drawn: DrawnPrompt, record: ContextRecord, window: int | None
) -> None:
    prompt, limits = drawn.prompt(), window_limits(window, 1_000, CONFIG)
    cut = next_cut(prompt, replace(record, next_at=0), limits)
    if cut is None:
        return
    # As much as can be is left out where the window is too small for what must be sent.
    assert cut.after <= limits.target or cut.record.next_at > cut.after
    again = next_cut(prompt, cut.record, limits)
    assert again is None or cut.after > limits.usable


@settings(max_examples=25, **HYPOTHESIS)
@given(drawn=prompts())
def test_a_turn_that_ended_has_the_places_that_it_had_in_progress(drawn: DrawnPrompt) -> None:
    live = drawn.prompt().history
    rest = len(drawn.past) - drawn.has_task
    ended = PastMessage(steps=tuple(drawn.steps), replay=tuple({} for _ in [*drawn.states()][1:]))
    stored = History([*drawn.past, ended], has_task=drawn.has_task, protected=[PROTECTED], model="m")
    assert [unit.place for unit in live.units] == [unit.place for unit in stored.units]
    assert [unit.prompts for unit in live.units] == [unit.prompts for unit in stored.units]
    assert {unit.place[0] for unit in live.units if unit.place[0] >= rest} <= {rest}


def test_a_completion_that_paused_before_its_first_step_goes_on_after_a_restart_as_without() -> None:
    def pair(index: int, call_id: str) -> list[Step]:
        call = Step(id=step_id(index), index=index, type=StepType.TOOL_CALL, name="look", id_ref=call_id)
        result = Step(id=step_id(index + 1), index=index + 1, type=StepType.TOOL_RESULT, id_ref=call_id)
        return [replace(call, arguments="{}"), replace(result, content="It is here.", success=True)]

    first, second = pair(0, "one"), pair(2, "two")
    paused = replace(NOTE, replay=with_end({}, CompletionEnd(is_paused=True)))
    prompts_of: list[list[PromptMessage]] = []
    for seen_before in ([(first, [NOTE])], []):
        history = History([])
        for steps, notes in [
            *seen_before,
            (first, [NOTE, paused]),
            ([*first, *second], [NOTE, paused, NOTE]),
        ]:
            history.extend(steps, notes)
        prompts_of.append([prompt for unit in history.units for prompt in unit.prompts])
    live, restarted = prompts_of
    assert len(live) == 4, "two completions, each with its result"
    assert restarted == live


def looks(names: list[str]) -> list[Step]:
    """The steps of calls of these tools."""
    steps: list[Step] = []
    for number, name in enumerate(names):
        at, ref = 2 * number, f"call-{number}"
        content = LONG if name == "look" else "Kept."
        call = Step(id=step_id(at), index=at, type=StepType.TOOL_CALL, name=name, id_ref=ref, arguments="{}")
        result = Step(id=step_id(at + 1), index=at + 1, type=StepType.TOOL_RESULT, name=name, id_ref=ref)
        steps += [call, replace(result, content=content, success=True)]
    return steps


def test_the_newest_message_of_a_user_stays_before_results_of_protected_tools() -> None:
    first, newest = UserContent(text="Hello."), UserContent(text="The garden. " * 1_500)
    answer = Step(id=step_id(0), index=0, type=StepType.TEXT, content="Hello!")
    past = [PastMessage(user=first), PastMessage(steps=(answer,), replay=({},)), PastMessage(user=newest)]
    history = History(past, protected=[PROTECTED])
    history.extend(looks([PROTECTED, *["look"] * 20]), [NOTE] * 21)
    prompt = Prompt([], history)
    cut = next_cut(prompt, ContextRecord(), window_limits(4_000, 100, ContextConfig()))
    assert cut is not None
    assert cut.after > 3_900, "even the newest message alone fills the window"
    users = [message.text for message in prompt.messages(cut.record) if isinstance(message, UserPrompt)]
    assert users == [first.text, newest.text]


def test_the_only_message_of_a_user_is_sent_whole_however_long_its_turn() -> None:
    asked = "Here is what the garden must have. " * 600
    history = History([PastMessage(user=UserContent(text=asked))])
    history.extend(looks(["look"] * 60), [NOTE] * 60)
    prompt = Prompt([], history)
    limits = window_limits(32_000, 1_000, ContextConfig())
    assert limits.first < history.units[0].tokens < limits.users
    cut = next_cut(prompt, ContextRecord(), limits, summarizes=True, is_asked=True)
    assert cut is not None
    assert cut.record.part > 0
    assert prompt.messages(cut.record)[0] == UserPrompt(text=asked)


VENDORS = ["openai", "anthropic", "gemini"]


@pytest.mark.parametrize("dialect", VENDORS)
@pytest.mark.parametrize("tokens", [3_900, 4_100])
def test_the_error_of_each_vendor_for_a_full_window_is_known(dialect: str, tokens: int) -> None:
    request = ScriptedRequest(dialect=dialect, tokens=tokens, max_tokens=500)
    error = read_error_body(msgspec.json.encode(overflow_body(request, 4_000)))
    error = msgspec.structs.replace(error, status=400)
    assert isinstance(as_provider_error(error), ContextTooLong)


def test_what_checks_object_to_stands_at_the_same_place_in_each_prompt() -> None:
    refused = Step(id="step-0", index=0, type=StepType.TEXT, content="It is 41.", superseded=True)
    call = Step(id="step-1", index=1, type=StepType.TOOL_CALL, id_ref="c1", name="look", arguments="{}")
    result = Step(id="step-2", index=2, type=StepType.TOOL_RESULT, id_ref="c1", name="look", content="{}")
    interrupted = Step(id="step-3", index=3, type=StepType.TEXT, content="It", status=StepStatus.INTERRUPTED)
    answer = Step(id="step-4", index=4, type=StepType.TEXT, content="It is 42.")
    of_answer, of_result = objection_note("The answer is wrong.", 1), objection_note("Look again.", 3)
    notes = [NOTE, replace(NOTE, replay=of_answer), replace(NOTE, replay=objection_note("Look again.", 4))]
    said = [UserPrompt(text=text, is_inner=True) for text in ("The answer is wrong.", "Look again.")]

    def sent(history: History) -> list[PromptMessage]:
        return [prompt for unit in history.units for prompt in unit.prompts]

    growing = History([])
    seen: list[list[PromptMessage]] = []
    states: list[tuple[list[Step], int, dict[str, object] | None]] = [
        ([], 0, None),
        ([refused], 1, of_answer),
        ([refused, call, result], 2, of_result),
        ([refused, call, result, interrupted], 2, objection_note("Look again.", 4)),
    ]
    for steps, ended, objection in states:
        growing.extend(steps, notes[:ended], objection)
        anew = History([])
        anew.extend(steps, notes[:ended], objection)
        assert sent(growing) == sent(anew)
        seen.append(sent(growing))
    steps = (refused, call, result, interrupted, answer)
    past = History([PastMessage(steps=steps, replay=tuple(dict(note.replay) for note in notes))])
    seen.append(sent(past))
    assert [len(messages) for messages in seen] == [0, 2, 5, 5, 6]
    assert seen[4][1::3] == said
    for before, after in pairwise(seen):
        assert after[: len(before)] == before
