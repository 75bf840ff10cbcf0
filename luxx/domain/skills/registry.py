"""Reads skills from directories: `SKILL.md` with front matter, in the public Agent Skills format.

A broken skill becomes a BrokenSkill with a sentence, and does not affect the others.
"""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import msgspec
import structlog
import yaml
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import InvalidInput, ToolFailed
from luxx.tools.files.workspace import Workspace
from luxx.tools.permissions.rules import MAX_ENTRIES, check_entry, entries_in
from luxx.wire.tool import SkillHead

FILE = "SKILL.md"
BUILTIN = "builtin"
"""Among the directories of the configuration: the skills that come with Luxx."""

_SHIPPED = Path(__file__).parent / "shipped"
MAX_FILE_BYTES = 40 * 1024
"""Tool results of this size are never cut; longer instructions belong into other files."""

MAX_FRONT_CHARACTERS = 8 * 1024
MAX_DEPTH, MAX_EVENTS, MAX_BRACKETS = 20, 2_000, 100
"""Bounds of the front matter, because parsing small YAML can take much time."""

MAX_NAME, MAX_DESCRIPTION, MAX_LICENSE = 64, 1024, 500

_TOOLS_KEY = "allowed-tools"
_SIMILARITY = 0.8
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n(.*))?\Z", re.DOTALL | re.MULTILINE)
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class Skill(SkillHead, frozen=True, kw_only=True):
    """A skill that can be activated; `folder` is a path of the host, which no API or model sees."""

    instructions: str
    folder: Path
    license: str | None = None


class BrokenSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A folder without a usable skill; `problem` says why."""

    name: str
    problem: str


def read_skill(directory: Path, name: str) -> Skill | BrokenSkill:
    """The skill in the folder `name` of `directory`. Links that lead out of the folder are refused."""
    try:
        text = Workspace(directory / name).read(FILE, MAX_FILE_BYTES).decode("utf-8")
        return _skill(text.removeprefix("\ufeff").replace("\r\n", "\n"), directory / name)
    except (ToolFailed, InvalidInput) as error:
        problem = error.message
    except UnicodeDecodeError:
        problem = f"{FILE} is not UTF-8 text"
    except yaml.YAMLError as error:
        problem = f"the front matter is not valid YAML: {' '.join(str(error).split())}"
    except Exception as error:
        # PyYAML raises errors of any type, for example for a value that does not fit its type tag.
        problem = f"the front matter holds a value that cannot be read ({type(error).__name__})"
    return BrokenSkill(name=printable(name), problem=printable(problem)[:500])


def printable(text: str) -> str:
    """The text with U+FFFD in place of characters that databases and JSON answers do not accept."""
    return _NO_TEXT.sub("\ufffd", text)


def _skill(text: str, folder: Path) -> Skill:
    match = _FRONT_MATTER.match(text)
    if match is None:
        raise InvalidInput(f"{FILE} does not begin with front matter between two lines of ---")
    front = _front_matter(match[1])
    name = _text(front, "name", MAX_NAME)
    if not _NAME.fullmatch(name):
        raise InvalidInput("its name may only have lower case letters, digits and single hyphens inside")
    if name != folder.name:
        raise InvalidInput(f"its name is {name}, but its folder's is {folder.name}; they must be the same")
    description = _text(front, "description", MAX_DESCRIPTION)
    instructions = (match[2] or "").strip()
    if not instructions:
        raise InvalidInput(f"{FILE} has no instructions below its front matter")
    return Skill(
        name=name,
        description=" ".join(description.split()),
        allowed_tools=_allowed_tools(front),
        instructions=printable(instructions),
        folder=folder,
        license=_text(front, "license", MAX_LICENSE) if front.get("license") is not None else None,
    )


def _front_matter(text: str) -> dict[str, Any]:
    _check_size(text)
    _check_keys(text)
    try:
        front = yaml.safe_load(text)
    except (ValueError, OverflowError) as error:
        # For example the date 2026-06-31.
        raise InvalidInput(f"the front matter holds a value that cannot be read: {error}") from error
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
    for key, times in keys.items():
        if times > 1 or key == "<<":
            raise InvalidInput(f"the front matter has {key[:80]} more than once, or merges keys")
        plain = re.sub("[^a-z]", "", key.lower())
        similarity = difflib.SequenceMatcher(None, plain, _TOOLS_KEY.replace("-", "")).ratio()
        if key != _TOOLS_KEY and similarity >= _SIMILARITY:
            raise InvalidInput(f"the front matter has {key[:80]}; if you mean {_TOOLS_KEY}, correct the key")


def _text(front: dict[str, Any], key: str, most: int) -> str:
    value = front.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"the front matter needs a {key}, as text")
    if len(value) > most:
        raise InvalidInput(f"its {key} has {len(value)} characters; the limit is {most}")
    if _NO_TEXT.search(value):
        raise InvalidInput(f"its {key} contains control characters or invalid Unicode")
    return value.strip()


def _allowed_tools(front: dict[str, Any]) -> tuple[str, ...] | None:
    """The entries, from one line or a list; None if the key is missing. A key without a value is refused."""
    if _TOOLS_KEY not in front:
        return None
    value = front[_TOOLS_KEY]
    if isinstance(value, str):
        entries = entries_in(value)
    elif isinstance(value, list) and all(isinstance(item, str) for item in cast("list[Any]", value)):
        entries = [item.strip() for item in cast("list[str]", value)]
    else:
        raise InvalidInput("allowed-tools must be tools in one line, or a list of them; leave it out for all")
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(f"allowed-tools has more than {MAX_ENTRIES} entries")
    for entry in entries:
        if _NO_TEXT.search(entry):
            raise InvalidInput("allowed-tools contains control characters or invalid Unicode")
        check_entry(entry)
    return tuple(entries)


MOST_SKILLS = 200
"""Skills of one server: the prompt of each run that may activate one has all names and descriptions."""

MOST_FOLDERS = 500
"""Folders of one directory that are read; the start of the server waits for them."""

INTRODUCTION = files("luxx.domain.skills").joinpath("prompt.md").read_text("utf-8").strip()

logger = structlog.get_logger()


class SkillRegistry:
    """The skills of the server's directories; `broken` folders with their problems, and configured but
    `missing` directories."""

    def __init__(
        self, skills: Iterable[Skill] = (), broken: Iterable[BrokenSkill] = (), missing: Iterable[str] = ()
    ) -> None:
        self.skills: Mapping[str, Skill] = {skill.name: skill for skill in skills}
        self.broken = list(broken)
        self.missing = list(missing)

    def for_caller(self, session: Session, caller: Caller) -> Mapping[str, Skill]:
        """The skills that the caller may use, by name. Those of directories are for everyone."""
        return self.skills

    @property
    def folders(self) -> tuple[tuple[str, Path], ...]:
        """The name and the real path of each skill's folder."""
        return tuple((skill.name, skill.folder.resolve()) for skill in self.skills.values())


