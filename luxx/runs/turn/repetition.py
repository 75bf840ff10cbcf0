"""Whether a turn repeats itself without getting anything new: judged from the newest calls and their results
before further calls run, and from the end of a growing text. Pure.

docs/agents/loops.md says the rules to people.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from hashlib import blake2b

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from luxx.infra.config.schema import LoopsConfig
from luxx.wire.delegation import DELEGATE_TOOL
from luxx.wire.run import LoopChoice, LoopKind
from luxx.wire.turn import Step, StepType
from luxx.wire.turn_event import DoomLoopDetected

MAX_PAIRS = 64
"""How many of the newest calls are compared with each other."""

PATIENT_SECONDS, PATIENT_TIMES = 10.0, 10
"""Successful calls that are so far apart, and calls whose error may pass, may be repeated more often: they
may wait for something."""

CYCLE_LENGTHS = range(2, 5)
ERROR_TIMES = 6
STALLED_CALLS = 12

MAX_SORTED_ARGUMENTS = 65_536
"""Longer arguments are compared as they are written: sorting their keys would take too long."""

MAX_ERROR_CHARACTERS = 2000

_DIGITS = b"0123456789"
_TRANSIENT = re.compile(
    r"(?:answered|http|status|code)\D{0,12}(?:429|5\d\d)\b|too many requests|rate limit"
    r"|time[ds]? ?out|did not finish within|longer than \d+ seconds|service unavailable|try again later",
    re.IGNORECASE,
)
_DURATION = re.compile(rb'"duration_ms":\d+')
_sorted = msgspec.json.Encoder(order="sorted").encode


class CallPair(msgspec.Struct, frozen=True, gc=False):
    """A call that has ended and its result, as hashes. `round`: of which completion of the turn the call is;
    `at`: when it ended, in seconds."""

    call_id: str
    tool: str
    call: bytes
    result: bytes
    round: int
    at: float
    is_failed: bool = False
    is_transient: bool = False

    @property
    def content(self) -> tuple[bytes, bytes]:
        return self.call, self.result


class NextCall(msgspec.Struct, frozen=True, gc=False):
    """A call that is to run next."""

    call_id: str
    tool: str
    call: bytes


class Repetition(msgspec.Struct, frozen=True):
    """A repetition of `times` rounds or calls, those that are held back included: `held` are their ids,
    `earlier` the ids of the calls that they repeat."""

    kind: LoopKind
    tool: str
    times: int
    earlier: tuple[str, ...]
    held: tuple[str, ...] = ()

    @property
    def call_ids(self) -> list[str]:
        return [*self.earlier, *self.held]


def call_hash(tool: str, arguments: str) -> bytes:
    """Equal for all JSON texts of the same arguments."""
    try:
        if len(arguments) <= MAX_SORTED_ARGUMENTS:
            return _hash(_sorted([tool, msgspec.json.decode(arguments or "{}")]))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    return _hash(f"{tool}\0{arguments}".encode("utf-8", "surrogatepass"))


def pair_of(call: Step, result: Step, at: float, completion: int) -> CallPair:
    """The pair of the steps of a call and its result."""
    tool, is_failed = str(call.name), result.success is not True
    content = result.content.encode("utf-8", "surrogatepass")
    if b'"duration_ms":' in content:
        content = _DURATION.sub(b"", content)
    is_transient = False
    if is_failed:
        content = content.translate(None, _DIGITS)
        is_transient = _TRANSIENT.search(_error_of(result.content)) is not None
    elif tool == DELEGATE_TOOL:
        content = _answer_of(content)
    return CallPair(
        call_id=str(call.id_ref),
        tool=tool,
        call=call_hash(tool, "" if call.arguments is UNSET else str(call.arguments)),
        result=_hash(content),
        round=completion,
        at=at,
        is_failed=is_failed,
        is_transient=is_transient,
    )


def judge(
    pairs: Sequence[CallPair],
    calls: Sequence[NextCall],
    now: float,
    limits: LoopsConfig,
    freed: Collection[bytes] = (),
) -> Repetition | None:
    """Which of the calls of a completion repeat earlier ones without anything new; None: none of them.

    `freed` are calls that a person allows to repeat.
    """
    known = {pair.call for pair in pairs}
    if known.isdisjoint(one.call for one in calls):
        return None
    history = _History(pairs, now, limits, freed)
    found = {call: history.repetition_of(call) for call in {one.call for one in calls} & known}
    held = [(one, repeated) for one in calls if (repeated := found.get(one.call)) is not None]
    if held:
        first, (kind, times, earlier) = held[0]
        ids = tuple(dict.fromkeys((*earlier, *(one_id for _, (_, _, more) in held for one_id in more))))
        return Repetition(kind, first.tool, times, ids, tuple(one.call_id for one, _ in held))
    stalled = history.stalled()
    unfreed = [one for one in calls if one.call not in freed]
    if stalled and unfreed and all(one.call in known for one in unfreed):
        held_ids = tuple(one.call_id for one in unfreed)
        return Repetition(LoopKind.STALL, unfreed[0].tool, STALLED_CALLS, stalled, held_ids)
    return None


def repeated_errors(pairs: Sequence[CallPair], new: Sequence[CallPair]) -> dict[str, Repetition]:
    """For each new result with which one tool has failed ERROR_TIMES times in the same way, by call id."""
    found: dict[str, Repetition] = {}
    for at, pair in enumerate(new):
        if not pair.is_failed:
            continue
        before = [*pairs, *new[:at]][-MAX_PAIRS:]
        same = [one.call_id for one in before if one.is_failed and _is_same_failure(one, pair)]
        if len(same) + 1 == ERROR_TIMES:
            ids = (*same, pair.call_id)
            found[pair.call_id] = Repetition(LoopKind.ERROR, pair.tool, ERROR_TIMES, ids)
    return found


def _is_same_failure(one: CallPair, other: CallPair) -> bool:
    return one.tool == other.tool and one.result == other.result


_Found = tuple[LoopKind, int, tuple[str, ...]]


class _History:
    """The newest calls, for the judgement of one completion."""

    def __init__(
        self, pairs: Sequence[CallPair], now: float, limits: LoopsConfig, freed: Collection[bytes]
    ) -> None:
        self._now, self._times, self._freed = now, limits.times, freed
        seen: set[tuple[bytes, bytes]] = set()
        is_new: list[bool] = []
        for pair in pairs:
            is_new.append(pair.content not in seen)
            seen.add(pair.content)
        start = 0
        if limits.seconds:
            start = next((at for at, one in enumerate(pairs) if one.at >= now - limits.seconds), len(pairs))
        self._recent = list(zip(pairs, is_new, strict=True))[start:]

    def repetition_of(self, call: bytes) -> _Found | None:
        """What this call repeats: itself, or a block of calls that begins with it."""
        if call in self._freed:
            return None
        return self._same_call(call) or self._cycle(call)

    def _same_call(self, call: bytes) -> _Found | None:
        """Equal calls with equal results, with no new result of another call between. Calls of one completion
        count once."""
        equal: list[CallPair] = []
        rounds = hasty = 0
        later = self._now
        for pair, is_new in reversed(self._recent):
            if pair.call != call:
                if is_new:
                    break
                continue
            if equal and pair.result != equal[0].result:
                break
            if not equal or pair.round != equal[-1].round:
                rounds += 1
                is_patient = not pair.is_failed and later - pair.at >= PATIENT_SECONDS
                hasty += not (is_patient or pair.is_transient)
                later = pair.at
            equal.append(pair)
        if hasty < self._times - 1 and rounds < max(PATIENT_TIMES, self._times) - 1:
            return None
        return LoopKind.CALL, rounds + 1, tuple(pair.call_id for pair in reversed(equal))

    def _cycle(self, call: bytes) -> _Found | None:
        """Equal blocks of two to four calls with equal results, one after the other."""
        for length in CYCLE_LENGTHS:
            block = [pair for pair, _ in self._recent[-length:]]
            if len(block) < length or block[0].call != call or len({pair.call for pair in block}) == 1:
                continue
            times = PATIENT_TIMES if any(pair.is_transient for pair in block) else self._times
            size = (max(times, self._times) - 1) * length
            newest = [pair for pair, _ in self._recent[-size:]]
            rounds = {pair.round for pair in newest[::length]}
            is_equal = all(pair.content == block[at % length].content for at, pair in enumerate(newest))
            if len(newest) == size and is_equal and len(rounds) == size // length:
                return LoopKind.CYCLE, size // length + 1, tuple(pair.call_id for pair in newest)
        return None

    def stalled(self) -> tuple[str, ...]:
        """The ids of the newest calls if none of STALLED_CALLS brought anything new; else nothing."""
        ids: dict[tuple[int, bytes, bytes], str] = {}
        for pair, is_new in reversed(self._recent):
            if pair.call in self._freed:
                continue
            if is_new:
                break
            ids.setdefault((pair.round, *pair.content), pair.call_id)
            if len(ids) == STALLED_CALLS:
                return tuple(reversed(ids.values()))
        return ()


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()


def _error_of(content: str) -> str:
    try:
        error = msgspec.json.decode(content, type=_Failed).error
    except (msgspec.MsgspecError, ValueError):
        return ""
    return (error or "")[:MAX_ERROR_CHARACTERS]


class _Failed(msgspec.Struct):
    error: str | None = None


class _Task(msgspec.Struct):
    answer: str | None = None
    error: str | None = None


class _Answered(_Task):
    results: list[_Task] = []


class _Delegated(msgspec.Struct):
    data: _Answered


def _answer_of(content: bytes) -> bytes:
    """The answers of the subagents: each has a run of its own, whose id says nothing about the answer."""
    try:
        data = msgspec.json.decode(content, type=_Delegated).data
    except (msgspec.MsgspecError, ValueError):
        return content
    return str([(each.answer, each.error) for each in data.results or [data]]).encode()


class LoopState(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn has repeated so far. `pairs`: its newest calls with their results. `detected`: the event
    that held calls back last; `choice`: what a person decided on it; `count`: how often calls were held back.
    The calls in `freed` may be repeated."""

    pairs: tuple[CallPair, ...] = ()
    detected: DoomLoopDetected | None = None
    choice: LoopChoice | None = None
    count: int = 0
    freed: frozenset[bytes] = frozenset()

    @property
    def undecided(self) -> frozenset[str]:
        """The ids of the calls that are held back until a person decides."""
        if self.detected is None or self.choice is not None:
            return frozenset()
        return frozenset(self.detected.held)

    def after(self, event: DoomLoopDetected) -> "LoopState":
        return replace(self, detected=event, choice=None, count=self.count + 1) if event.held else self

    def decided(self, choice: LoopChoice, open_calls: Sequence[Step]) -> "LoopState":
        if choice != LoopChoice.CONTINUE or self.detected is None:
            return replace(self, choice=choice)
        ids = frozenset(self.detected.call_ids)
        held = [call for call in open_calls if call.id_ref in ids]
        freed = {call_hash(str(call.name), str(call.arguments or "")) for call in held}
        freed |= {pair.call for pair in self.pairs if pair.call_id in ids}
        return replace(self, choice=choice, freed=self.freed | freed)

    def with_results(self, ended: Iterable[tuple[Step, Step | None, str]], completion: int) -> "LoopState":
        """The state after new results, each with its call and the time. Calls that were held back and not run
        are no pairs."""
        is_run = self.detected is None or self.choice == LoopChoice.CONTINUE
        not_run = frozenset[str]() if is_run or self.detected is None else frozenset(self.detected.held)
        pairs: list[CallPair] = []
        for result, call, timestamp in ended:
            if call is not None and call.id_ref not in not_run:
                pairs.append(pair_of(call, result, _seconds(timestamp), completion))
        return replace(self, pairs=(*self.pairs, *pairs)[-MAX_PAIRS:])


