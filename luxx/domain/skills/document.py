"""`SKILL.md`: reading its front matter and text, changing the front matter, and its form for other products.

Pure: bytes in and values out. Where a file comes from and who may use it is not here.
"""

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
import yaml

from luxx.domain.routing.matching import (
    LEAST_WEIGHT,
    MAX_PATTERN,
    MAX_TRIGGERS,
    MAX_WEIGHT,
    Trigger,
    TriggerType,
)
from luxx.errors import InvalidInput
from luxx.infra.documents.yaml_text import dump_yaml
from luxx.tools.permissions.rules import MAX_ENTRIES, check_entry, entries_in
from luxx.wire.tool import SkillHead, skill_key

FILE = "SKILL.md"
OTHER_FILE = "skill.md"
"""What the reference reader of the standard also accepts, in a folder without a SKILL.md."""

MAX_FILE_BYTES = 40 * 1024
"""Tool results of this size are never cut; longer instructions belong into other files."""

MAX_FRONT_CHARACTERS = 8 * 1024
MAX_DEPTH, MAX_EVENTS, MAX_BRACKETS = 20, 2_000, 100
"""Bounds of the front matter, because parsing small YAML can take much time."""

MAX_NAME, MAX_DESCRIPTION, MAX_LICENSE = 64, 1024, 500
MAX_LABEL, MAX_LABELS = 100, 50
"""The bounds of a category, a version, a tag or a displayed name, and of how many tags."""

_TOOLS_KEY = "allowed-tools"
_FOR_PEOPLE_KEY = "disable-model-invocation"
_SIMILARITY = 0.8
_STANDARD_KEYS = ("name", "description", "license", "compatibility", _TOOLS_KEY, "metadata")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n(.*))?\Z", re.DOTALL | re.MULTILINE)
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class SkillDocument(SkillHead, frozen=True, kw_only=True):
    """What a SKILL.md says. `is_for_people`: no model may activate it (`disable-model-invocation`)."""

    instructions: str
    is_for_people: bool = False
    license: str | None = None
    display_name: str | None = None
    category: str | None = None
    version: str | None = None
    tags: tuple[str, ...] = ()
    trigger_type: TriggerType = TriggerType.HYBRID
    trigger_patterns: tuple[Trigger, ...] = ()


def read_document(content: bytes) -> SkillDocument:
    """What this SKILL.md says. Raises InvalidInput with the reason if it is no usable skill."""
    if len(content) > MAX_FILE_BYTES:
        raise InvalidInput(f"{FILE} is larger than {MAX_FILE_BYTES // 1024} KB; move texts into other files")
    return _document(*_parts(content))


def has_front_matter(text: str) -> bool:
    """Whether a text begins like a whole SKILL.md."""
    return _FRONT_MATTER.match(_lines(text)) is not None


def with_values(content: bytes, changes: Mapping[str, Any]) -> bytes:
    """The file with other values in its front matter; None removes a key. The text below stays."""
    front, instructions = _parts(content)
    extra = cast("dict[str, Any]", front["metadata"]) if isinstance(front.get("metadata"), dict) else {}
    for key, value in changes.items():
        front.pop(key, None)
        extra.pop(key, None)
        if value is None:
            continue
        if key in _STANDARD_KEYS:
            front[key] = value
        else:
            extra[key] = value
    front.pop("metadata", None)
    if extra:
        front["metadata"] = extra
    return make_document(front, instructions)


def make_document(front: Mapping[str, Any], instructions: str) -> bytes:
    """A SKILL.md with this front matter; empty values are left out."""
    given = {key: value for key, value in front.items() if value is not None}
    return f"---\n{dump_yaml(given)}---\n\n{instructions.strip()}\n".encode("utf-8", "replace")


def public_document(content: bytes) -> bytes:
    """The file as every product that reads skills accepts it: other keys are in `metadata`, and the name has
    no underscore. A file that is like this already stays as it is."""
    front, instructions = _parts(content)
    name = str(front["name"]).strip()
    other = {key: value for key, value in front.items() if key not in _STANDARD_KEYS}
    tools = front.get(_TOOLS_KEY, other.pop("tools", None))
    is_public = (
        not other and "_" not in name and not isinstance(tools, list) and front.get(_TOOLS_KEY) == tools
    )
    if is_public and not any(character in _texts(content)[0] for character in "[{"):
        return content
    extra = cast("dict[str, Any]", front["metadata"]) if isinstance(front.get("metadata"), dict) else {}
    kept = {key: front[key] for key in _STANDARD_KEYS if key in front and key != "metadata"}
    kept["name"] = name.replace("_", "-")
    if tools is not None:
        kept[_TOOLS_KEY] = " ".join(cast("list[str]", tools)) if isinstance(tools, list) else tools
    if all_extra := {**extra, **other}:
        kept["metadata"] = {key: _plain(value) for key, value in all_extra.items()}
    return make_document(kept, instructions)


