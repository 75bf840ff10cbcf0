"""Messages: those of a prompt to a model, and the stored content of user and assistant messages."""

import re
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.tool import ToolCall
from luxx.wire.turn import Step

MAX_MESSAGE_TEXT = 1_000_000
"""Limit of characters in one message of a user."""

MAX_ATTACHMENTS = 20
MAX_ATTACHED_TEXT = 2_000_000
"""Limit of characters in one attached text."""

MAX_FILE_NAME = 255
MAX_EXTENSION = 20

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""The limit of the strictest vendor for one image."""

MAX_IMAGES = 10
MAX_IMAGES_BYTES = 15 * 1024 * 1024
"""Per message; the strictest vendor accepts no more in one request, encoded in base64."""

_BACKTICKS = re.compile("`+")


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file attached to a user's message: a text with its full content, or an image.

    An image has its type, its size in bytes, the `blob_id` of its stored bytes, and no content.
    """

    name: str
    extension: str
    content: str
    media_type: str | UnsetType = UNSET
    size: int | UnsetType = UNSET
    blob_id: str | UnsetType = UNSET


class UserContent(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON stored for a user's message."""

    text: str
    attachments: list[Attachment] = []


class AssistantContent(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON stored for an assistant's message; `steps` is the only source of its text."""

    steps: list[Step]


class ContextRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a prompt was made, stored with its answer, so that the next prompt begins in the same way.

    The first `messages` messages were left out and the first `results` tool results of the others shortened,
    for a model with this `window` (0: unknown). `estimated` are the tokens of the prompt as Luxx estimates
    them, `counted` those that the provider counted; both are 0 where it did not.
    """

    messages: int = 0
    results: int = 0
    window: int = 0
    estimated: int = 0
    counted: int = 0


class SystemPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="system"):
    text: str


class PromptImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image for a model: a file of type image/png, jpeg, gif or webp."""

    media_type: str
    data: bytes


class UserPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="user"):
    """A user's message; the images come before the text."""

    text: str
    images: tuple[PromptImage, ...] = ()


class AssistantPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="assistant"):
    """One earlier completion. `replay` is the merged data of its ReplayDeltas."""

    text: str = ""
    thinking: str = ""
    tool_calls: list[ToolCall] = []
    replay: dict[str, Any] = {}


class ToolPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="tool"):
    """The result of one call; `content` is what the model reads, `images` what it also sees."""

    call_id: str
    name: str
    content: str
    success: bool = True
    images: tuple[PromptImage, ...] = ()


PromptMessage = SystemPrompt | UserPrompt | AssistantPrompt | ToolPrompt


def fenced(text: str, language: str) -> str:
    """The text as a Markdown code block, whose fence is longer than any backticks in it."""
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