def call_of_result(steps: Sequence[Step], result: Step) -> Step | None:
    """The call of a result, which is among the newest of the steps before it."""
    same = (step for step in reversed(steps) if step.id_ref == result.id_ref)
    return next((step for step in same if step.type == StepType.TOOL_CALL), None)


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


# Texts

TEXT_CHARACTERS = 2000
"""So much of the end of a text must repeat."""

MAX_PERIOD = 200
LOOK_CHARACTERS = 200
"""How much a text grows between two looks at it."""

MAX_LINE = 100
"""So much of a line is kept until it is complete: a fence is at its beginning."""

_FENCES = ("```", "~~~")


class RepeatedText:
    """Looks at one growing text, each time at what has come since the last look."""

    def __init__(self, place: int = 0) -> None:
        self.place = place
        """The index of its step."""
        self.size = 0
        """How much the completion had written at the last look."""
        self._line = self._end = ""
        self._is_code = False

    def repeats(self, new: str) -> int:
        """How often the text, with `new` at its end, repeats one piece there, outside of code; 0: it does
        not."""
        *complete, rest = (self._line + new).split("\n")
        for line in complete:
            if line.lstrip().startswith(_FENCES):
                self._is_code = not self._is_code
        self._line = rest[:MAX_LINE]
        self._end = (self._end + new)[-TEXT_CHARACTERS:]
        return 0 if self._is_code else _pieces_of(self._end)


def _pieces_of(text: str) -> int:
    """Of how many equal pieces of at most MAX_PERIOD characters a text of TEXT_CHARACTERS consists; 0: it
    does not."""
    if len(text) < TEXT_CHARACTERS:
        return 0
    start = len(text) - MAX_PERIOD
    period = start - text.rfind(text[start:], 0, len(text) - 1)
    is_periodic = period <= MAX_PERIOD and text[period:] == text[:-period]
    return len(text) // period if is_periodic else 0
