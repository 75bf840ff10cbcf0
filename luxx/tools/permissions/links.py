"""Resolves the symbolic links of a workspace path, for rules about paths, like the file tools do.

The result can be outdated when the tool opens the path, because a program may create a link in between.
`files.workspace` still never opens anything outside of the workspace.
"""

import os
import stat
from pathlib import PurePath

import msgspec

from luxx.tools.permissions.subjects import Subject, SubjectPart

MAX_LINKS = 40
"""The limit of Linux."""

MAX_LOOKUPS = 400
"""File system lookups per path, including its links."""

_HAS_HARD_LINKS = "the file has several hard links, and the other paths are not known"
_LEAVES_WORKSPACE = "it leads out of the workspace"
_UNRESOLVABLE = "the path cannot be resolved"


class _UnresolvablePath(Exception):
    """The path cannot be resolved; the message says why."""


def resolve_links(subject: Subject, workspace: PurePath) -> Subject:
    """The subject with the resolved path as a further part, if it differs from the path."""
    if subject.problem is not None or len(subject.parts) != 1:
        return subject
    raw = subject.parts[0].text
    try:
        resolved_path, has_hard_links = _walk(os.path.abspath(workspace), raw)
    except _UnresolvablePath as error:
        return msgspec.structs.replace(subject, problem=str(error), usual=f"={subject.raw}")
    if resolved_path != raw:
        parts = (*subject.parts, SubjectPart(text=resolved_path, is_target=True))
        subject = msgspec.structs.replace(subject, parts=parts, usual=f"={subject.raw}")
    return msgspec.structs.replace(subject, problem=_HAS_HARD_LINKS) if has_hard_links else subject


def _walk(root: str, path: str) -> tuple[str, bool]:
    """The path without links, and whether its file has several hard links. Raises _UnresolvablePath."""
    pending, resolved = path.split("/")[::-1], list[str]()
    links = lookups = 0
    has_hard_links = False
    while pending:
        name = pending.pop()
        lookups += 1
        if lookups > MAX_LOOKUPS or links > MAX_LINKS:
            raise _UnresolvablePath(_UNRESOLVABLE)
        if name in ("", "."):
            continue
        if name == "..":
            if not resolved:
                raise _UnresolvablePath(_LEAVES_WORKSPACE)
            resolved.pop()
            continue
        full_path = os.path.join(root, *resolved, name)
        status = _status(full_path)
        if status is not None and stat.S_ISLNK(status.st_mode):
            links += 1
            pending += _target(full_path).split("/")[::-1]
            continue
        resolved.append(name)
        has_hard_links = status is not None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    return os.fsencode("/".join(resolved) or ".").decode("utf-8", "replace"), has_hard_links


def _status(full_path: str) -> os.stat_result | None:
    """None if nothing exists there. Raises _UnresolvablePath."""
    try:
        return os.lstat(full_path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _UnresolvablePath(_UNRESOLVABLE) from error


def _target(full_path: str) -> str:
    try:
        target = os.readlink(full_path)
    except OSError as error:
        raise _UnresolvablePath(_UNRESOLVABLE) from error
    if target.startswith("/"):
        raise _UnresolvablePath(_LEAVES_WORKSPACE)
    return target
