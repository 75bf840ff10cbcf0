"""The messages of a conversation, from the database to what a provider gets: those on the path to a leaf, and
the steps of the current run; and which images they have. `prompt.py` fits them into a context window.

Steps are a flat list. A completion ends where the results of its tools begin, or where a person wrote; a
paused completion is merged with the one that continues it. A call without a result is left out, because no
provider accepts one.
"""

from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence, Set
from typing import Any, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import Connection, Row, bindparam, select

from luxx.domain.conversations.access import PATH_TO_ROOT, assistant_steps, user_content
from luxx.domain.conversations.images import MessageBlobRow
from luxx.domain.conversations.models import MessageRow
from luxx.infra.store.tables import table_of
from luxx.wire.message import (
    OBJECTION_KEY,
    ORIGIN_KEY,
    AssistantPrompt,
    Attachment,
    ContextRecord,
    PromptImage,
    PromptMessage,
    ToolPrompt,
    UserContent,
    UserPrompt,
    fenced,
    images_of,
    objection_in,
    tool_images,
)
from luxx.wire.tool import SKILL_STEPS, ToolCall
from luxx.wire.turn import ReplayNote, Step, StepFile, StepStatus, StepType, end_of

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
        """Chooses the images of messages (given oldest first), and reads those `of_tools` that are not
        at hand."""
        newest = frozenset(newest_images(contents))
        tools = {key: image for key, image in self.tools.items() if key in newest}
        wanted = newest - tools.keys() - at_hand
        missing = [image for key, image in of_tools.items() if key in wanted]
        if missing:
            tools |= await read(missing)
        self.tools, self.newest = tools, newest


def newest_images(contents: Sequence[UserContent | Sequence[Step]]) -> list[str]:
    """The images of messages (given oldest first) that a request has: the `blob_id` of a user's image, the
    `sha256` of an image that a tool returned.

    Once they exceed the limits of a request, the older half is left out at once: the requests until then, and
    those after it, begin with the same images, which the provider has cached.
    """
    kept: list[tuple[str, int]] = []
    for content in contents:
        for images in _image_groups(content):
            kept += images
            if not _is_within(kept, 1):
                kept = max(_newest(kept, 2), _newest(images, 1), key=len)
    return [key for key, _ in kept]


def _newest(images: Sequence[tuple[str, int]], parts: int) -> list[tuple[str, int]]:
    """The last of these images that fit into the limits of a request divided by `parts`."""
    at = len(images)
    while at and _is_within(images[at - 1 :], parts):
        at -= 1
    return list(images[at:])


def _is_within(images: Sequence[tuple[str, int]], parts: int) -> bool:
    size = sum(size for _, size in images)
    return len(images) <= MAX_PROMPT_IMAGES // parts and size <= MAX_PROMPT_IMAGE_BYTES // parts


def _image_groups(content: UserContent | Sequence[Step]) -> Iterator[list[tuple[str, int]]]:
    """What identifies the images that came at once, and their sizes in bytes; of a user's message the first
    ones count as the newest."""
    if isinstance(content, UserContent):
        yield [
            (file.blob_id, file.size if isinstance(file.size, int) else 0)
            for file in reversed(content.attachments)
            if isinstance(file.blob_id, str)
        ]
        return
    for step in content:
        if images := tool_images([step]):
            yield [(image.sha256, image.size) for image in images]


class PastMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the selected path: a user's content, or an assistant's steps and replay notes.

    `images` are those that the model gets: of a user's content by `blob_id`, of given results of tools, which
    are no files, by the `sha256` of the step. `context`: how the prompt of an answer was made. `name`: the
    author, where a client tells several apart. `until`: in a room, the newest of its messages that are in
    this one or before it.
    """

    user: UserContent | None = None
    images: Mapping[str, PromptImage] = {}
    steps: tuple[Step, ...] = ()
    replay: tuple[ReplayNote, ...] = ()
    context: ContextRecord | None = None
    name: str = ""
    until: str = ""

    def with_images(self, keys: frozenset[str]) -> "PastMessage":
        """The message with those of its images that these keys name."""
        if self.images.keys() <= keys:
            return self
        return replace(self, images={key: self.images[key] for key in self.images.keys() & keys})


_replay = msgspec.json.Decoder(list[ReplayNote])
_context = msgspec.json.Decoder(ContextRecord)

_messages = table_of(MessageRow)
_path = (
    select(_messages.c.role, _messages.c.content, _messages.c.replay, _messages.c.context)
    .join(PATH_TO_ROOT, PATH_TO_ROOT.c.id == _messages.c.id)
    .order_by(PATH_TO_ROOT.c.height.desc())
)
"""Built once: building it costs ten times what running it does."""

_blobs = table_of(MessageBlobRow)
_images = (
    select(_blobs.c.id, _blobs.c.media_type, _blobs.c.data)
    .join(PATH_TO_ROOT, PATH_TO_ROOT.c.id == _blobs.c.message_id)
    .where(_blobs.c.id.in_(bindparam("ids", expanding=True)))
)


def read_path(connection: Connection, leaf_id: str, *, with_images: bool = False) -> list[PastMessage]:
    """The messages from the root to `leaf_id`, oldest first; `with_images` adds the newest of their
    images."""
    past_messages = [_past_message_of(row) for row in connection.execute(_path, {"leaf_id": leaf_id})]
    if not with_images:
        return past_messages
    with_files = [message.user for message in past_messages if message.user and message.user.attachments]
    blob_ids = newest_images(with_files) if with_files else []
    if not blob_ids:
        return past_messages
    image_rows = connection.execute(_images, {"leaf_id": leaf_id, "ids": blob_ids})
    images = {row.id: PromptImage(media_type=row.media_type, data=row.data) for row in image_rows}
    return [
        replace(message, images=images) if message.user is not None else message for message in past_messages
    ]


def _past_message_of(row: Row[Any, Any, Any, Any]) -> PastMessage:
    if row.role == "user":
        return PastMessage(user=user_content(row.content))
    return PastMessage(
        steps=tuple(assistant_steps(row.content)),
        replay=tuple(_replay.decode(row.replay)) if row.replay else (),
        context=_context.decode(row.context) if row.context else None,
    )


# Prompts

ToolImages = Mapping[str, PromptImage]
"""The images of tool results that the model gets, by their `sha256`."""

NO_IMAGES: ToolImages = {}
MAX_NAMED_IMAGES = 10


def past_prompts(message: PastMessage, images: ToolImages, model: str = "") -> list[PromptMessage]:
    if message.user is None:
        own = {**images, **message.images} if message.images else images
        answer = assistant_messages(message.steps, message.replay, own, model)
        return _named(answer, message.name) if message.name else answer
    shown = [file for file in message.user.attachments if file.blob_id in message.images]
    prompt = UserPrompt(
        text=user_text(message.user, message.images),
        images=tuple(message.images[str(file.blob_id)] for file in shown),
        offsets=tuple(min(file.offset or 0, len(message.user.text)) for file in shown),
        name=message.name,
    )
    return [prompt]


def _named(messages: list[PromptMessage], name: str) -> list[PromptMessage]:
    return [replace(each, name=name) if isinstance(each, AssistantPrompt) else each for each in messages]


def user_text(content: UserContent, shown: Container[str] = ()) -> str:
    """A user's text followed by the attached files, each named and fenced; of an image the name, if any."""
    files = [file for file in content.attachments if file.name or not isinstance(file.blob_id, str)]
    return "\n\n".join([content.text, *(_attached(file, shown) for file in files)])


def assistant_messages(
    steps: Sequence[Step],
    replay: Sequence[ReplayNote],
    images: ToolImages = NO_IMAGES,
    model: str = "",
    first: int = 0,
) -> list[PromptMessage]:
    """The steps of an assistant's message from this `first` one on, as completions, tool results, what people
    wrote meanwhile and what checks objected to.

    A completion that `model` refused is left out: vendors demand that, and refuse again with it.
    """
    messages: list[PromptMessage] = []
    completion_steps: list[Step] = []
    results: list[Step] = []
    notes = _join_paused(replay)
    objections = dict(objection for note in replay if (objection := objection_in(note)) is not None)

    def end_completion() -> None:
        note = next(notes, ReplayNote())
        if not (model and end_of(note).refused_by == model):
            messages.extend(_completion(completion_steps, results, note, images))

    for index, step in enumerate([*steps, None], first):
        if step is not None and step.type == StepType.TOOL_RESULT:
            results.append(step)
            continue
        inner: list[UserPrompt] = []
        if index in objections and (results or not _has_calls(completion_steps)):
            inner.append(UserPrompt(text=objections[index], is_inner=True))
        if step is not None and step.type == StepType.USER:
            inner.append(UserPrompt(text=step.content, is_inner=True, is_skill=step.name in SKILL_STEPS))
        # Only an ended completion has a note; one that a crash interrupted is repeated after these texts.
        is_ended = results or any(each.status != StepStatus.INTERRUPTED for each in completion_steps)
        if is_ended if inner else step is None or results:
            end_completion()
        if inner or results:
            completion_steps, results = [], []
        messages.extend(inner)
        if step is None or step.type == StepType.USER:
            continue
        if step.type == StepType.TOOL_CALL or step.status != StepStatus.INTERRUPTED:
            completion_steps.append(step)
    # A completion that paused before its first step has no steps, but its note must be sent back.
    messages.extend(AssistantPrompt(replay=note) for note in notes if end_of(note).is_paused)
    return messages


