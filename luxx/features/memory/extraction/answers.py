"""Extraction: what a model is shown of a part of a conversation, and which entities and facts its answer has.

Pure. Messages, entities and facts that are known stand under small numbers, because models copy long ids
wrongly; an answer that names another number is refused with a sentence that the model can correct.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, cast

import msgspec

from luxx.domain.context.tokens import text_tokens
from luxx.features.memory.entities import DEFAULT_TYPE
from luxx.features.memory.lexical import memory_name
from luxx.features.memory.models import NAME_LENGTH, PREDICATE_LENGTH, TYPE_LENGTH
from luxx.features.memory.views import TEXT_LENGTH
from luxx.infra.observe import redact
from luxx.infra.written_json import written_values
from luxx.wire.memory import FactCategory
from luxx.wire.message import fenced

PROMPT = files("luxx.features.memory.extraction").joinpath("extraction.md").read_text("utf-8").strip()

BATCH_MESSAGES = 12
BATCH_TOKENS = 3_000
"""Messages and tokens of one batch; a message that is longer than that is cut."""

IDLE_SECONDS = 300
"""A batch that is not full is extracted when nobody has written for so long."""

MAX_CANDIDATES = 15
"""Known entities, and known facts, that the model compares with."""

REFLEXION_TOKENS = 1_500
"""A batch with more tokens is looked through twice, where the configuration says `auto`."""

MAX_FACTS = 60
MAX_ENTITIES = 60
"""Of one answer; what comes after them is left out."""

QUOTE_LENGTH = 300
SHOWN_LENGTH = 100_000
"""More characters than BATCH_TOKENS have."""

MAX_PROBLEMS = 10

_NUMBER = {"type": ["integer", "null"]}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_ENTITY: dict[str, Any] = {"name": {"type": "string"}, "type": {"type": "string"}, "same_as": _NUMBER}
_FACT: dict[str, Any] = {
    "text": {"type": "string"},
    "category": {"type": "string", "enum": [each.value for each in FactCategory]},
    "message": {"type": "integer"},
    "quote": {"type": "string"},
    "subject": _TEXT_OR_NULL,
    "predicate": _TEXT_OR_NULL,
    "object": _TEXT_OR_NULL,
    "valid_at": _TEXT_OR_NULL,
    "invalid_at": _TEXT_OR_NULL,
    "equals": _NUMBER,
    "replaces": _NUMBER,
}


def _items(properties: dict[str, Any]) -> dict[str, Any]:
    item = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "array", "items": item}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"entities": _items(_ENTITY), "facts": _items(_FACT)},
    "required": ["entities", "facts"],
    "additionalProperties": False,
}
"""Of the answer. All properties are required, because some providers demand that."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a batch: what a person wrote, or what an answer says, without results of tools."""

    message_id: str
    author: str
    text: str
    sent_at: datetime
    trusted: bool = True


class KnownEntity(msgspec.Struct, frozen=True):
    """An entity of the scope that the model compares with. `id` is its key in the database, `uid` its id;
    that is empty in logs of earlier versions."""

    id: int
    name: str
    type: str
    uid: str = ""


class KnownFact(msgspec.Struct, frozen=True):
    """A fact of the scope that the model compares with. `id` is its key in the database, `uid` the one that
    clients know; the ends are names of entities, folded."""

    id: int
    uid: str
    text: str
    subject: str | None = None
    predicate: str | None = None
    object: str | None = None
    pinned: bool = False


class SaidBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What one call is shown; the numbers of its answer count from 1 in these lists."""

    messages: list[Said]
    entities: list[KnownEntity] = []
    facts: list[KnownFact] = []


class FoundEntity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity of an answer; `known` is the one that it is the same as."""

    name: str
    type: str
    known: KnownEntity | None = None