def skills_prompt(skills: Mapping[str, Skill], names: Collection[str] | None = None) -> str:
    """The part of the system prompt that lists the skills, all or those of these names; may be empty."""
    listed = [skill for skill in skills.values() if names is None or skill.name in names]
    if not listed:
        return ""
    return "\n".join([INTRODUCTION, "", *(f"- {skill.name}: {skill.description}" for skill in listed)])


def read_skills(directories: Iterable[str], data_dir: Path) -> SkillRegistry:
    """The skills of these directories; relative paths are below `data_dir`, and `builtin` names those that
    come with Luxx. The first of a name counts."""
    skills: dict[str, Skill] = {}
    broken: list[BrokenSkill] = []
    missing: list[str] = []
    for configured in directories:
        directory = _SHIPPED if configured == BUILTIN else data_dir / Path(configured).expanduser()
        for name in _folders(directory, configured, broken, missing):
            skill: Skill | BrokenSkill | None = read_skill(directory, name)
            if isinstance(skill, Skill):
                skill = _add_skill(skill, skills)
            if skill is not None:
                broken.append(skill)
    return SkillRegistry(skills.values(), broken[:MOST_SKILLS], missing)


def log_problems(skill_registry: SkillRegistry) -> None:
    """Logs broken skills and missing directories."""
    for one in skill_registry.broken:
        logger.warning("skill_broken", skill=one.name, problem=one.problem)
    for directory in skill_registry.missing:
        logger.info("skill_directory_missing", directory=directory)


def _folders(directory: Path, configured: str, broken: list[BrokenSkill], missing: list[str]) -> list[str]:
    """The names of the folders that may hold a skill; adds problems to `broken` and `missing`."""
    try:
        names = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
    except OSError:
        missing.append(configured)
        return []
    folders: list[str] = []
    for name in names:
        try:
            is_folder = (directory / name).is_dir()
        except OSError as error:
            # For example a link into a directory without read permission.
            broken.append(BrokenSkill(name=printable(name), problem=f"it cannot be read: {error.strerror}"))
            continue
        if is_folder and len(folders) == MOST_FOLDERS:
            problem = f"{configured} has more than {MOST_FOLDERS} folders; only the first ones are read"
            broken.append(BrokenSkill(name=printable(name), problem=printable(problem)))
            break
        if is_folder:
            folders.append(name)
    return folders


def _add_skill(skill: Skill, skills: dict[str, Skill]) -> BrokenSkill | None:
    """Adds the skill to `skills`, or returns why it cannot be added."""
    if skill.name in skills:
        return BrokenSkill(name=skill.name, problem="an earlier directory has a skill of this name")
    if len(skills) >= MOST_SKILLS:
        return BrokenSkill(
            name=printable(skill.name), problem=f"the limit of {MOST_SKILLS} skills is reached"
        )
    skills[skill.name] = skill
    return None
