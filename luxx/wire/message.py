"""Messages: what a prompt to a model is made of, and the stored content of user and assistant messages."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.step import Step
from luxx.wire.tool import ToolCall

MAX_MESSAGE_TEXT = 1_000_000
"""Characters that a person can say in one message."""

MAX_ATTACHMENTS = 20
MAX_ATTACHED_TEXT = 2_000_000
"""Characters of one text attached to a message."""

MAX_FILE_NAME = 255
MAX_EXTENSION = 20


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file sent along with a user's message: a text with its content in full, or an image.

    An image has its type, its size in bytes, a `blob_id` under which the message keeps it, and no content.
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


class SystemPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="system"):
    text: str


class PromptImage(msgspec.Struct, frozen=True, kw_only=True):
    """A picture for a model that reads them: a file of type image/png, jpeg, gif or webp."""

    media_type: str
    data: bytes


class UserPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="user"):
    """What a person said; the images belong before the text."""

    text: str
    images: tuple[PromptImage, ...] = ()


class AssistantPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="assistant"):
    """One earlier completion. `replay` is what its adapter's parser gave as ReplayDelta, merged."""

    text: str = ""
    thinking: str = ""
    tool_calls: list[ToolCall] = []
    replay: dict[str, Any] = {}


class ToolPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="tool"):
    """The result of one call; `content` is what the model reads."""

    call_id: str
    name: str
    content: str
    success: bool = True


PromptMessage = SystemPrompt | UserPrompt | AssistantPrompt | ToolPrompt
