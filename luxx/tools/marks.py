"""The metadata that a tool reports besides its result, and the function type that saves figures as images."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from luxx.wire.step import StepImage


class CallMetadata:
    """Metadata of one call, written by its tool: the `images` it shows, whether its content is untrusted,
    whether it followed a redirect, and the number of member `calls` it made."""

    def __init__(self, call_id: str = "") -> None:
        self.call_id = call_id
        self.images: list[StepImage] = []
        self.is_untrusted = False
        self.is_redirected = False
        self.calls = 0


class SavedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`problems`: one sentence per figure that is not shown."""

    images: list[StepImage] = []
    problems: list[str] = []


SaveFigures = Callable[[int, Path, list[str]], Awaitable[SavedFigures]]
"""Saves files as images, given the user id, the workspace and the paths in it. Raises nothing."""


async def save_no_figures(user_id: int, workspace: Path, paths: list[str]) -> SavedFigures:
    """Default for servers without a file store."""
    return SavedFigures()
