"""What a long turn costs without a model, in this process; prints figures as JSON.

- The fold of a turn of 300 calls whose prompt was compressed 20 times, and of the same without.
- The check for repetition, before one of 1,000 calls.
- The input of 300 calls with results of 2 kB in a window of 20,000 tokens, where a provider bills cached
  tokens at a tenth: as Luxx sends it, against a prompt in which the oldest results are cleared before every
  call, and against one from which nothing is left out.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from msgspec.structs import replace

from luxx.app.startup import tune_gc
from luxx.domain.context.messages import PastMessage
from luxx.domain.context.prompt import History, Prompt, Unit
from luxx.domain.context.window import next_cut, summarized, window_limits
from luxx.infra.config.schema import ContextConfig, LoopsConfig
from luxx.runs.turn.repetition import NextCall, call_hash, judge
from luxx.runs.turn.state import TurnState, fold
from luxx.wire.event import CompletionNote, CostUpdate, CutNote, LoggedEvent, ProcessStep
from luxx.wire.message import ContextRecord, UserContent
from luxx.wire.turn import FinishReason, Step, StepStatus, StepType, Usage, step_id
from luxx.wire.turn_event import ContextCompressed
from tests.bench.discussion import pin

CALLS, CHECKED_CALLS, PASSES = 300, 1_000, 20
WINDOW, ANSWER = 20_000, 1_000
CACHED_PRICE = 0.1
"""Of a token that was in the request before, in the prices of one that was not."""

TIMES = 20
EVENTS = 5
"""The events of a completion with one call."""

RESULT = json.dumps({"success": True, "data": "a tree of the garden " * 95})
SUMMARY = "What was found in the garden so far. " * 40
PAST = [PastMessage(user=UserContent(text="Count the trees of the garden."), steps=(), replay=())]


def completion(number: int) -> tuple[Step, Step, Step]:
    """The text, the call and the result of a completion."""
    call, arguments = f"call_{number}", json.dumps({"path": f"{number}.txt"})
    base = 3 * number
    return (
        Step(id=step_id(base), index=base, type=StepType.TEXT, content=f"Tree {number}."),
        Step(
            id=step_id(base + 1), index=base + 1, type=StepType.TOOL_CALL, name="file_read",
            arguments=arguments, id_ref=call, status=StepStatus.PENDING,
        ),
        Step(
            id=step_id(base + 2), index=base + 2, type=StepType.TOOL_RESULT, name="file_read",
            content=f"{number}{RESULT}", id_ref=call, success=True,
        ),
    )  # fmt: skip


def note() -> CompletionNote:
    return CompletionNote(finish=FinishReason.TOOL_CALLS.value, usage=Usage(prompt_tokens=9, total_tokens=9))


def log(calls: int, passes: int = 0) -> list[LoggedEvent]:
    """The log of a turn of so many calls, compressed so many times in between."""
    events: list[LoggedEvent] = []
    for number in range(calls):
        text, call, result = completion(number)
        closed = ProcessStep(step=replace(call, status=StepStatus.DONE))
        contents = (
            (ProcessStep(step=text), None), (ProcessStep(step=call), None),
            (CostUpdate(usage=Usage()), note()), (closed, None), (ProcessStep(step=result), None),
        )  # fmt: skip
        for event, its_note in contents:
            events.append(LoggedEvent(seq=len(events) + 1, event=event, note=its_note))
        if passes and number % (calls // passes) == 1:
            record = ContextRecord(messages=1, part=2 * number, window=WINDOW)
            cut = ContextCompressed(
                messages=1,
                turns=1,
                results=0,
                tokens_before=2,
                tokens_after=1,
                window=WINDOW,
                summary=SUMMARY,
            )
            events.append(LoggedEvent(seq=len(events) + 1, event=cut, note=CutNote(record=record)))
    return events


def cpu_ms(work: Callable[[], object]) -> float:
    """CPU ms of the fastest of TIMES calls."""
    best = float("inf")
    for _ in range(TIMES):
        before = time.process_time()
        work()
        best = min(best, time.process_time() - before)
    return best * 1e3


def sent(units: Sequence[Unit]) -> list[tuple[object, int]]:
    """What is sent, as pairs of an identity and a count of tokens."""
    return [(tuple(unit.prompts), unit.tokens) for unit in units]


def price(requests: Iterator[list[tuple[object, int]]]) -> float:
    """The input of these requests in a row, in tokens at full price."""
    total, before = 0.0, list[tuple[object, int]]()
    for request in requests:
        pairs = zip(before, request, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        total += CACHED_PRICE * sum(tokens for _, tokens in request[:same])
        total += sum(tokens for _, tokens in request[same:])
        before = request
    return total


def states() -> Iterator[TurnState]:
    """The state of the turn before each call."""
    state = TurnState()
    events = log(CALLS)
    for number in range(CALLS):
        yield state
        state = fold(events[EVENTS * number : EVENTS * (number + 1)], state)


def as_luxx_does(config: ContextConfig) -> Iterator[list[tuple[object, int]]]:
    """Each summary is a request too: the last prompt, and one message."""
    limits = window_limits(WINDOW, ANSWER, config)
    history = History(PAST)
    prompt, record = Prompt([], history), ContextRecord()
    for state in states():
        history.extend(state.steps, state.notes)
        cut = next_cut(prompt, record, limits, summarizes=True)
        if cut is not None and cut.strategy == "summarize":
            yield [*sent(history.sent(record)), ("Summarise.", 300)]
            cut = summarized(prompt, cut, SUMMARY, limits)
        if cut is not None:
            record = cut.record
        yield sent(history.sent(record))


def cleared_in_every_call(config: ContextConfig) -> Iterator[list[tuple[object, int]]]:
    """The whole results of the newest calls, as many as fit; of the others what is left when they are
    cleared."""
    limits, history = window_limits(WINDOW, ANSWER, config), History(PAST)
    for state in states():
        history.extend(state.steps, state.notes)
        units = [history.cleared(unit) for unit in history.units]
        at, left = len(units), limits.trigger - sum(unit.tokens for unit in units)
        while at > 0 and left > 0:
            at -= 1
            left -= history.units[at].tokens - units[at].tokens
        yield sent([*units[:at], *history.units[at:]])


def whole() -> Iterator[list[tuple[object, int]]]:
    history = History(PAST)
    for state in states():
        history.extend(state.steps, state.notes)
        yield sent(history.units)


def measure() -> dict[str, float]:
    tune_gc()
    plain, compressed = log(CALLS), log(CALLS, PASSES)
    state = fold(log(CHECKED_CALLS))
    calls = [NextCall(call_id="next", tool="file_read", call=call_hash("file_read", '{"path": "999.txt"}'))]
    loops, config = LoopsConfig(), ContextConfig()
    mine = price(as_luxx_does(config))
    return {
        "fold": cpu_ms(lambda: fold(plain)),
        "fold_compressed": cpu_ms(lambda: fold(compressed)),
        "check": cpu_ms(lambda: judge(state.loops.pairs, calls, time.time(), loops)),
        "to_cleared": mine / price(cleared_in_every_call(config)),
        "to_whole": mine / price(whole()),
    }


if __name__ == "__main__":
    pin()
    print(json.dumps(measure()))
