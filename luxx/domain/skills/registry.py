"""A skill's folder as it is read: `SKILL.md` with its front matter, in the public Agent Skills format.

What is wrong with one is said in a sentence, and stops nothing. Not here: which folders there are (shelf).
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import msgspec
import structlog
import yaml

from luxx.errors import InvalidInput, ToolFailed
from luxx.tools.files.workspace import Workspace
from luxx.tools.permissions.narrowing import MAX_ENTRIES, check_entry, entries_in
from luxx.wire.rule import SkillHead

FILE = "SKILL.md"
MAX_FILE_BYTES = 40 * 1024
"""So that the answer that brings the instructions is never cut; more belongs into other files."""

MAX_FRONT_CHARACTERS = 8 * 1024
MAX_DEPTH, MAX_EVENTS, MAX_BRACKETS = 20, 2_000, 100
"""Of the front matter; it costs a YAML parser much more to read on than its size tells."""

MAX_NAME, MAX_DESCRIPTION, MAX_LICENSE = 64, 1024, 500

_TOOLS_KEY = "allowed-tools"
_SIMILARITY = 0.8
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n(.*))?\Z", re.DOTALL | re.MULTILINE)
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class Skill(SkillHead, frozen=True, kw_only=True):
    """A skill that can be activated; `folder` is a path of the host, and never told."""

    instructions: str
    folder: Path
    license: str | None = None


class BrokenSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that holds no skill that can be used, and why."""

    name: str
    problem: str


def read_skill(directory: Path, name: str) -> Skill | BrokenSkill:
    """The skill in the folder `name` of `directory`, from which no link leads out."""
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
        # Of a value that its type does not take, for example, PyYAML raises whatever it stumbles over.
        problem = f"the front matter holds a value that cannot be read ({type(error).__name__})"
    return BrokenSkill(name=printable(name), problem=printable(problem)[:500])


def printable(text: str) -> str:
    """The text with what no database and no answer takes replaced."""
    return _NO_TEXT.sub("\ufffd", text)


def _skill(text: str, folder: Path) -> Skill:
    found = _FRONT_MATTER.match(text)
    if found is None:
        raise InvalidInput(f"{FILE} does not begin with front matter between two lines of ---")
    front = _front_matter(found[1])
    name = _text(front, "name", MAX_NAME)
    if not _NAME.fullmatch(name):
        raise InvalidInput("its name must be small letters, digits and single hyphens between them")
    if name != folder.name:
        raise InvalidInput(f"its name is {name}, but its folder's is {folder.name}; they must be the same")
    description = _text(front, "description", MAX_DESCRIPTION)
    instructions = (found[2] or "").strip()
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
        # A date of the 31st of June, for example.
        raise InvalidInput(f"the front matter holds a value that cannot be read: {error}") from error
    if not isinstance(front, dict):
        raise InvalidInput("the front matter is not a list of keys and values")
    return cast("dict[str, Any]", front)


