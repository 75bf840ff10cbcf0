"""What both forms of requests share: images in data URLs, tools and their choice, the answer's format, the
conversion of given messages to what a run reads, and the forms in which clients switch thinking.

Of what Luxx does not have, some is left out with a warning of the run, and some is refused because the answer
would be another one without it.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, Meta, UnsetType

from luxx.api.http.answer_schemas import ResponseFormat, checked_schema
from luxx.domain.context.messages import MAX_PROMPT_IMAGE_BYTES, MAX_PROMPT_IMAGES, PastMessage
from luxx.domain.files.attachments import GivenAttachment
from luxx.domain.files.image_formats import MAX_GIVEN_PIXELS, has_too_many_pixels
from luxx.domain.files.names import image_type
from luxx.errors import InvalidInput, TooLarge
from luxx.infra.clock import new_id
from luxx.tools.schema import add_items
from luxx.wire.message import (
    MAX_IMAGE_BYTES,
    MAX_MESSAGE_TEXT,
    Attachment,
    PromptImage,
    UserContent,
    joined_parts,
)
from luxx.wire.model_settings import ReasoningEffort
from luxx.wire.tool import ToolChoice, ToolChoiceMode, ToolSpec
from luxx.wire.turn import Step, StepFile, StepStatus, StepType, step_id

MAX_MESSAGES = 10_000
MAX_TOOLS = 200
ONLY_IMAGES = "(an image)"
"""Stands in place of the text of a message, or of a tool's result, that has images only."""

FunctionName = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z0-9_.-]{1,128}$(?!\n)",
        description="1 to 128 letters, digits, '_', '.' and '-'",
    ),
]
ModelName = Annotated[str, Meta(min_length=1, max_length=400)]
AuthorName = Annotated[str, Meta(max_length=200)]
MaxTokens = Annotated[int, Meta(ge=1, le=10_000_000)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
ItemType = Annotated[str, Meta(min_length=1, max_length=100)]
Metadata = dict[str, Any]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "auto", "default"]


class SchemaFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON schema of the answer's text. `strict` and `description` have no effect."""

    name: Annotated[str, Meta(min_length=1, max_length=64)] = "answer"
    schema: dict[str, Any]
    strict: bool | None = None
    description: str | None = None


class Given(msgspec.Struct, kw_only=True):
    """Messages as they are read: the system messages, then the others; and the last text of the user.

    `warnings`: what was left out.
    """

    instructions: list[str] = []
    past: list[PastMessage] = []
    warnings: list[str] = []
    image_count: int = 0
    image_bytes: int = 0

    def add_user(self, parts: Sequence[str | PromptImage], name: str = "") -> None:
        """Adds a message of the user, with its texts and images in their order. Raises TooLarge."""
        text, offsets = joined_parts(parts)
        images = [part for part in parts if isinstance(part, PromptImage)]
        self._count(images)
        by_id = {new_id(): image for image in images}
        attachments = [
            Attachment(
                name="",
                extension=image.media_type.rpartition("/")[2],
                content="",
                media_type=image.media_type,
                size=len(image.data),
                blob_id=id_,
                offset=offset,
            )
            for (id_, image), offset in zip(by_id.items(), offsets, strict=True)
        ]
        content = UserContent(text=text, attachments=attachments)
        self.past.append(PastMessage(user=content, images=by_id, name=name))

    def add_assistant(
        self,
        text: str,
        thinking: str,
        calls: list[tuple[str, str, str]],
        results: dict[str, str],
        *,
        images: Mapping[str, Sequence[PromptImage]] = MappingProxyType({}),
        name: str = "",
        replay: dict[str, Any] | None = None,
    ) -> None:
        """Adds an answer with its calls (id, name, arguments), and their results and images by call id.

        `replay`: what its provider wants back with it. Raises TooLarge.
        """
        steps: list[Step] = []
        by_id: dict[str, PromptImage] = {}
        for type_, content in ((StepType.THINKING, thinking), (StepType.TEXT, text)):
            if content:
                steps.append(_step(len(steps), type_, content))
        for call_id, tool, arguments in calls:
            index = len(steps)
            step = Step(
                id=step_id(index), index=index, type=StepType.TOOL_CALL,
                name=tool, arguments=arguments, id_ref=call_id, status=StepStatus.DONE,
            )  # fmt: skip
            steps.append(step)
        for call_id, tool, _ in calls:
            shown = {new_id(): image for image in images.get(call_id, ())}
            by_id |= shown
            result = _step(len(steps), StepType.TOOL_RESULT, results[call_id])
            steps.append(
                msgspec.structs.replace(
                    result,
                    name=tool,
                    id_ref=call_id,
                    success=True,
                    is_untrusted=True,
                    files=_step_files(shown),
                )
            )
        self._count(list(by_id.values()))
        self.past.append(
            PastMessage(steps=tuple(steps), images=by_id, replay=(replay,) if replay else (), name=name)
        )

    def _count(self, images: Sequence[PromptImage]) -> None:
        """Raises TooLarge."""
        self.image_count += len(images)
        self.image_bytes += sum(len(image.data) for image in images)
        if self.image_count > MAX_PROMPT_IMAGES:
            raise TooLarge(f"a request may have at most {MAX_PROMPT_IMAGES} images; leave out the oldest")
        if self.image_bytes > MAX_PROMPT_IMAGE_BYTES:
            limit = MAX_PROMPT_IMAGE_BYTES // 2**20
            raise TooLarge(f"the images of a request may have at most {limit} MiB together; send less")

    def ask_instructions(self) -> None:
        """Makes instructions to which no message belongs the message of the user: some models need one."""
        if not self.past and any(text.strip() for text in self.instructions):
            self.add_user(self.instructions)
            self.instructions = []

    def last_user(self) -> tuple[str, list[GivenAttachment]]:
        """The newest message of the user, as one to send in a conversation. Raises InvalidInput."""
        last = next((one for one in reversed(self.past) if one.user is not None), None)
        if last is None or last.user is None:
            raise InvalidInput("there is no message of the user to answer; add one", field="$.messages")
        label = f"[{last.name}] " if last.name else ""
        text = f"{label}{last.user.text.strip()}" or ONLY_IMAGES
        if len(text) > MAX_MESSAGE_TEXT:
            raise TooLarge(f"a message may have at most {MAX_MESSAGE_TEXT:,} characters; send less")
        moved = len(label) - len(last.user.text) + len(last.user.text.lstrip())
        images = [
            GivenAttachment(
                name=f"image-{number}.{file.extension}",
                data=last.images[str(file.blob_id)].data,
                offset=min(max(0, file.offset + moved), len(text)) if file.offset else UNSET,
            )
            for number, file in enumerate(last.user.attachments, 1)
        ]
        return text, images


