"""The forms of a request that some servers demand: roles that alternate, no system message, a schema of the
answer as an instruction where there is no field for it; and ids and names of calls that every vendor accepts,
because a conversation may cross vendors.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from luxx.providers.adapter import Adaptation, CompletionRequest
from luxx.wire.message import (
    AssistantPrompt,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
    joined_parts,
)

EARLIER = "(The conversation began earlier.)"
NO_ANSWER = "(no text)"
GO_ON = "Go on."
ANY_OBJECT_TEXT = "Answer with one JSON object and nothing else."

_NOTES_OF_SCHEMAS = frozenset({"title", "description", "$schema"})


def with_demanded_roles(
    messages: Sequence[PromptMessage], adaptations: frozenset[Adaptation]
) -> list[PromptMessage]:
    """The messages with the roles that the server was found to demand. The beginning stays as it was when
    later messages follow, so that a cache of the prompt can be used."""
    if Adaptation.NO_SYSTEM in adaptations:
        messages = _without_system(messages)
    if Adaptation.ALTERNATING in adaptations:
        messages = _alternating(messages)
    if Adaptation.ENDS_WITH_USER in adaptations and messages and isinstance(messages[-1], AssistantPrompt):
        messages = [*messages, UserPrompt(text=GO_ON)]
    return list(messages)


def _without_system(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """The system texts stand at the beginning of the first message, which is the user's."""
    text = "\n\n".join(each.text for each in messages if isinstance(each, SystemPrompt) and each.text.strip())
    rest: list[PromptMessage] = [each for each in messages if not isinstance(each, SystemPrompt)]
    if not text:
        return rest
    if rest and isinstance(rest[0], UserPrompt):
        return [_joined_users(UserPrompt(text=text), rest[0]), *rest[1:]]
    return [UserPrompt(text=text), *rest]


def _alternating(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """The user and the assistant in turns, beginning with the user; results follow their calls."""
    merged: list[PromptMessage] = []
    for message in messages:
        last = merged[-1] if merged else None
        match message:
            case AssistantPrompt() if not (message.text or message.tool_calls or message.replay):
                continue
            case AssistantPrompt() if last is None or isinstance(last, SystemPrompt):
                merged += [UserPrompt(text=EARLIER), message]
            case AssistantPrompt() if isinstance(last, AssistantPrompt) and not last.tool_calls:
                merged[-1] = _joined_assistants(last, message)
            case UserPrompt() if isinstance(last, UserPrompt):
                merged[-1] = _joined_users(last, message)
            case _:
                merged.append(message)
    return with_answers_to_results(merged)


def with_answers_to_results(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """The messages with an answer between results and a user's message that follows them, for servers that
    take none there."""
    answered: list[PromptMessage] = []
    for message in messages:
        if answered and isinstance(message, UserPrompt) and isinstance(answered[-1], ToolPrompt):
            answered.append(AssistantPrompt(text=NO_ANSWER))
        answered.append(message)
    return answered


def _joined_users(first: UserPrompt, second: UserPrompt) -> UserPrompt:
    """One message of both, each with its author; a blank line separates them."""
    before, after = first.labelled().parts(), second.labelled().parts()
    if before and after and isinstance(before[-1], str) and isinstance(after[0], str):
        before, after = [*before[:-1], f"{before[-1]}\n\n{after[0]}"], after[1:]
    parts = [*before, *after]
    text, offsets = joined_parts(parts)
    images = tuple(part for part in parts if not isinstance(part, str))
    is_inner = first.is_inner and second.is_inner
    return UserPrompt(text=text, images=images, offsets=tuple(offsets), is_inner=is_inner)


def _joined_assistants(first: AssistantPrompt, second: AssistantPrompt) -> AssistantPrompt:
    texts = [each.labelled().text for each in (first, second)]
    return replace(second, text="\n\n".join(text for text in texts if text), name="", replay={})


def is_any_object(schema: dict[str, Any]) -> bool:
    """Whether the schema demands a JSON object and nothing of its contents."""
    return {key: value for key, value in schema.items() if key not in _NOTES_OF_SCHEMAS} == {"type": "object"}


def schema_instruction(schema: dict[str, Any]) -> str:
    """The sentence that asks for an answer of this schema."""
    if is_any_object(schema):
        return ANY_OBJECT_TEXT
    return f"Answer with JSON alone, of this schema: {msgspec.json.encode(schema).decode()}"


def takes_schema(request: CompletionRequest) -> bool:
    """Whether the request has a schema, and its server is not known to refuse the field for it."""
    return request.response_schema is not None and Adaptation.NO_SCHEMA not in request.adaptations


def names_json(messages: Sequence[PromptMessage]) -> bool:
    """Whether a message has the word JSON, without which some vendors refuse their JSON mode."""
    texts = (each.text for each in messages if isinstance(each, SystemPrompt | UserPrompt))
    return any("json" in text.lower() for text in texts)


def with_instruction(messages: Sequence[PromptMessage], text: str) -> list[PromptMessage]:
    """The messages with this sentence at the end of the first system text."""
    for index, message in enumerate(messages):
        if isinstance(message, SystemPrompt):
            joined = SystemPrompt(text=f"{message.text}\n\n{text}" if message.text else text)
            return [*messages[:index], joined, *messages[index + 1 :]]
    return [SystemPrompt(text=text), *messages]


_VALID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class CallIds:
    """Maps call ids to the ids that are sent: only characters that vendors accept, unique in the history."""

    def __init__(self) -> None:
        self._used_ids: set[str] = set()
        self._sent_ids: dict[str, str] = {}

    def assign(self, call_id: str) -> str:
        """The id to send for a call; its result is sent under the same id."""
        sent = call_id if _VALID.fullmatch(call_id) else f"call_{sha256(call_id.encode()).hexdigest()[:24]}"
        if sent in self._used_ids:
            sent = f"{sent[:48]}_{len(self._used_ids)}"  # At most 64 characters.
        self._used_ids.add(sent)
        self._sent_ids[call_id] = sent
        return sent

    def sent_id(self, call_id: str) -> str:
        """The id that was last assigned to the call; the id itself if there is none."""
        return self._sent_ids.get(call_id, call_id)


def accepted_name(name: str) -> str:
    """The name itself if it is acceptable; a model may have called a tool by any name."""
    return name if _VALID.fullmatch(name) else re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"
