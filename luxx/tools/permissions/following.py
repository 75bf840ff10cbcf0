"""Where a path of the workspace leads, for rules about paths: links are followed as file tools follow them.

What is found holds for the moment of the look: between it and the tool's own opening, a program that runs
meanwhile may put a link in place. That nothing outside of the workspace is opened holds always (confine).
"""

import os
import stat
from pathlib import PurePath

import msgspec

from luxx.tools.permissions.subjects import Part, Subject

MOST_LINKS = 40
"""As many as Linux follows."""

MOST_STEPS = 400
"""Of one path with all its links; each asks the file system once."""

_SEVERAL = "it is a file of several names (hard links), and what the others are is not known"
_OUT = "it leads out of the workspace"
_UNKNOWN = "where it leads cannot be told"


class _Lost(Exception):
    """It cannot be told where the path leads, in words."""


def followed(subject: Subject, workspace: PurePath) -> Subject:
    """The subject with what its path leads to as one more part, where that is another path."""
    if subject.problem is not None or len(subject.parts) != 1:
        return subject
    given = subject.parts[0].text
    try:
        found, is_several = _walk(os.path.abspath(workspace), given)
    except _Lost as lost:
        return msgspec.structs.replace(subject, problem=str(lost), usual=f"={subject.given}")
    if found != given:
        parts = (*subject.parts, Part(text=found, is_target=True))
        subject = msgspec.structs.replace(subject, parts=parts, usual=f"={subject.given}")
    return msgspec.structs.replace(subject, problem=_SEVERAL) if is_several else subject


def _walk(root: str, path: str) -> tuple[str, bool]:
    """The path without links, and whether a file is there that has more names. Raises _Lost."""
    waiting, here = path.split("/")[::-1], list[str]()
    links = steps = 0
    is_several = False
    while waiting:
        name = waiting.pop()
        steps += 1
        if steps > MOST_STEPS or links > MOST_LINKS:
            raise _Lost(_UNKNOWN)
        if name in ("", "."):
            continue
        if name == "..":
            if not here:
                raise _Lost(_OUT)
            here.pop()
            continue
        place = os.path.join(root, *here, name)
        status = _status(place)
        if status is not None and stat.S_ISLNK(status.st_mode):
            links += 1
            waiting += _target(place).split("/")[::-1]
            continue
        here.append(name)
        is_several = status is not None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    return os.fsencode("/".join(here) or ".").decode("utf-8", "replace"), is_several


def _status(place: str) -> os.stat_result | None:
    """None where nothing is. Raises _Lost."""
    try:
        return os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _Lost(_UNKNOWN) from error


def _target(place: str) -> str:
    try:
        target = os.readlink(place)
    except OSError as error:
        raise _Lost(_UNKNOWN) from error
    if target.startswith("/"):
        raise _Lost(_OUT)
    return target