def _step(index: int, type_: StepType, content: str) -> Step:
    return Step(id=step_id(index), index=index, type=type_, content=content)


def result_of(parts: Sequence[str | PromptImage]) -> tuple[str, list[PromptImage]]:
    """The text and the images of a tool's result."""
    images = [part for part in parts if isinstance(part, PromptImage)]
    text = "\n".join(part for part in parts if isinstance(part, str))
    return text or (ONLY_IMAGES if images else ""), images


def _step_files(images: dict[str, PromptImage]) -> list[StepFile] | UnsetType:
    """The images of a result; the prompt finds them by their ids, since they are no files."""
    shown = [
        StepFile(
            file_id="", name=f"image-{number}.{image.media_type.rpartition('/')[2]}", path="",
            media_type=image.media_type, size=len(image.data), sha256=id_,
        )
        for number, (id_, image) in enumerate(images.items(), 1)
    ]  # fmt: skip
    return shown or UNSET


def read_image(url: str, field: str) -> PromptImage:
    """The image of a data URL. Raises InvalidInput or TooLarge."""
    try:
        data = read_data_url(url)
    except NoDataUrl as error:
        raise InvalidInput(
            "images must be data URLs (data:image/png;base64,…); this server does not fetch images from "
            "other addresses",
            kind="image_url_unsupported",
            field=field,
        ) from error
    except ValueError as error:
        raise InvalidInput("the data URL of an image is not valid base64", field=field) from error
    kind = image_type(data[:64])
    if kind is None:
        raise InvalidInput("the data of an image must be a PNG, JPEG, GIF or WebP image", field=field)
    if len(data) > MAX_IMAGE_BYTES:
        raise TooLarge(f"an image may have at most {MAX_IMAGE_BYTES / 1_000_000:.1f} MB", field=field)
    if has_too_many_pixels(data):
        problem = f"an image may have at most {MAX_GIVEN_PIXELS // 1_000_000} million pixels"
        raise TooLarge(problem, field=field)
    return PromptImage(media_type=kind, data=data)


def tool_spec(name: str, description: str | None, parameters: dict[str, Any] | None) -> ToolSpec:
    """A tool of the client; without parameters it takes an empty object."""
    schema: dict[str, Any] = add_items(parameters) if parameters else {"type": "object", "properties": {}}
    return ToolSpec(name=name, description=description or "", parameters=schema)


def tool_choice(mode: str | None, name: str | None, tools: list[ToolSpec]) -> ToolChoice | None:
    """The choice of tools. Raises InvalidInput for one that is not among `tools`."""
    if name is not None and name not in {tool.name for tool in tools}:
        raise InvalidInput(
            f"tool_choice names {name!r}, which is not in tools; add it or choose another",
            field="$.tool_choice",
        )
    if name is not None:
        return ToolChoice(mode=ToolChoiceMode.REQUIRED, name=name)
    if mode == "required" and not tools:
        raise InvalidInput("tool_choice needs tools; leave it out or add tools", field="$.tool_choice")
    return None if mode is None or not tools else ToolChoice(mode=ToolChoiceMode(mode))


