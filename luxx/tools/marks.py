"""What a tool tells of one call besides its result; and how the figures of a program become images."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from luxx.wire.step import StepImage


class CallMetadata:
    """Of one call, to be written by its tool: `images` it shows, whether strangers wrote what it says,
    whether a redirect led to it, and how many `calls` of other tools it made."""

    def __init__(self, call_id: str = "") -> None:
        self.call_id = call_id
        self.images: list[StepImage] = []
        self.is_untrusted = False
        self.is_redirected = False
        self.calls = 0


class SavedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`problems`: a sentence for each figure that is not shown."""

    images: list[StepImage] = []
    problems: list[str] = []


SaveFigures = Callable[[int, Path, list[str]], Awaitable[SavedFigures]]
"""Makes images of files: of this user, in this workspace, by their paths in it. Raises nothing."""


async def save_no_figures(user_id: int, workspace: Path, paths: list[str]) -> SavedFigures:
    """Where files have no ids."""
    return SavedFigures()