class FoundFact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact of an answer. `subject` and `object` are names of its entities, both or none; `source` is the
    message that says it."""

    text: str
    category: FactCategory
    source: Said
    quote: str = ""
    subject: str | None = None
    predicate: str | None = None
    object: str | None = None
    valid_at: datetime | None = None
    invalid_at: datetime | None = None
    equals: KnownFact | None = None
    replaces: KnownFact | None = None

    def retires(self) -> KnownFact | None:
        """The fact that is no longer so because of this one: what the model says, if both are about the same
        thing, and no person pinned it. Subject and predicate must agree, or both ends. What was over when
        it was said does not end something else."""
        old = self.replaces
        if old is None or old.pinned or old.subject is None or self.subject is None:
            return None
        ends = memory_name(self.subject), memory_name(self.object or "")
        has_predicate = bool(self.predicate) and old.predicate is not None
        if old.subject != ends[0]:
            return None
        same_predicate = has_predicate and str(self.predicate).casefold() == str(old.predicate).casefold()
        is_over = self.invalid_at is not None and self.invalid_at <= self.source.sent_at
        if is_over and old.object != ends[1]:
            return None
        return old if same_predicate or old.object == ends[1] else None


class FoundFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a valid answer has. `same`: known entities that are another known one under a second name, with
    that."""

    entities: list[FoundEntity] = []
    facts: list[FoundFact] = []
    same: list[tuple[KnownEntity, KnownEntity]] = []


class ExtractionProblems(msgspec.Struct, frozen=True):
    """Why an answer is not valid; each problem is a sentence that the model can correct."""

    problems: tuple[str, ...]


def batches(messages: Sequence[Said]) -> Iterator[list[Said]]:
    """The messages in order, as batches of at most BATCH_MESSAGES and about BATCH_TOKENS. The last one may
    not be full."""
    batch: list[Said] = []
    tokens = 0
    for message in messages:
        size = min(text_tokens(message.text), BATCH_TOKENS)
        if batch and (len(batch) == BATCH_MESSAGES or tokens + size > BATCH_TOKENS):
            yield batch
            batch, tokens = [], 0
        batch.append(message)
        tokens += size
    if batch:
        yield batch


def is_full(batch: Sequence[Said]) -> bool:
    """Whether a batch needs not wait for more messages."""
    return len(batch) >= BATCH_MESSAGES or batch_tokens(batch) >= BATCH_TOKENS


def batch_tokens(batch: Sequence[Said]) -> int:
    """The tokens of its messages, as far as they are sent."""
    return sum(min(text_tokens(message.text), BATCH_TOKENS) for message in batch)


def asked(batch: SaidBatch) -> str:
    """The message to the model, without what looks like a key or a password."""
    parts: list[str] = []
    if batch.entities:
        listed = "\n".join(f"{n}. {each.name} ({each.type})" for n, each in enumerate(batch.entities, 1))
        parts.append(f"Known entities:\n{fenced(listed, '')}")
    if batch.facts:
        listed = "\n".join(f"{n}. {_line(each.text, TEXT_LENGTH)}" for n, each in enumerate(batch.facts, 1))
        parts.append(f"Known facts:\n{fenced(listed, '')}")
    for number, message in enumerate(batch.messages, 1):
        # A file that was imported may name authors of several lines.
        author = _line(message.author, NAME_LENGTH)
        head = f"Message {number}, {author}, {message.sent_at.date().isoformat()}:"
        parts.append(f"{head}\n{fenced(_shown(message), '')}")
    return "\n\n".join(parts)


LOOK_AGAIN = (
    "Look through the messages once more for facts and entities that you left out, and for facts that are "
    "not said there. Answer with the whole JSON object again, corrected."
)


def corrected(problems: Sequence[str]) -> str:
    """The message to the model after an answer that was not valid."""
    listed = "\n".join(f"- {problem}" for problem in problems)
    return f"This answer cannot be used:\n{listed}\nAnswer again, with the whole JSON object only."