def _plain(value: Any) -> Any:
    """The value without lists and mappings that are empty, for which strict YAML has no form."""
    return str(value) if value in ([], {}) else value


def printable(text: str) -> str:
    """The text with U+FFFD in place of characters that databases and JSON answers do not accept."""
    return _NO_TEXT.sub("\ufffd", text)


def _lines(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _texts(content: bytes) -> tuple[str, str]:
    """The text of the front matter and the text below it."""
    try:
        match = _FRONT_MATTER.match(_lines(content.decode("utf-8")))
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{FILE} is not UTF-8 text") from error
    if match is None:
        raise InvalidInput(f"{FILE} does not begin with front matter between two lines of ---")
    return match[1], (match[2] or "").strip()


def _parts(content: bytes) -> tuple[dict[str, Any], str]:
    """The front matter and the text below it."""
    front, instructions = _texts(content)
    try:
        return _front_matter(front), instructions
    except yaml.YAMLError as error:
        raise InvalidInput(printable(_yaml_problem(error, front))[:500]) from error


def _yaml_problem(error: yaml.YAMLError, front: str) -> str:
    """Names the line, and what nearly always is wrong with it: a text that YAML does not read as one."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "the front matter is not valid YAML"
    lines, number = front.split("\n"), error.problem_mark.line
    line = lines[number] if number < len(lines) else ""
    key, colon, value = line.partition(":")
    key, reason = key.strip()[:50], error.problem or "it cannot be read"
    if not colon or not value.strip():
        return f"line {number + 2} of the front matter is not valid YAML ({reason})"
    return (
        f"line {number + 2} of the front matter is not valid YAML ({reason}); write the {key} in double "
        "quotes, with a backslash before quotes that are in it"
    )


def _document(front: dict[str, Any], instructions: str) -> SkillDocument:
    given = front.get("metadata")
    extra = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    more = {**extra, **front}
    return SkillDocument(
        name=_name(front),
        description=" ".join(_text(front, "description", MAX_DESCRIPTION).split()),
        allowed_tools=_allowed_tools(front),
        instructions=printable(instructions),
        is_for_people=str(more.get(_FOR_PEOPLE_KEY, "")).strip().lower() == "true",
        license=_text(front, "license", MAX_LICENSE) if front.get("license") is not None else None,
        display_name=_label(more, "display_name"),
        category=_label(more, "category"),
        version=_label(more, "version"),
        tags=_tags(more.get("tags")),
        trigger_type=_trigger_type(more.get("trigger_type")),
        trigger_patterns=_patterns(more.get("triggers")),
    )


def _name(front: dict[str, Any]) -> str:
    name = unicodedata.normalize("NFKC", _text(front, "name", MAX_NAME))
    parts = name.replace("_", "-").split("-")
    if name != name.lower() or len(name) > MAX_NAME or not all(part.isalnum() for part in parts):
        raise InvalidInput("its name may only have lower case letters, digits and single hyphens inside")
    return name


def _front_matter(text: str) -> dict[str, Any]:
    """Scalars are text: a name may look like a number, and a version like a date."""
    _check_size(text)
    _check_keys(text)
    front = yaml.load(text, Loader=yaml.BaseLoader)
    if not isinstance(front, dict):
        raise InvalidInput("the front matter does not consist of keys with values")
    return cast("dict[str, Any]", front)


def _check_size(text: str) -> None:
    """Refuses front matter that takes much time or memory to parse, such as nested aliases."""
    if len(text) > MAX_FRONT_CHARACTERS:
        raise InvalidInput(
            f"the front matter has {len(text)} characters; the limit is {MAX_FRONT_CHARACTERS}"
        )
    too_deep = InvalidInput("the front matter is nested too deeply")
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise too_deep
    depth = 0
    events = cast("Iterator[object]", yaml.parse(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    for number, event in enumerate(events):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidInput("the front matter uses a YAML alias, which is not supported")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or number > MAX_EVENTS:
            raise too_deep


def _check_keys(text: str) -> None:
    """Refuses duplicate keys and misspellings of `allowed-tools`, which would leave all tools allowed."""
    node = cast("Any", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(node, yaml.MappingNode):
        return
    pairs = cast("list[tuple[Any, Any]]", node.value)
    keys = Counter(str(key.value) for key, _value in pairs)
    nodes = {str(key.value): value for key, value in pairs}
    if _TOOLS_KEY in keys and "tools" in keys:
        raise InvalidInput(f"the front matter has both tools and {_TOOLS_KEY}; keep one of them")
    for key, times in keys.items():
        if times > 1 or key == "<<":
            raise InvalidInput(f"the front matter has {key[:80]} more than once, or merges keys")
        plain = re.sub("[^a-z]", "", key.lower())
        if key == _TOOLS_KEY and nodes[key].value == "" and nodes[key].style is None:
            raise InvalidInput(f"{key} must be tools in one line, or a list of them; leave it out for all")
        similarity = difflib.SequenceMatcher(None, plain, _TOOLS_KEY.replace("-", "")).ratio()
        if key != _TOOLS_KEY and similarity >= _SIMILARITY:
            raise InvalidInput(f"the front matter has {key[:80]}; if you mean {_TOOLS_KEY}, correct the key")


def _text(front: Mapping[str, Any], key: str, most: int) -> str:
    value = front.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"the front matter needs a {key}, as text")
    if len(value) > most:
        raise InvalidInput(f"its {key} has {len(value)} characters; the limit is {most}")
    if _NO_TEXT.search(value):
        raise InvalidInput(f"its {key} contains control characters or invalid Unicode")
    return value.strip()


def _label(values: Mapping[str, Any], key: str) -> str | None:
    """A short text, such as a version; None if it is missing or no text."""
    value = values.get(key)
    return printable(value).strip()[:MAX_LABEL] or None if isinstance(value, str) else None


def _tags(value: Any) -> tuple[str, ...]:
    given = cast("list[Any]", value) if isinstance(value, list) else str(value or "").split(",")
    named = [printable(str(tag)).strip()[:MAX_LABEL] for tag in given[:MAX_LABELS]]
    return tuple(dict.fromkeys(tag for tag in named if tag))


def _trigger_type(value: Any) -> TriggerType:
    if value is None:
        return TriggerType.HYBRID
    try:
        return TriggerType(value)
    except ValueError as error:
        raise InvalidInput(f"its trigger_type must be one of {', '.join(TriggerType)}") from error


def _patterns(value: Any) -> tuple[Trigger, ...]:
    """The triggers: phrases, or mappings with a pattern and a weight; also one phrase in each line."""
    given = str(value or "").splitlines() if value is None or isinstance(value, str) else value
    if not isinstance(given, list):
        raise InvalidInput("its triggers must be a list of phrases")
    phrases = cast("list[Any]", given)
    if len(phrases) > MAX_TRIGGERS:
        raise InvalidInput(f"it has more than {MAX_TRIGGERS} triggers")
    return tuple(_pattern(phrase) for phrase in phrases if phrase != "")


def _pattern(value: Any) -> Trigger:
    given: Any = {"pattern": value} if isinstance(value, str) else value
    try:
        pattern = msgspec.convert(given, Trigger, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"a trigger is a phrase of at most {MAX_PATTERN} characters, or a pattern with a weight from "
            f"{LEAST_WEIGHT} to {MAX_WEIGHT}"
        ) from error
    if _NO_TEXT.search(pattern.pattern) or not pattern.pattern.strip():
        raise InvalidInput("a trigger has no text, or contains control characters or invalid Unicode")
    return pattern


def _allowed_tools(front: dict[str, Any]) -> tuple[str, ...] | None:
    """The entries, from one line or a list; None if the key is missing. A key without a value is refused."""
    key = _TOOLS_KEY if _TOOLS_KEY in front else "tools"
    if key not in front:
        return None
    value = front[key]
    if isinstance(value, str):
        entries = entries_in(value)
    elif isinstance(value, list) and all(isinstance(item, str) for item in cast("list[Any]", value)):
        entries = [item.strip() for item in cast("list[str]", value)]
    else:
        raise InvalidInput(f"{key} must be tools in one line, or a list of them; leave it out for all")
    check_entries(entries)
    return tuple(entries)


def check_entries(entries: Sequence[str]) -> None:
    """Raises InvalidInput for entries that `allowed-tools` cannot have."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(f"allowed-tools has more than {MAX_ENTRIES} entries")
    for entry in entries:
        if _NO_TEXT.search(entry):
            raise InvalidInput("allowed-tools contains control characters or invalid Unicode")
        check_entry(entry)


def warning_of(document: SkillDocument, folder: str | None) -> str | None:
    """What is said about a skill that works otherwise than it was meant, or whose folder has another name."""
    found: list[str] = []
    if folder is not None and skill_key(document.name) != skill_key(folder):
        found.append(f"its name is {document.name}, but its folder's is {folder}; the name counts")
    return printable("; ".join(found))[:500] or None
