"""The skills of the server's directories: reading the folders, and reading changed ones again.

A broken skill becomes a BrokenSkill with a sentence, and does not affect the others.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from threading import Lock

import msgspec
import structlog

from luxx.domain.routing.listing import ListedPart, use_rank
from luxx.domain.skills.document import (
    FILE,
    MAX_FILE_BYTES,
    OTHER_FILE,
    printable,
    read_document,
    warning_of,
)
from luxx.domain.skills.skill import SYSTEM_ID, BrokenSkill, Skill, SkillScope, SkillSet
from luxx.errors import InvalidInput, ToolFailed
from luxx.tools.files.workspace import Workspace
from luxx.wire.tool import skill_key

BUILTIN = "builtin"
"""Among the directories of the configuration: the skills that come with Luxx."""

_SHIPPED = Path(__file__).parent / "shipped"

MOST_SKILLS = 200
"""Skills of one layer: the prompt of each run that may activate one has all names and descriptions."""

MOST_FOLDERS = 500
"""Folders of one directory that are read; the start of the server waits for them."""

LOOK_SECONDS = 2.0
"""Folders are compared at most this often."""

INTRODUCTION = files("luxx.domain.skills").joinpath("prompt.md").read_text("utf-8").strip()

Stamp = tuple[int, ...] | None
"""What changes with a file; None: it cannot be read."""

KeepText = Callable[[str, bytes], None]
"""Keeps the text of a SKILL.md with this digest for the runs that begin with it."""

logger = structlog.get_logger()


class SkillFolders(msgspec.Struct, frozen=True, kw_only=True):
    """The skills of the directories at one time; `broken` folders with their problems, and configured but
    `missing` directories."""

    skills: SkillSet
    broken: Sequence[BrokenSkill] = ()
    missing: Sequence[str] = ()


def listed_skills(
    skills: SkillSet, names: Collection[str] | None = None, uses: Mapping[str, int] | None = None
) -> ListedPart:
    """What the system prompt says of the skills, all or those of these names, the nearer layers first; not of
    those that only people activate.
    `uses`: of the tenant, by name in the form in which names are compared."""
    usable = (skill for skill in skills.named(names) if not skill.is_for_people)
    listed = sorted(usable, key=lambda skill: skill.scope.distance)
    entries = tuple((skill.name, skill.description) for skill in listed)
    ranks = tuple(use_rank(uses.get(skill_key(skill.name), 0)) for skill in listed) if uses else ()
    return ListedPart(noun="skill", introduction=INTRODUCTION, entries=entries, ranks=ranks)


def _file_in(folder: Path) -> str:
    if not os.path.lexists(folder / FILE) and os.path.lexists(folder / OTHER_FILE):
        return OTHER_FILE
    return FILE


def read_skill(directory: Path, name: str, keep: KeepText | None = None) -> Skill | BrokenSkill:
    """The skill in the folder `name` of `directory`. Links that lead out of the folder are refused."""
    try:
        content = Workspace(directory / name).read(_file_in(directory / name), MAX_FILE_BYTES)
        skill = system_skill(content, directory / name)
    except (ToolFailed, InvalidInput) as error:
        return BrokenSkill(name=printable(name), problem=printable(error.message)[:500])
    if keep is not None:
        keep(skill.digest, content)
    return skill


def system_skill(content: bytes, folder: Path) -> Skill:
    """The skill of a folder of the server with this SKILL.md. Raises InvalidInput."""
    document = read_document(content)
    return Skill(
        **msgspec.structs.asdict(document),
        id=f"{SYSTEM_ID}{document.name}",
        scope=SkillScope.SYSTEM,
        digest=sha256(content).hexdigest(),
        folder=folder,
        warning=warning_of(document, folder.name),
    )


class SkillDirectories:
    """The skills of these directories, as they are on disk: changed folders are read again.

    Relative paths are below `data_dir`, and `builtin` names the skills that come with Luxx. The first of a
    name counts.
    """

    def __init__(self, directories: Iterable[str], data_dir: Path, keep: KeepText | None = None) -> None:
        self._directories = [
            (configured, _SHIPPED if configured == BUILTIN else data_dir / Path(configured).expanduser())
            for configured in directories
        ]
        self._keep = keep
        self._read: dict[tuple[Path, str], tuple[Stamp, Skill | BrokenSkill]] = {}
        self._stamps: Sequence[object] = ()
        self._lock = Lock()
        self.latest = SkillFolders(skills=SkillSet())
        self._look()

    def current(self) -> SkillFolders:
        """The skills; the same object as long as nothing changes. May read the disk."""
        if time.monotonic() >= self.next_look and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self.latest

    def _look(self) -> None:
        broken: list[BrokenSkill] = []
        missing: list[str] = []
        found: list[tuple[Path, str]] = []
        for configured, directory in self._directories:
            found += [(directory, name) for name in _folders(directory, configured, broken, missing)]
        stamps = [(*one, _stamp(one[0] / one[1] / _file_in(one[0] / one[1]))) for one in found]
        seen = [stamps, broken, missing]
        if seen != self._stamps:
            self.latest = self._folders(stamps, list(broken), missing)
            self._stamps = seen
        self.next_look = time.monotonic() + LOOK_SECONDS

    def _folders(
        self, stamps: list[tuple[Path, str, Stamp]], broken: list[BrokenSkill], missing: list[str]
    ) -> SkillFolders:
        skills: dict[str, Skill] = {}
        read: dict[tuple[Path, str], tuple[Stamp, Skill | BrokenSkill]] = {}
        for directory, name, stamp in stamps:
            known = self._read.get((directory, name))
            if known is None or known[0] != stamp or stamp is None:
                known = (stamp, read_skill(directory, name, self._keep))
            read[directory, name] = known
            problem = known[1] if isinstance(known[1], BrokenSkill) else _add_skill(known[1], skills)
            if problem is not None:
                broken.append(problem)
        folders = SkillFolders(skills=SkillSet(skills.values()), broken=broken[:MOST_SKILLS], missing=missing)
        if self._stamps:
            log_problems(folders, self.latest)
        self._read = read
        return folders


def read_skills(directories: Iterable[str], data_dir: Path) -> SkillFolders:
    """The skills of these directories now."""
    return SkillDirectories(directories, data_dir).current()


def log_problems(folders: SkillFolders, before: SkillFolders | None = None) -> None:
    """Logs broken skills and missing directories, those that were not there before."""
    for one in folders.broken:
        if before is None or one not in before.broken:
            logger.warning("skill_broken", skill=one.name, problem=one.problem)
    for directory in folders.missing:
        if before is None or directory not in before.missing:
            logger.info("skill_directory_missing", directory=directory)


def _stamp(path: Path) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


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
    key = skill_key(skill.name)
    if key in skills:
        return BrokenSkill(name=skill.name, problem="an earlier directory or folder has a skill of this name")
    if len(skills) >= MOST_SKILLS:
        return BrokenSkill(name=skill.name, problem=f"the limit of {MOST_SKILLS} skills is reached")
    skills[key] = skill
    return None