def _shown(message: Said) -> str:
    """The text of a message as far as it fits a batch, without secrets."""
    text = message.text
    while text_tokens(text) > BATCH_TOKENS:
        text = text[: len(text) * BATCH_TOKENS // (text_tokens(text) + 1)]
    return redact(text)


def read_extraction(text: str, batch: SaidBatch) -> FoundFacts | ExtractionProblems:
    """What a model's answer has, or everything that is wrong with it."""
    value = next((each for each in written_values(text) if _is_answer(each)), None)
    if value is None:
        return ExtractionProblems(('it has no JSON object with the lists "entities" and "facts"',))
    return _Reader(batch).read(value)


def _is_answer(value: Any) -> bool:
    return isinstance(value, dict) and any(
        isinstance(cast("dict[str, Any]", value).get(name), list) for name in ("entities", "facts")
    )


class _Reader:
    """Reads one answer, and collects its problems."""

    def __init__(self, batch: SaidBatch) -> None:
        self._batch = batch
        self._said = {each.message_id: _line(_shown(each), SHOWN_LENGTH) for each in batch.messages}
        self._problems: list[str] = []

    def read(self, value: dict[str, Any]) -> FoundFacts | ExtractionProblems:
        found: dict[str, FoundEntity] = {}
        for item in _objects(value.get("entities"))[:MAX_ENTITIES]:
            entity = self._entity(item)
            if entity is not None:
                found.setdefault(entity.name.casefold(), entity)
        facts: list[FoundFact] = []
        for number, item in enumerate(_objects(value.get("facts"))[:MAX_FACTS], 1):
            fact = self._fact(item, f"fact {number}", found)
            if fact is not None:
                facts.append(fact)
        if self._problems:
            return ExtractionProblems(tuple(self._problems[:MAX_PROBLEMS]))
        entities = list(found.values())
        return FoundFacts(entities=entities, facts=facts, same=list(self._same(entities)))

    def _same(self, entities: Sequence[FoundEntity]) -> Iterator[tuple[KnownEntity, KnownEntity]]:
        """The known entities of which the model says that they are another known one: it gives the name of
        one and the number of the other. Both must be of one type, and nothing that is read untrusted."""
        if not all(message.trusted for message in self._batch.messages):
            return
        for each in entities:
            into = each.known
            if into is None or not into.uid or memory_name(into.name) == memory_name(each.name):
                continue
            for other in self._batch.entities:
                is_named = other.uid and memory_name(other.name) == memory_name(each.name)
                if is_named and other.type.casefold() == into.type.casefold():
                    yield other, into

    def _entity(self, item: dict[str, Any]) -> FoundEntity | None:
        name = _line(item.get("name"), NAME_LENGTH)
        if not name:
            return None
        label = f"the entity {name[:60]!r}"
        known = self._numbered(item.get("same_as"), self._batch.entities, f"same_as of {label}")
        return FoundEntity(
            name=name, type=_line(item.get("type"), TYPE_LENGTH).lower() or DEFAULT_TYPE, known=known
        )

    def _fact(self, item: dict[str, Any], label: str, entities: dict[str, FoundEntity]) -> FoundFact | None:
        text = _line(item.get("text"), TEXT_LENGTH)
        if not text:
            return None
        source = self._numbered(item.get("message"), self._batch.messages, f"message of {label}")
        if source is None:
            if item.get("message") is None:
                self._problems.append(f"{label} does not say which message it comes from")
            return None
        ends = [_line(item.get(name), NAME_LENGTH) for name in ("subject", "object")]
        for end in filter(None, ends):
            entities.setdefault(end.casefold(), FoundEntity(name=end, type=DEFAULT_TYPE))
        subject, object_ = (entities[end.casefold()].name for end in ends) if all(ends) else (None, None)
        quote = _line(item.get("quote"), QUOTE_LENGTH)
        valid_at, invalid_at = _time(item.get("valid_at")), _time(item.get("invalid_at"))
        if valid_at is not None and invalid_at is not None and invalid_at <= valid_at:
            invalid_at = None
        return FoundFact(
            text=text,
            category=_category(item.get("category")),
            source=source,
            quote=quote if quote in self._said[source.message_id] else "",
            subject=subject,
            predicate=_line(item.get("predicate"), PREDICATE_LENGTH) or None,
            object=object_,
            valid_at=valid_at,
            invalid_at=invalid_at,
            equals=self._numbered(item.get("equals"), self._batch.facts, f"equals of {label}"),
            replaces=self._numbered(item.get("replaces"), self._batch.facts, f"replaces of {label}"),
        )

    def _numbered(self, value: Any, items: Sequence[Any], what: str) -> Any:
        """The item of this number, counted from 1; None without a number. Another number is a problem."""
        if value is None or value == "" or value == 0 or isinstance(value, bool):
            return None
        text = str(value).strip()
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        if 1 <= number <= len(items):
            return items[number - 1]
        until = f"from 1 to {len(items)}" if items else "null, because none are known"
        self._problems.append(f"{what} is {text[:40]!r}; it must be {until}")
        return None


def _objects(value: Any) -> list[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _line(value: Any, most: int) -> str:
    """The text in one line, without control characters; empty for anything else."""
    if not isinstance(value, str):
        return ""
    text = "".join(each if each.isprintable() else " " for each in value)
    return " ".join(text.split())[:most].rstrip()


def _category(value: Any) -> FactCategory:
    try:
        return FactCategory(str(value).strip().lower())
    except ValueError:
        return FactCategory.KNOWLEDGE


def _time(value: Any) -> datetime | None:
    """The beginning of a date, or a time, in UTC; None for what is none."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except (OverflowError, ValueError):
        return None
