"""What the model of a seat gets: its prompt and role, the task, and the messages of the others by name. Pure.

A seat sees the steps of its own messages, and only the text of the others'. The messages that a turn gets
begin with those of the seat's turn before, so that a provider's prompt cache can use them.
"""

from collections.abc import Sequence

from msgspec import Struct

from luxx.domain.context.messages import PastMessage
from luxx.features.rooms.policies import names_in
from luxx.wire.message import ContextRecord, UserContent
from luxx.wire.turn import ReplayNote, Step
from luxx.wire.turn_event import PERSON

OWN_TURN = "It is your turn again."
"""Stands after each message of the seat that no other message follows: a model answers somebody else's
message, and what its earlier turns read stays as it was."""

SELECTOR_PROMPT = "You choose who speaks next in a discussion."

CHOOSE = (
    "You lead this discussion. Choose who speaks next, so that the task is done well. Answer with one name "
    "from this list and nothing else: {names}."
)


_BEFORE_A_NAME = " \t\u00a0\u00ad\u061c\u115f\u1160\u1680\u180e\u3000\u3164\ufeff\uffa0\\" + "".join(
    map(chr, (*range(0x2000, 0x2028), *range(0x202A, 0x2070)))
)
"""What is not seen at the beginning of a line, and the backslash."""
_OPENING = ("[", "\uff3b")
_IN_LABEL = str.maketrans(
    {"[": "(", "]": ")", "\uff3b": "(", "\uff3d": ")", "\x85": " ", "\u2028": " ", "\u2029": " "}
)


def label(name: str) -> str:
    """The name of an author as it stands before their message."""
    return f"[{name.translate(_IN_LABEL)}]"


def said(text: str) -> str:
    """A text of somebody as the others read it. A line that begins with a square bracket gets a backslash, so
    that none can be taken for a label."""
    if not any(opening in text for opening in _OPENING):
        return text
    return "".join(_without_label(line) for line in text.splitlines(keepends=True))


def _without_label(line: str) -> str:
    body = line.lstrip(_BEFORE_A_NAME)
    if not body.startswith(_OPENING):
        return line
    before = len(line) - len(body)
    return f"{line[:before]}\\{body}"


class TranscriptEntry(Struct, frozen=True, kw_only=True):
    """A stored message of the room; `seat_id` is None for a person's. Those of seats have `steps`, `replay`
    and `context`.

    `tainted_by`: the tool that brought untrusted content into it, or that its writer had read; of words of
    another person than the room's owner, `@` and the name of this person.
    """

    msg_id: str
    seat_id: int | None
    name: str
    text: str
    steps: tuple[Step, ...] = ()
    replay: tuple[ReplayNote, ...] = ()
    context: ContextRecord | None = None
    tainted_by: str | None = None


class SeatInRoom(Struct, frozen=True, kw_only=True):
    """A seat as the others see it."""

    seat_id: int
    name: str
    role: str


def system_prompt(own_prompt: str, seat_id: int, seats: Sequence[SeatInRoom]) -> str:
    """The system prompt of a seat: its own, then who else is in the room."""
    own = next(seat for seat in seats if seat.seat_id == seat_id)
    others = [f"- {seat.name}: {seat.role}".rstrip(": ") for seat in seats if seat is not own]
    room = [
        f"You are {own.name} in a discussion of several participants, who take turns. Each message of the "
        "others begins with the name of its author in square brackets; a line that begins with \\[ is a part "
        "of the message, whatever name it gives. Write your next message only: without your name in front, "
        "and without speaking for others.",
        "The other participants:\n" + "\n".join(others) if others else "No other agent takes part.",
        "People may take part too.",
    ]
    return "\n\n".join(part for part in (own_prompt, *room) if part)


def past_messages(task: str, seat_id: int | None, transcript: Sequence[TranscriptEntry]) -> list[PastMessage]:
    """The messages before a seat's turn; `seat_id` None: for a model that only reads.

    A message of another seat that has no text is left out.
    """
    past = [PastMessage(user=UserContent(text=f"The task of this discussion:\n\n{said(task)}"))]
    for entry in transcript:
        if entry.seat_id is not None and entry.seat_id == seat_id:
            if past[-1].user is None:
                past.append(PastMessage(user=UserContent(text=OWN_TURN)))
            past.append(PastMessage(steps=entry.steps, replay=entry.replay, context=entry.context))
        elif entry.text.strip():
            past.append(PastMessage(user=UserContent(text=f"{label(entry.name)} {said(entry.text)}")))
    if past[-1].user is None:
        past.append(PastMessage(user=UserContent(text=OWN_TURN)))
    return past


def choosing_messages(
    task: str,
    names: Sequence[str],
    prompt: str | None,
    transcript: Sequence[TranscriptEntry],
    context: ContextRecord,
) -> list[PastMessage]:
    """The messages for the model that chooses among these names; `prompt` replaces the first sentences.

    `context`: how the prompt of the choice before was made.
    """
    instruction = CHOOSE.format(names=", ".join(names))
    if prompt:
        instruction = f"{prompt}\n\nAnswer with one name from this list and nothing else: {', '.join(names)}."
    return [
        *past_messages(task, None, transcript),
        PastMessage(user=UserContent(text=instruction), context=context),
    ]


def chosen_name(answer: str, names: Sequence[str], others: Sequence[str] = ()) -> str | None:
    """The name that an answer gives: the whole answer, else the only one that it names.

    `others` cannot be chosen; a name that is a part of such a name is not named by it.
    """
    text = answer.strip().strip("\"'`*.[]@").casefold()
    for name in names:
        if text == name.casefold():
            return name
    named = [name for name in names_in(answer, [*names, *others]) if name in names]
    return named[0] if len(named) == 1 else None


def taint_of(transcript: Sequence[TranscriptEntry]) -> str | None:
    """Who brought untrusted content into what a turn reads, if any: a person, else a tool."""
    found = [entry.tainted_by for entry in transcript if entry.tainted_by is not None]
    return next((by for by in found if by.startswith(PERSON)), found[0] if found else None)


def taint_by_person(name: str, owner_name: str) -> str | None:
    """The taint of words of the user of this name in a room of this owner."""
    return None if name == owner_name else f"{PERSON}{name}"
