"""What a model receives of a conversation: reads the stored path and makes the messages of a request.

Steps are a flat list. A completion ends where the results of its tools begin; a paused completion is merged
with the one that continues it. A call without a result is left out, because no provider accepts one.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import Connection, Row, bindparam, literal, select

from luxx.domain.conversations.images import MessageBlobRow, image_ids, newest_images
from luxx.domain.conversations.models import MessageRow
from luxx.infra.store.tables import table_of
from luxx.wire.message import (
    AssistantContent,
    AssistantPrompt,
    Attachment,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserContent,
    UserPrompt,
    fenced,
)
from luxx.wire.tool import ToolCall
from luxx.wire.turn import PAUSED_KEY, Step, StepStatus, StepType

Replay = dict[str, Any]


class PastMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the selected path: a user's content, or an assistant's steps and replay notes.

    `images` are those that the model gets, by `blob_id`.
    """

    user: UserContent | None = None
    images: Mapping[str, PromptImage] = {}
    steps: tuple[Step, ...] = ()
    replay: tuple[Replay, ...] = ()


def prompt_messages(
    system: str, past: Sequence[PastMessage], steps: Sequence[Step] = (), replay: Sequence[Replay] = ()
) -> list[PromptMessage]:
    """The prompt for the next completion: system prompt, past messages, then the steps of the current run."""
    messages: list[PromptMessage] = [SystemPrompt(text=system)] if system else []
    for message in past:
        if message.user is not None:
            shown = [message.images[id_] for id_ in image_ids(message.user) if id_ in message.images]
            text = user_text(message.user, message.images)
            messages.append(UserPrompt(text=text, images=tuple(shown)))
        else:
            messages.extend(assistant_messages(message.steps, message.replay))
    messages.extend(assistant_messages(steps, replay))
    return messages


def user_text(content: UserContent, shown: Container[str] = ()) -> str:
    """A user's text followed by the attached files, each named and fenced; of an image the name, if any."""
    files = [file for file in content.attachments if file.name or not isinstance(file.blob_id, str)]
    return "\n\n".join([content.text, *(_attached(file, shown) for file in files)])


def assistant_messages(steps: Sequence[Step], replay: Sequence[Replay]) -> list[PromptMessage]:
    """The steps of an assistant's message as completions and tool results, in order."""
    messages: list[PromptMessage] = []
    completion_steps: list[Step] = []
    results: list[Step] = []
    notes = _join_paused(replay)
    for step in [*steps, None]:
        if step is not None and step.type == StepType.TOOL_RESULT:
            results.append(step)
            continue
        if step is None or results:
            messages.extend(_completion(completion_steps, results, next(notes, Replay())))
            completion_steps, results = [], []
        if step is not None and (step.type == StepType.TOOL_CALL or step.status != StepStatus.INTERRUPTED):
            completion_steps.append(step)
    # A completion that paused before its first step has no steps, but its note must be sent back.
    messages.extend(AssistantPrompt(replay=note) for note in notes if PAUSED_KEY in note)
    return messages


def _join_paused(replay: Sequence[Replay]) -> Iterator[Replay]:
    """One note per merged completion: the lists of a paused one's note are extended by the next note's."""
    joined: Replay = {}
    for note in replay:
        for key, value in note.items():
            _extend(joined, key, value)
        if PAUSED_KEY not in note:
            yield joined
            joined = {}
    if joined:
        yield joined


def _extend(joined: Replay, key: str, value: Any) -> None:
    """Extends in place, on copies of the lists: an imported message may have very many notes."""
    existing = joined.get(key)
    if not isinstance(value, list):
        joined[key] = value
    elif isinstance(existing, list):
        cast("list[Any]", existing).extend(cast("list[Any]", value))
    else:
        joined[key] = list(cast("list[Any]", value))


def _completion(completion_steps: list[Step], results: list[Step], replay: Replay) -> list[PromptMessage]:
    # A repeated completion may use the same call ids as the interrupted one: the last step counts.
    calls_by_id = {step.id_ref: step for step in completion_steps if step.type == StepType.TOOL_CALL}
    answered_ids = {step.id_ref for step in results}
    calls = [step for id_ref, step in calls_by_id.items() if id_ref in answered_ids]
    text = "".join(step.content for step in completion_steps if step.type == StepType.TEXT)
    thinking = "".join(step.content for step in completion_steps if step.type == StepType.THINKING)
    if not (calls or text or PAUSED_KEY in replay):
        return []
    order = {step.id_ref: position for position, step in enumerate(calls)}
    in_order = sorted(results, key=lambda step: order.get(step.id_ref, 0))
    assistant = AssistantPrompt(
        text=text, thinking=thinking, tool_calls=[_call(step) for step in calls], replay=replay
    )
    return [assistant, *(_result(step) for step in in_order)]