def _check_size(text: str) -> None:
    """That it can be read in little time and memory: a few aliases of aliases fill any memory."""
    if len(text) > MAX_FRONT_CHARACTERS:
        raise InvalidInput(f"the front matter has {len(text)} characters; {MAX_FRONT_CHARACTERS} are taken")
    too_deep = InvalidInput("the front matter is nested too deeply")
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise too_deep
    depth = 0
    events = cast("Iterator[object]", yaml.parse(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    for number, event in enumerate(events):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidInput("the front matter uses a YAML alias, which is not taken")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or number > MAX_EVENTS:
            raise too_deep


def _check_keys(text: str) -> None:
    """That no slip in a key leaves all tools allowed: one written twice, or only nearly right."""
    node = cast("Any", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(node, yaml.MappingNode):
        return
    pairs = cast("list[tuple[Any, Any]]", node.value)
    keys = Counter(str(key.value) for key, _value in pairs)
    for key, times in keys.items():
        if times > 1 or key == "<<":
            raise InvalidInput(f"the front matter has {key[:80]} more than once, or merges keys")
        plain = re.sub("[^a-z]", "", key.lower())
        likeness = difflib.SequenceMatcher(None, plain, _TOOLS_KEY.replace("-", "")).ratio()
        if key != _TOOLS_KEY and likeness >= _SIMILARITY:
            raise InvalidInput(f"the front matter has {key[:80]}, which may be a slip for {_TOOLS_KEY}")


def _text(front: dict[str, Any], key: str, most: int) -> str:
    value = front.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"the front matter needs a {key}, as text")
    if len(value) > most:
        raise InvalidInput(f"its {key} has {len(value)} characters; {most} are taken")
    if _NO_TEXT.search(value):
        raise InvalidInput(f"its {key} holds characters that are no text")
    return value.strip()


def _allowed_tools(front: dict[str, Any]) -> tuple[str, ...] | None:
    """The entries, written as one line or as a list. A key without a value may be a slip: it is refused."""
    if _TOOLS_KEY not in front:
        return None
    value = front[_TOOLS_KEY]
    if isinstance(value, str):
        entries = entries_in(value)
    elif isinstance(value, list) and all(isinstance(one, str) for one in cast("list[Any]", value)):
        entries = [one.strip() for one in cast("list[str]", value)]
    else:
        raise InvalidInput("allowed-tools must be tools in one line, or a list of them; leave it out for all")
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(f"allowed-tools has more than {MAX_ENTRIES} entries")
    for entry in entries:
        if _NO_TEXT.search(entry):
            raise InvalidInput("allowed-tools holds characters that are no text")
        check_entry(entry)
    return tuple(entries)


MOST_SKILLS = 200
"""On one server: all their names and descriptions stand in the prompt of runs that may activate one."""

MOST_FOLDERS = 500
"""Read of one directory; a start waits for all of them."""

INTRODUCTION = files("luxx.domain.skills").joinpath("prompt.md").read_text("utf-8").strip()

logger = structlog.get_logger()


class SkillRegistry:
    """`skills` can be activated, by name; `broken` folders cannot; `missing` directories are not there."""

    def __init__(
        self, skills: Iterable[Skill] = (), broken: Iterable[BrokenSkill] = (), missing: Iterable[str] = ()
    ) -> None:
        self.skills = {skill.name: skill for skill in skills}
        self.broken = list(broken)
        self.missing = list(missing)

    @property
    def prompt(self) -> str:
        """What a model is told of the skills before it activates one; empty where there is none."""
        if not self.skills:
            return ""
        lines = [f"- {skill.name}: {skill.description}" for skill in self.skills.values()]
        return "\n".join([INTRODUCTION, "", *lines])


def read_skills(directories: Iterable[str], data_dir: Path) -> SkillRegistry:
    """What is in these directories, a relative one being in `data_dir`. Of one name the first counts."""
    skills: dict[str, Skill] = {}
    broken: list[BrokenSkill] = []
    missing: list[str] = []
    for configured in directories:
        directory = data_dir / Path(configured).expanduser()
        for name in _folders(directory, configured, broken, missing):
            found = read_skill(directory, name)
            if isinstance(found, Skill):
                found = _add_skill(found, skills)
            if isinstance(found, BrokenSkill):
                broken.append(found)
    return SkillRegistry(skills.values(), broken[:MOST_SKILLS], missing)


def log_problems(skill_registry: SkillRegistry) -> None:
    """Logs what is wrong, at a start."""
    for one in skill_registry.broken:
        logger.warning("skill_broken", skill=one.name, problem=one.problem)
    for directory in skill_registry.missing:
        logger.info("skill_directory_missing", directory=directory)


def _folders(directory: Path, configured: str, broken: list[BrokenSkill], missing: list[str]) -> list[str]:
    """The names of those that may hold a skill."""
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
            # A link into a directory that is closed to us, for example.
            broken.append(BrokenSkill(name=printable(name), problem=f"it cannot be read: {error.strerror}"))
            continue
        if is_folder and len(folders) == MOST_FOLDERS:
            problem = (
                f"{MOST_FOLDERS} folders of a directory are read, and there are more of them in {configured}"
            )
            broken.append(BrokenSkill(name=printable(name), problem=printable(problem)))
            break
        if is_folder:
            folders.append(name)
    return folders


def _add_skill(skill: Skill, skills: dict[str, Skill]) -> BrokenSkill | None:
    """Puts it on the shelf, or says why it cannot stand there."""
    if skill.name in skills:
        return BrokenSkill(name=skill.name, problem="an earlier directory has a skill of this name")
    if len(skills) >= MOST_SKILLS:
        return BrokenSkill(name=printable(skill.name), problem=f"there are {MOST_SKILLS} skills before it")
    skills[skill.name] = skill
    return None