def check_tools(tools: list[ToolSpec]) -> None:
    """Raises InvalidInput if two tools have the same name."""
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"two tools are named {twice!r}; each needs a name of its own", field="$.tools")


async def schema_of(kind: str, format: SchemaFormat | None) -> dict[str, Any] | None:
    """The JSON schema that the answer's text must have. Raises InvalidInput."""
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if format is None:
        raise InvalidInput(
            "a response format of type json_schema needs the schema", field="$.response_format"
        )
    return await checked_schema(ResponseFormat(type="json_schema", schema=format.schema))


_head = re.compile(r"\s*data:([^,]{0,300}),", re.IGNORECASE | re.ASCII)
_base64 = re.compile(r";[ ]*base64[ ]*$", re.IGNORECASE)
_BLANKS = b" \t\n\r\f"


class NoDataUrl(ValueError):
    """The text is no data URL."""


def read_data_url(url: str) -> bytes:
    """The data of the URL, in base64 (also without padding, with blanks, or for URLs) or percent-encoded.

    Raises NoDataUrl, or ValueError for data that is not readable.
    """
    head = _head.match(url)
    if head is None:
        raise NoDataUrl
    text = url[head.end() :]
    data = unquote_to_bytes(text) if "%" in text else text.encode()
    if _base64.search(head[1]) is None:
        return data
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        plain = data.translate(bytes.maketrans(b"-_", b"+/"), _BLANKS).rstrip(b"=")
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)


MAX_NAMED = 20
MAX_NAME = 64

SEND_FORMAT = "this server has no such parameter; send response_format with a JSON schema"
REFUSED = {
    "guided_json": SEND_FORMAT,
    "guided_regex": SEND_FORMAT,
    "guided_choice": SEND_FORMAT,
    "guided_grammar": SEND_FORMAT,
    "structured_outputs": SEND_FORMAT,
    "json_schema": SEND_FORMAT,
    "grammar": SEND_FORMAT,
    "regex": SEND_FORMAT,
    "continue_final_message": "this server begins each answer anew; leave out continue_final_message",
    "response_format": "this route has the format in text.format",
    "messages": "this route takes the messages as input",
    "input": "this route takes the input as messages",
    "prompt": "this route takes the prompt as messages",
    "echo": "this server does not repeat the prompt; leave out echo",
}
"""Members of other servers' requests without which the answer would have another form."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EMPTY = (b"null", b"false", b"{}", b"[]", b'""')


def ignored_members(body: bytes, request: type[msgspec.Struct]) -> list[str]:
    """The warning about members of the body that `request` does not have, if there are any.

    Raises InvalidInput for those of REFUSED.
    """
    members = _members.decode(body)
    unknown = [name for name in members if name not in request.__struct_encode_fields__]
    for name in unknown:
        if name in REFUSED and bytes(members[name]) not in _EMPTY:
            raise InvalidInput(REFUSED[name], field=f"$.{name}")
    return left_out("parameters", unknown)


def left_out(what: str, names: Iterable[str]) -> list[str]:
    """The warning about these names, if there are any."""
    unique = list(dict.fromkeys(names))
    if not unique:
        return []
    shown = ", ".join(name[:MAX_NAME] for name in unique[:MAX_NAMED])
    more = f" and {len(unique) - MAX_NAMED} more" if len(unique) > MAX_NAMED else ""
    return [f"Left out of the request, because this server has no such {what}: {shown}{more}."]


def thinking_options(effort: object, *switches: object) -> dict[str, Any]:
    """`thinking_enabled` and `reasoning_effort` of a run; None: as the model does by default.

    The first that says something counts: an effort, or one of the switches of other servers: true or false,
    or an object with `enabled`, `effort`, `enable_thinking`, `thinking`, or the `type` enabled or disabled.
    """
    given = (effort, *switches)
    return {
        "thinking_enabled": next((found for each in given if (found := _switch(each)) is not None), None),
        "reasoning_effort": next((found for each in given if (found := _effort(each)) is not None), None),
    }


_EFFORTS = {
    **{each.value: each for each in ReasoningEffort},
    "xhigh": ReasoningEffort.HIGH,
    "max": ReasoningEffort.HIGH,
}
"""Efforts by their names; above the highest of Luxx, its highest counts."""


def _effort(given: object) -> ReasoningEffort | None:
    named = cast("dict[str, Any]", given).get("effort") if isinstance(given, dict) else given
    return _EFFORTS.get(named) if isinstance(named, str) else None


def _switch(given: object) -> bool | None:
    if isinstance(given, dict):
        fields = cast("dict[str, Any]", given)
        names = ("enabled", "effort", "enable_thinking", "thinking", "type")
        found = (_switch(fields[name]) for name in names if not isinstance(fields.get(name), dict | None))
        return next((one for one in found if one is not None), None)
    if isinstance(given, bool):
        return given
    if not isinstance(given, str) or given in ("auto", "default"):
        return None
    return given not in ("none", "minimal", "disabled")
