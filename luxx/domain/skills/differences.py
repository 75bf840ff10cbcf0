"""What differs between two versions of a skill: lines of its SKILL.md, and its other files."""

from collections.abc import Mapping, Sequence
from difflib import unified_diff
from enum import StrEnum
from itertools import islice

import msgspec

from luxx.domain.skills.document import FILE, printable

MOST_LINES = 1_000
"""Of each text that are compared line by line, without what both begin and end with. Finding the lines that
two texts share can take the square of their number."""

CONTEXT = 3


class Against(StrEnum):
    """What a skill is compared with: its files as an ADMIN reviewed them, or the skill that it hides."""

    REVIEWED = "reviewed"
    HIDDEN = "hidden"


class FileChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class SkillFileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a skill that only one of two versions has, or that differs."""

    path: str
    change: FileChangeKind


class SkillDifferences(msgspec.Struct, frozen=True, kw_only=True):
    """`text`: the changed lines of the SKILL.md with some around them, each after `+`, `-` or a space, the
    places apart from each other by `@@`; empty if it is the same. `files`: the others, by path."""

    text: str
    files: list[SkillFileChange]


def differences(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> SkillDifferences:
    """What was changed from one version to the other."""
    changes = [
        SkillFileChange(path=path, change=_kind(before.get(path), after.get(path)))
        for path in sorted({*before, *after} - {FILE})
        if before.get(path) != after.get(path)
    ]
    return SkillDifferences(text=_diff(before.get(FILE, b""), after.get(FILE, b"")), files=changes)


def _kind(before: bytes | None, after: bytes | None) -> FileChangeKind:
    if before is None:
        return FileChangeKind.ADDED
    return FileChangeKind.REMOVED if after is None else FileChangeKind.CHANGED


def _diff(before: bytes, after: bytes) -> str:
    old, new = (
        [printable(line) for line in text.decode("utf-8", "replace").splitlines()] for text in (before, after)
    )
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    if max(len(old), len(new)) - start - end > MOST_LINES:
        middle = (f"-{line}" for line in old[start : len(old) - end])
        return "\n".join([*middle, *(f"+{line}" for line in new[start : len(new) - end])])
    first, behind = max(0, start - CONTEXT), max(0, end - CONTEXT)
    old, new = old[first : len(old) - behind], new[first : len(new) - behind]
    # Without the two lines that name the files, and without numbers of lines: the beginning is left out.
    lines = islice(unified_diff(old, new, n=CONTEXT, lineterm=""), 2, None)
    text = "\n".join("@@" if line.startswith("@@") else line for line in lines)
    return text or ("" if before == after else "@@ only the ends of lines differ @@")


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines both begin with."""
    length = min(len(one), len(other))
    return next((index for index in range(length) if one[index] != other[index]), length)