def _has_calls(steps: Sequence[Step]) -> bool:
    """Whether a completion makes calls of which the results follow."""
    return any(step.type == StepType.TOOL_CALL and step.is_hosted is not True for step in steps)


def _join_paused(replay: Sequence[ReplayNote]) -> Iterator[ReplayNote]:
    """One note per merged completion: the lists of a paused one's note are extended by the next note's."""
    joined: ReplayNote = {}
    for note in replay:
        for key, value in note.items():
            if key != OBJECTION_KEY:
                _extend(joined, key, value)
        if not end_of(note).is_paused:
            yield joined
            joined = {}
    if joined:
        yield joined


def _extend(joined: ReplayNote, key: str, value: Any) -> None:
    """Extends in place, on copies of the lists: an imported message may have very many notes."""
    existing = joined.get(key)
    if key == ORIGIN_KEY and existing not in (None, value):
        # Written at several servers: none of them can read all of it.
        joined[key] = f"{existing} {value}"
    elif not isinstance(value, list):
        joined[key] = value
    elif isinstance(existing, list):
        cast("list[Any]", existing).extend(cast("list[Any]", value))
    else:
        joined[key] = list(cast("list[Any]", value))


def _completion(
    completion_steps: list[Step], results: list[Step], replay: ReplayNote, images: ToolImages
) -> list[PromptMessage]:
    # A repeated completion may use the same call ids as the interrupted one: the last step counts.
    calls_by_id = {step.id_ref: step for step in completion_steps if step.type == StepType.TOOL_CALL}
    answered_ids = {step.id_ref for step in results}
    calls = [step for id_ref, step in calls_by_id.items() if id_ref in answered_ids]
    text = "".join(step.content for step in completion_steps if step.type == StepType.TEXT)
    end = end_of(replay)
    if end.has_notice:
        text = ""
    thinking = "".join(step.content for step in completion_steps if step.type == StepType.THINKING)
    if not (calls or text or end.is_paused):
        return []
    order = {step.id_ref: position for position, step in enumerate(calls)}
    in_order = sorted(results, key=lambda step: order.get(step.id_ref, 0))
    assistant = AssistantPrompt(
        text=text, thinking=thinking, tool_calls=[_call(step) for step in calls], replay=replay
    )
    return [assistant, *(_result(step, images) for step in in_order)]


def _call(step: Step) -> ToolCall:
    return ToolCall(
        call_id=_text_or_empty(step.id_ref),
        name=_text_or_empty(step.name),
        arguments=_text_or_empty(step.arguments) or "{}",
    )


def _result(step: Step, images: ToolImages) -> ToolPrompt:
    """The result with its images; those that the model does not get are named."""
    success = step.success is not UNSET and bool(step.success)
    own = images_of(step)
    hidden = [image.name for image in own if image.sha256 not in images]
    more = f" and {len(hidden) - MAX_NAMED_IMAGES} more" if len(hidden) > MAX_NAMED_IMAGES else ""
    names = f"[Images not shown to this model: {', '.join(hidden[:MAX_NAMED_IMAGES])}{more}.]"
    return ToolPrompt(
        call_id=_text_or_empty(step.id_ref),
        name=_text_or_empty(step.name),
        content="\n\n".join(
            part for part in (step.content, _text_or_empty(step.note), names if hidden else "") if part
        ),
        success=success,
        images=tuple(images[image.sha256] for image in own if image.sha256 in images),
    )


def _text_or_empty(value: Any) -> str:
    return "" if value is UNSET else str(value)


def _attached(file: Attachment, shown: Container[str]) -> str:
    if isinstance(file.blob_id, str):
        return f"Attached image {file.name}{'' if file.blob_id in shown else ' (not shown to this model)'}."
    return f"Attached file {file.name}:\n{fenced(file.content, file.extension)}"
