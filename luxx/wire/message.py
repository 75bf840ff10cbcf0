"""Messages: those of a prompt to a model, and the stored content of user and assistant messages."""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import AnyStr

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.check import Verdict
from luxx.wire.todos import TodoRecord
from luxx.wire.tool import ToolCall
from luxx.wire.turn import CompletionEnd, ReplayNote, Step, StepFile, StepType, end_of

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

    An image has its type, its size in bytes, the `blob_id` of its stored bytes, and no content. `offset`: how
    many characters of the message's text come before the image; without it the image comes first.
    """

    name: str
    extension: str
    content: str
    media_type: str | UnsetType = UNSET
    size: int | UnsetType = UNSET
    blob_id: str | UnsetType = UNSET
    offset: int | UnsetType = UNSET


class Quotation(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply in a room answers: who wrote that message, and how it begins."""

    sender_name: str
    text: str


class UserContent(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON stored for a user's message."""

    text: str
    attachments: list[Attachment] = []


class AssistantContent(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON stored for an assistant's message; `steps` is the only source of its text. `plan_run_id`: the
    run whose log has the plan that the answer was made by, if there was one. `verdicts`: those of checks.
    `memories_used`: the remembered facts that its prompt had."""

    steps: list[Step]
    plan_run_id: str | UnsetType = UNSET
    verdicts: list[Verdict] | UnsetType = UNSET
    memories_used: list[str] | UnsetType = UNSET


_OLD_FILES, _FILES = '"images":[{"file_id":', '"files":[{"file_id":'
_OLD_FILES_BYTES, _FILES_BYTES = _OLD_FILES.encode(), _FILES.encode()


def with_files(stored: AnyStr) -> AnyStr:
    """The JSON of steps as it is now: older versions stored the files of a step, images alone, as `images`.

    Within a text of the JSON the quotation marks would be escaped.
    """
    if isinstance(stored, str):
        return stored.replace(_OLD_FILES, _FILES)
    return stored.replace(_OLD_FILES_BYTES, _FILES_BYTES)


def images_of(step: Step) -> list[StepFile]:
    """The images among the files of a step."""
    files = step.files if isinstance(step.files, list) else []
    return [file for file in files if file.media_type.startswith("image/")]


def tool_images(steps: Iterable[Step]) -> list[StepFile]:
    """The images of the results among these steps, in order."""
    return [image for step in steps if step.type == StepType.TOOL_RESULT for image in images_of(step)]


class FollowUps(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that a model proposes after the answer `message_id`: plain text of one line each."""

    message_id: str
    texts: list[str]


class CompressionStrategy(StrEnum):
    """What a model is sent less: old tool results are shortened, older turns are replaced by a summary, or
    older turns are left out. Each also does what stands before it."""

    CLEAR = "clear"
    SUMMARIZE = "summarize"
    TRUNCATE = "truncate"


Place = tuple[int, int]
"""Where in the history something stands: the number of its message, a task that is always sent not counted,
and the number of the completion within an answer. It means the same in every later prompt of the path."""


class KeptList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The list of skills and agents in a prompt, and a digest of what it was made for: of another user,
    system prompt, window or other tools the next prompt has a list of its own. Empty: the next one is made
    anew."""

    text: str = ""
    made_for: str = ""


class ContextRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a prompt was made, stored with its answer, so that the next prompt begins in the same way.

    Left out is what stands before the place (`messages`, `part`), except what is `kept`. Of a first message
    that is kept, only the first `first` characters are sent (0: all). Results before the place `cleared` are
    shortened. `summary` stands for what was left out; with `is_summarized` and without a text, the text is in
    an earlier record of the path. `window` is the one it was made for (0: none); `learned` is that of the
    model `learned_by`, whose provider refused a larger prompt. `next_at`: nothing more is left out before a
    prompt has this many tokens. `estimated` are the tokens of the prompt as this `estimator` of Luxx counts
    them, `counted` those that the provider counted; both are 0 where it did not. `todos`: the to-do list;
    None: it is that of an earlier record of the path, if one has it; the same holds for `listed`, the list of
    skills and agents. In a room, `until` is the newest message of the room that the summary stands for, and
    `base` that of the summary which the turn began with: places count from there.
    """

    messages: int = 0
    part: int = 0
    kept: tuple[Place, ...] = ()
    first: int = 0
    cleared: Place = (0, 0)
    summary: str = ""
    is_summarized: bool = False
    window: int = 0
    learned: int = 0
    learned_by: str = ""
    next_at: int = 0
    estimated: int = 0
    counted: int = 0
    estimator: int = 0
    todos: TodoRecord | None = None
    listed: KeptList | None = None
    base: str = ""
    until: str = ""

    @property
    def cut(self) -> Place:
        return self.messages, self.part


class SystemPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="system"):
    text: str


class PromptImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image for a model: a file of type image/png, jpeg, gif or webp."""

    media_type: str
    data: bytes


class UserPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="user"):
    """A user's message. `offsets`: of each image, how many characters of the text come before it; without
    them the images come first. `name`: the author, where a client tells several apart. `is_inner`: it stands
    within a turn (a person or Luxx said it meanwhile), so that no other turn begins with it. `is_skill`: it
    is the text of a skill."""

    text: str
    images: tuple[PromptImage, ...] = ()
    offsets: tuple[int, ...] = ()
    name: str = ""
    is_inner: bool = False
    is_skill: bool = False

    def parts(self) -> "list[str | PromptImage]":
        """The texts and images in their order, see `joined_parts`."""
        if not self.images:
            return [self.text] if self.text else []
        parts: list[str | PromptImage] = []
        start = 0
        for image, offset in zip(self.images, self.offsets or (0,) * len(self.images), strict=True):
            end = min(max(offset, start), len(self.text))
            text = self.text[start:end]
            parts += [text.removesuffix("\n") if end < len(self.text) else text, image]
            start = end
        return [part for part in (*parts, self.text[start:]) if part]

    def labelled(self) -> "UserPrompt":
        """The message with its author's name in front of the text, for servers that take no names."""
        if not self.name:
            return self
        label = f"[{self.name}] "
        offsets = tuple(offset and offset + len(label) for offset in self.offsets)
        return msgspec.structs.replace(self, text=f"{label}{self.text}", offsets=offsets, name="")


def joined_parts(parts: "Sequence[str | PromptImage]") -> tuple[str, list[int]]:
    """The texts, each on lines of its own, and the offset of each image in them, see `UserPrompt`."""
    texts: list[str] = []
    offsets: list[int] = []
    length = 0
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            length += len(part) + 1
        else:
            offsets.append(length)
    text = "\n".join(texts)
    return text, [min(offset, len(text)) for offset in offsets]


OBJECTION_KEY = "objection"
"""The key in the replay note of a completion of what checks objected to before it; the model gets it as a
message of the user."""


def objection_note(text: str, first_step: int) -> ReplayNote:
    """The part of the note of a completion, which begins with this step, about an objection."""
    return {OBJECTION_KEY: {"text": text, "first_step": first_step}} if text else {}


def objection_in(note: ReplayNote) -> tuple[int, str] | None:
    """The first step of the completion of this note and the objection before it; None if there is none."""
    match note.get(OBJECTION_KEY):
        case {"text": str() as text, "first_step": int() as first_step}:
            return first_step, text
        case _:
            return None


ORIGIN_KEY = "origin"
"""The key in the replay note of where it was written: only there signatures and encrypted reasoning can be
read. Notes of older versions of Luxx have none."""


class AssistantPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="assistant"):
    """One earlier completion. `replay` is what was stored of it for later requests; `name` is its author,
    where a client tells several apart."""

    text: str = ""
    thinking: str = ""
    tool_calls: list[ToolCall] = []
    replay: ReplayNote = {}
    name: str = ""

    @property
    def end(self) -> CompletionEnd:
        """How it ended, as far as later requests need to know it."""
        return end_of(self.replay)

    def labelled(self) -> "AssistantPrompt":
        """The completion with its author's name in front of the text, for servers that take no names."""
        if not self.name or not self.text:
            return self
        return msgspec.structs.replace(self, text=f"[{self.name}] {self.text}", name="")


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
