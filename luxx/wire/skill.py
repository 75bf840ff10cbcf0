"""Skill words: instructions that are loaded on demand, and what tools a run may use under them."""

import msgspec


class SkillHead(msgspec.Struct, frozen=True, kw_only=True):
    """A skill as it is chosen by. `allowed_tools` are entries like `file_read` or `shell_execute(git *)`;
    None: it leaves the tools of a run as they are."""

    name: str
    description: str
    allowed_tools: tuple[str, ...] | None = None


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that a run may use at most, since the skill `by` is active in it; without one, because a
    subagent was given no others."""

    by: str
    entries: tuple[str, ...]