def _call(step: Step) -> ToolCall:
    return ToolCall(
        call_id=_text_or_empty(step.id_ref),
        name=_text_or_empty(step.name),
        arguments=_text_or_empty(step.arguments) or "{}",
    )


def _result(step: Step) -> ToolPrompt:
    success = step.success is not UNSET and bool(step.success)
    note = _text_or_empty(step.note)
    content = f"{step.content}\n\n{note}" if note else step.content
    return ToolPrompt(
        call_id=_text_or_empty(step.id_ref), name=_text_or_empty(step.name), content=content, success=success
    )


def _text_or_empty(value: Any) -> str:
    return "" if value is UNSET else str(value)


def _attached(file: Attachment, shown: Container[str]) -> str:
    if isinstance(file.blob_id, str):
        return f"Attached image {file.name}{'' if file.blob_id in shown else ' (not shown to this model)'}."
    return f"Attached file {file.name}:\n{fenced(file.content, file.extension)}"


# Stored messages

_user = msgspec.json.Decoder(UserContent)
_assistant = msgspec.json.Decoder(AssistantContent)


class _UserText(msgspec.Struct):
    """A user's content without its files."""

    text: str


_user_text = msgspec.json.Decoder(_UserText)


def user_content(content: str) -> UserContent:
    """Decodes the stored JSON of a user's message."""
    return _user.decode(content)


def user_text_of(content: str) -> str:
    """The text of a user's stored message; its files are not decoded."""
    return _user_text.decode(content).text


def assistant_steps(content: str) -> list[Step]:
    """The steps in the stored JSON of an assistant's message."""
    return _assistant.decode(content).steps


_replay = msgspec.json.Decoder(list[dict[str, Any]])

_messages = table_of(MessageRow)
_leaf = (
    select(_messages.c.id, _messages.c.parent_id, literal(0).label("height"))
    .where(_messages.c.id == bindparam("leaf_id"))
    .cte("path", recursive=True)
)
_parents = _messages.alias("parents")
_ids = _leaf.union_all(
    select(_parents.c.id, _parents.c.parent_id, _leaf.c.height + 1).join(
        _leaf, _parents.c.id == _leaf.c.parent_id
    )
)
_path = (
    select(_messages.c.role, _messages.c.content, _messages.c.replay)
    .join(_ids, _ids.c.id == _messages.c.id)
    .order_by(_ids.c.height.desc())
)
"""Built once: building it costs ten times what running it does."""

_path_ids = select(_ids.c.id).order_by(_ids.c.height.desc())
_blobs = table_of(MessageBlobRow)
_images = (
    select(_blobs.c.id, _blobs.c.media_type, _blobs.c.data)
    .join(_ids, _ids.c.id == _blobs.c.message_id)
    .where(_blobs.c.id.in_(bindparam("ids", expanding=True)))
)


def read_path(connection: Connection, leaf_id: str, *, with_images: bool = False) -> list[PastMessage]:
    """The messages from the root to `leaf_id`, oldest first; `with_images` adds the newest of their
    images."""
    past_messages = [_past_message(row) for row in connection.execute(_path, {"leaf_id": leaf_id})]
    if not with_images:
        return past_messages
    blob_ids = newest_images([message.user for message in past_messages if message.user is not None])
    if not blob_ids:
        return past_messages
    image_rows = connection.execute(_images, {"leaf_id": leaf_id, "ids": blob_ids})
    images = {row.id: PromptImage(media_type=row.media_type, data=row.data) for row in image_rows}
    return [
        replace(message, images=images) if message.user is not None else message for message in past_messages
    ]


def read_path_ids(connection: Connection, leaf_id: str) -> list[str]:
    """The ids of the messages from the root to `leaf_id`, oldest first."""
    return list(connection.scalars(_path_ids, {"leaf_id": leaf_id}))


def _past_message(row: Row[Any, Any, Any]) -> PastMessage:
    if row.role == "user":
        return PastMessage(user=user_content(row.content))
    return PastMessage(
        steps=tuple(assistant_steps(row.content)),
        replay=tuple(_replay.decode(row.replay)) if row.replay else (),
    )
