"""Which images a request to a model has: the newest ones, of users and of tool results, within its limits."""

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set

import msgspec

from luxx.wire.message import PromptImage, UserContent, tool_images
from luxx.wire.turn import Step, StepFile

MAX_PROMPT_IMAGES = 20
MAX_PROMPT_IMAGE_BYTES = 15 * 1024 * 1024
"""Limits of the images in one request to a model; in base64 the strictest vendor accepts no more."""

ReadImages = Callable[[int, Sequence[StepFile]], Awaitable[Mapping[str, PromptImage]]]
"""Reads those images of a user's files that are unchanged, by their `sha256`. Raises nothing."""


class RequestImages(msgspec.Struct):
    """The images of the next request: those of tool results by their `sha256`, and the keys of all that it
    has, of a user's image its `blob_id`. `newest` is None while no choice was made: then it has all."""

    tools: dict[str, PromptImage] = {}
    newest: frozenset[str] | None = None

    async def choose(
        self,
        contents: Sequence[UserContent | Sequence[Step]],
        of_tools: Mapping[str, StepFile],
        at_hand: Set[str],
        read: Callable[[Sequence[StepFile]], Awaitable[Mapping[str, PromptImage]]],
    ) -> None:
        """Chooses the newest images of messages (given oldest first), and reads those `of_tools` that are not
        at hand."""
        newest = frozenset(newest_images(contents))
        tools = {key: image for key, image in self.tools.items() if key in newest}
        wanted = newest - tools.keys() - at_hand
        missing = [image for key, image in of_tools.items() if key in wanted]
        if missing:
            tools |= await read(missing)
        self.tools, self.newest = tools, newest


def newest_images(contents: Sequence[UserContent | Sequence[Step]]) -> list[str]:
    """The newest images of messages (given oldest first) within the limits of a request: the `blob_id` of a
    user's image, the `sha256` of an image that a tool returned."""
    newest: list[str] = []
    bytes_left = MAX_PROMPT_IMAGE_BYTES
    for content in reversed(contents):
        for key, size in _image_keys(content):
            bytes_left -= size
            if bytes_left < 0 or len(newest) >= MAX_PROMPT_IMAGES:
                return newest
            newest.append(key)
    return newest


def _image_keys(content: UserContent | Sequence[Step]) -> list[tuple[str, int]]:
    """What identifies the images of a message, and their sizes in bytes."""
    if isinstance(content, UserContent):
        return [
            (file.blob_id, file.size if isinstance(file.size, int) else 0)
            for file in content.attachments
            if isinstance(file.blob_id, str)
        ]
    return [(image.sha256, image.size) for image in reversed(tool_images(content))]
