"""The shelf: the skills of a server, read once from the folders that its configuration names.

A change of a folder counts after the next start, as that of a module with tools does.
"""

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import structlog

from luxx.skills.folder import BrokenSkill, Skill, printable, read_skill

MOST_SKILLS = 200
"""On one server: all their names and descriptions stand in the prompt of runs that may activate one."""

MOST_FOLDERS = 500
"""Read of one directory; a start waits for all of them."""

INTRODUCTION = files("luxx.skills").joinpath("prompt.md").read_text("utf-8").strip()

logger = structlog.get_logger()


class Shelf:
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


def read_shelf(directories: Iterable[str], data_dir: Path) -> Shelf:
    """What is in these directories, a relative one being in `data_dir`. Of one name the first counts."""
    skills: dict[str, Skill] = {}
    broken: list[BrokenSkill] = []
    missing: list[str] = []
    for given in directories:
        directory = data_dir / Path(given).expanduser()
        for name in _folders(directory, given, broken, missing):
            found = read_skill(directory, name)
            if isinstance(found, Skill):
                found = _placed(found, skills)
            if isinstance(found, BrokenSkill):
                broken.append(found)
    return Shelf(skills.values(), broken[:MOST_SKILLS], missing)


def tell_of(shelf: Shelf) -> None:
    """Logs what is wrong, at a start."""
    for one in shelf.broken:
        logger.warning("skill_broken", skill=one.name, problem=one.problem)
    for directory in shelf.missing:
        logger.info("skill_directory_missing", directory=directory)


def _folders(directory: Path, given: str, broken: list[BrokenSkill], missing: list[str]) -> list[str]:
    """The names of those that may hold a skill."""
    try:
        names = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
    except OSError:
        missing.append(given)
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
            problem = f"{MOST_FOLDERS} folders of a directory are read, and there are more of them in {given}"
            broken.append(BrokenSkill(name=printable(name), problem=printable(problem)))
            break
        if is_folder:
            folders.append(name)
    return folders


def _placed(skill: Skill, skills: dict[str, Skill]) -> BrokenSkill | None:
    """Puts it on the shelf, or says why it cannot stand there."""
    if skill.name in skills:
        return BrokenSkill(name=skill.name, problem="an earlier directory has a skill of this name")
    if len(skills) >= MOST_SKILLS:
        return BrokenSkill(name=printable(skill.name), problem=f"there are {MOST_SKILLS} skills before it")
    skills[skill.name] = skill
    return None
