"""What the model of a seat gets: its prompt and role, the task, and the messages of the others by name. Pure.

A seat sees the steps of its own messages, and only the text of the others'. The messages that a turn gets
begin with those of the seat's turn before, so that a provider's prompt cache can use them.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from luxx.domain.context.messages import PastMessage
from luxx.features.rooms.policies import names_in
from luxx.wire.message import ContextRecord, Quotation, UserContent
from luxx.wire.turn import ReplayNote, Step, StepType, written_artifacts
from luxx.wire.turn_event import PERSON

OWN_TURN = "It is your turn again."
"""Stands after each message of the seat that no other message follows: a model answers somebody else's
message, and what its earlier turns read stays as it was."""

SUMMARY_OF_ROOM = "[Summary of the earlier discussion, which is not repeated here]"

KEPT_CHARACTERS = 4_000
"""Of the newest messages of people that a summary stands for, how many characters are sent all the same."""

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


def reply_label(quoted: Quotation | None) -> str:
    """What a reply answers, as it stands behind the label of its author. No text and no name can be taken for
    it: a text does not begin with a bracket, and a label has no second one."""
    if quoted is None:
        return "[[in reply to a message that was deleted]]"
    text = msgspec.json.encode(quoted.text).decode().translate(_IN_LABEL)
    return f"[[in reply to {quoted.sender_name.translate(_IN_LABEL)}: {text}]]"


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
    another person than the room's owner, `@` and the name of this person. `reply_to` is the message that it
    answers, `quoted` how that begins; None if it was deleted.
    """

    msg_id: str
    seat_id: int | None
    name: str
    text: str
    steps: tuple[Step, ...] = ()
    replay: tuple[ReplayNote, ...] = ()
    context: ContextRecord | None = None
    tainted_by: str | None = None
    reply_to: str | None = None
    quoted: Quotation | None = None


class RoomSummary(Struct, frozen=True, kw_only=True):
    """What stands for the messages up to the one with the id `until`, for all seats. The empty one stands for
    nothing."""

    text: str = ""
    until: str = ""

    def rest(self, transcript: Sequence[TranscriptEntry]) -> Sequence[TranscriptEntry]:
        """The messages after those that it stands for."""
        for at in range(len(transcript) - 1, -1, -1):
            if transcript[at].msg_id == self.until:
                return transcript[at + 1 :]
        # The message was deleted since.
        return [entry for entry in transcript if entry.msg_id > self.until]


NO_SUMMARY = RoomSummary()


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


def words_of(entry: TranscriptEntry) -> str:
    """The message of somebody as the others read it, with the artifacts that it made or changed."""
    lines = [
        f"(Version {one.version} of the artifact {one.artifact_id} was written here: "
        f"{msgspec.json.encode(one.name).decode()})"
        for one in written_artifacts(entry.steps)
    ]
    answers = "" if entry.reply_to is None else f"{reply_label(entry.quoted)}\n"
    return "\n".join([f"{label(entry.name)} {answers}{said(entry.text)}", *lines])


def past_messages(
    task: str,
    seat_id: int | None,
    transcript: Sequence[TranscriptEntry],
    summary: RoomSummary = NO_SUMMARY,
) -> list[PastMessage]:
    """The messages before a seat's turn; `seat_id` None: for a model that only reads.

    A message of another seat that has no text is left out, and so is one of a person that the seat heard
    during its turn: it is a step of the seat's own message. How earlier prompts of the seat were made holds
    only where they began with the same summary.
    """
    past = [_from_user(f"The task of this discussion:\n\n{said(task)}", "")]
    rest = transcript
    if summary.until:
        rest = summary.rest(transcript)
        before = transcript[: len(transcript) - len(rest)]
        past += [_summary_message(seat_id, transcript, summary), *_kept_words(before, summary.until)]
    heard = _heard_by(seat_id, rest)
    for entry in rest:
        if entry.seat_id is not None and entry.seat_id == seat_id:
            if past[-1].user is None:
                past.append(_from_user(OWN_TURN, past[-1].until))
            context = entry.context
            if context is not None and context.base != summary.until:
                context = None
            past.append(
                PastMessage(steps=entry.steps, replay=entry.replay, context=context, until=entry.msg_id)
            )
        elif entry.msg_id not in heard and (entry.text.strip() or written_artifacts(entry.steps)):
            past.append(_from_user(words_of(entry), entry.msg_id))
    if past[-1].user is None:
        past.append(_from_user(OWN_TURN, past[-1].until))
    return past


def _heard_by(seat_id: int | None, transcript: Sequence[TranscriptEntry]) -> set[str]:
    """The ids of the messages of people that are steps of messages of the seat."""
    own = (entry for entry in transcript if entry.seat_id is not None and entry.seat_id == seat_id)
    return {str(step.id_ref) for entry in own for step in entry.steps if step.type == StepType.USER}


def _from_user(text: str, until: str) -> PastMessage:
    return PastMessage(user=UserContent(text=text), until=until)


def _summary_message(
    seat_id: int | None, transcript: Sequence[TranscriptEntry], summary: RoomSummary
) -> PastMessage:
    """The message that stands for what the summary is of, with what is known of the model of the seat."""
    records = (one.context for one in reversed(transcript) if one.seat_id == seat_id and one.context)
    last = next(records, ContextRecord())
    known = ContextRecord(
        base=summary.until,
        estimated=last.estimated,
        counted=last.counted,
        estimator=last.estimator,
        learned=last.learned,
        learned_by=last.learned_by,
    )
    content = UserContent(text=f"{SUMMARY_OF_ROOM}\n\n{said(summary.text)}")
    return PastMessage(user=content, context=known, until=summary.until)


def _kept_words(before: Sequence[TranscriptEntry], until: str) -> list[PastMessage]:
    """The newest words of people before the cut of a summary, which are sent as they are."""
    kept: list[PastMessage] = []
    left = KEPT_CHARACTERS
    for entry in reversed(before):
        if entry.seat_id is None:
            left -= len(entry.text)
            if left < 0:
                break
            kept.append(_from_user(words_of(entry), until))
    return kept[::-1]


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
