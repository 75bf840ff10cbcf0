"""What a program in a jail may use: the built-in amounts by level, and what the configuration says."""

from collections.abc import Iterable

import msgspec

from luxx.config import ToolLimits
from luxx.wire.tool import CommandPermission

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one program with all its children: seconds of time and of processor, tasks, and MiB.

    `memory_mb` is what all of them hold and what each may ask for, `file_mb` the largest file, `disk_mb` what
    they write in all, `output_kb` what is kept of what they print.
    """

    seconds: float = 60
    cpu_seconds: float = 60
    memory_mb: int = 512
    processes: int = 64
    file_mb: int = 100
    disk_mb: int = 500
    output_kb: int = 1024


BY_LEVEL = {
    CommandPermission.ADMIN: Limits(
        seconds=600, cpu_seconds=600, memory_mb=2048, processes=256, file_mb=1000, disk_mb=5000
    )
}
"""Other levels have the defaults of Limits."""


def limits_for(tool: str, level: CommandPermission, configured: Iterable[ToolLimits]) -> Limits:
    """Built in for the level, then what each fitting entry sets, in order."""
    found = BY_LEVEL.get(level, Limits())
    for entry in configured:
        if entry.tool in ("*", tool) and entry.level in (None, level):
            given = {name: getattr(entry, name) for name in Limits.__struct_fields__}
            found = msgspec.structs.replace(
                found, **{name: value for name, value in given.items() if value is not None}
            )
    return found
