"""Converts a history to the messages of the Anthropic dialect.

User and assistant messages alternate; tool results come first in the user message after their calls. Stored
content blocks (`CONTENT_KEY`) are sent back unchanged as far as they match the stored text and calls.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from luxx.providers.demanded_forms import CallIds, accepted_name
from luxx.providers.parsing import json_objects, parse_arguments
from luxx.wire.message import (
    ORIGIN_KEY,
    AssistantPrompt,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.tool import ToolCall
from luxx.wire.turn import ReplayNote

CONTENT_KEY = "anthropic_content"
MODEL_KEY = "anthropic_model"
"""The keys in `replay`: the content blocks of a completion, and the model that produced them."""

HISTORY_TOOL_DESCRIPTION = "A tool that was used earlier and cannot be called now."
EMPTY_TEXT = "(no text)"
EARLIER_CONVERSATION_TEXT = "(The conversation began earlier.)"

BlockJson = dict[str, Any]
RequestMessage = dict[str, Any]

_THINKING_TYPES = frozenset({"thinking", "redacted_thinking"})
_SERVER_CALL_TYPES = frozenset({"server_tool_use", "mcp_tool_use"})
_USER_BLOCK_TYPES = frozenset({"tool_result", "image", "document", "search_result"})


def system_text(messages: Iterable[PromptMessage]) -> str:
    """The system prompt, which this dialect takes outside the messages."""
    return "\n\n".join(
        message.text for message in messages if isinstance(message, SystemPrompt) and message.text.strip()
    )


class RequestMessages(NamedTuple):
    """The messages of a request up to the user's message that began the unfinished turn, and those of that
    turn."""

    finished: list[RequestMessage]
    unfinished: list[RequestMessage]

    @property
    def joined(self) -> list[RequestMessage]:
        """All of them."""
        if not (self.finished and self.unfinished and self.unfinished[0]["role"] == "user"):
            return [*self.finished, *self.unfinished]
        (*before, last), (first, *after) = self.finished, self.unfinished
        return [*before, {**last, "content": [*last["content"], *first["content"]]}, *after]

    @property
    def begins_with_thinking(self) -> bool:
        """Whether the unfinished turn begins with thinking, as the API requires for more; true without it."""
        for message in self.unfinished:
            if message["role"] == "assistant":
                return message["content"][0]["type"] in _THINKING_TYPES
        return True


def build_messages(
    messages: Sequence[PromptMessage], model: str, origin: str = "", *, takes_unsigned: bool = False
) -> RequestMessages:
    """The messages of the history for `model` at `origin`. In finished turns, another model's thinking is
    left out, and that of another server everywhere, whose signature is not known there.

    `takes_unsigned`: the server wants thinking back although it does not sign it.
    """
    last_user_index = max(
        (index for index, each in enumerate(messages) if isinstance(each, UserPrompt) and not each.is_inner),
        default=-1,
    )
    ids = CallIds()
    finished: list[RequestMessage] = []
    unfinished: list[RequestMessage] = []
    for index, message in enumerate(messages):
        is_unfinished = index > last_user_index
        request_messages = unfinished if is_unfinished else finished
        match message:
            case SystemPrompt():
                continue
            case UserPrompt():
                _append_content(request_messages, "user", user_blocks(message))
            case ToolPrompt():
                _append_content(request_messages, "user", [_tool_result_block(message, ids)])
            case AssistantPrompt():
                is_signed = _is_of_host(message.replay, origin)
                is_same = _is_same_model(str(message.replay.get(MODEL_KEY, "")), model)
                content = _assistant_blocks(
                    message.labelled(),
                    ids,
                    includes_thinking=(is_signed or takes_unsigned) and (is_unfinished or is_same),
                    takes_unsigned=takes_unsigned,
                    is_signed=is_signed,
                )
                _append_content(request_messages, "assistant", content)
    first = finished or unfinished
    if first and first[0]["role"] != "user":
        first.insert(0, {"role": "user", "content": [{"type": "text", "text": EARLIER_CONVERSATION_TEXT}]})
    built = _drop_unpaired_server_calls(RequestMessages(finished, unfinished))
    last = messages[-1] if messages else None
    # What a paused turn has produced goes back unchanged.
    if isinstance(last, AssistantPrompt) and not last.end.is_paused:
        _remove_trailing_blanks(built.unfinished)
    return built


def _remove_trailing_blanks(request_messages: list[RequestMessage]) -> None:
    """Removes whitespace at the end of a last answer, which the API refuses."""
    if request_messages and request_messages[-1]["role"] == "assistant":
        content: list[BlockJson] = request_messages[-1]["content"]
        if content[-1]["type"] == "text":
            content[-1] = content[-1] | {"text": content[-1]["text"].rstrip()}


def called_tools(request_messages: list[RequestMessage]) -> list[str]:
    """The distinct names of the tools that the history calls."""
    blocks = (block for message in request_messages for block in message["content"])
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))


def _append_content(request_messages: list[RequestMessage], role: str, content: list[BlockJson]) -> None:
    if not content:
        return
    if request_messages and request_messages[-1]["role"] == role:
        request_messages[-1]["content"] += content
    else:
        request_messages.append({"role": role, "content": content})


def _image_block(image: PromptImage) -> BlockJson:
    data = b64encode(image.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}


def user_blocks(message: UserPrompt) -> list[BlockJson]:
    blocks = [
        {"type": "text", "text": part} if isinstance(part, str) else _image_block(part)
        for part in message.labelled().parts()
        if not isinstance(part, str) or part.strip()
    ]
    return blocks or [{"type": "text", "text": EMPTY_TEXT}]


def _tool_result_block(message: ToolPrompt, ids: CallIds) -> BlockJson:
    block: BlockJson = {"type": "tool_result", "tool_use_id": ids.sent_id(message.call_id)}
    if message.content.strip():
        block["content"] = message.content
    if message.images:
        # The API takes images in results that are no errors; the content says that the call failed.
        text = [{"type": "text", "text": message.content}] if message.content.strip() else []
        block["content"] = [*text, *(_image_block(image) for image in message.images)]
    elif not message.success:
        block["is_error"] = True
    return block


def _assistant_blocks(
    message: AssistantPrompt, ids: CallIds, *, includes_thinking: bool, takes_unsigned: bool, is_signed: bool
) -> list[BlockJson]:
    calls = {call.call_id: call for call in message.tool_calls}
    content: list[BlockJson] = []
    rest = message.text
    stored = _stored_content(message)
    if stored is not None:
        rest = message.text[len(_text_of(stored)) :]
        for block in stored:
            if block["type"] == "tool_use":
                call = calls.pop(str(block.get("id")), None)
                if call is not None:
                    content.append({**block, **_tool_use_block(call, ids)})
            elif _is_sendable(
                block,
                includes_thinking=includes_thinking,
                takes_unsigned=takes_unsigned,
                is_signed=is_signed,
            ):
                content.append(block if is_signed else _without_signature(block))
    if rest.strip():
        content.append({"type": "text", "text": rest})
    content += [_tool_use_block(call, ids) for call in calls.values()]
    if all(block["type"] in _THINKING_TYPES for block in content):
        return []  # The API refuses a message of thinking alone.
    return content


def _stored_content(message: AssistantPrompt) -> list[BlockJson] | None:
    """The stored content blocks, if the message's text begins with their text; else None.

    They may come from an imported file, so invalid blocks are dropped.
    """
    stored = message.replay.get(CONTENT_KEY)
    if not isinstance(stored, list):
        return None
    blocks = [block for block in json_objects(cast("object", stored)) if _is_assistant_block(block)]
    return blocks if message.text.startswith(_text_of(blocks)) else None


def _is_assistant_block(block: BlockJson) -> bool:
    """Whether a block has the fields of its type; a block of an unknown type may have any fields."""
    block_type = block.get("type")
    if not isinstance(block_type, str) or block_type in _USER_BLOCK_TYPES:
        return False
    match block_type:
        case "text":
            citations = block.get("citations")
            return isinstance(block.get("text"), str) and (citations is None or isinstance(citations, list))
        case "thinking":
            return isinstance(block.get("thinking"), str) and isinstance(block.get("signature", ""), str)
        case "redacted_thinking":
            return isinstance(block.get("data"), str)
        case "server_tool_use" | "mcp_tool_use":
            has_names = isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
            return has_names and isinstance(block.get("input"), dict)
        case _:
            return not block_type.endswith("_tool_result") or isinstance(block.get("tool_use_id"), str)


def _text_of(blocks: list[BlockJson]) -> str:
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def _is_sendable(block: BlockJson, *, includes_thinking: bool, takes_unsigned: bool, is_signed: bool) -> bool:
    match block["type"]:
        case "text":
            return bool(block["text"].strip())
        case "thinking":
            return includes_thinking and (takes_unsigned or bool(block.get("signature")))
        case "redacted_thinking":
            return includes_thinking and is_signed
        case _:
            return True


def _without_signature(block: BlockJson) -> BlockJson:
    return {key: value for key, value in block.items() if key != "signature"}


def _is_of_host(replay: ReplayNote, origin: str) -> bool:
    """Whether a completion comes from the host of this origin, whose models read each other's signatures; so
    does one whose note does not say where it was written."""
    written = replay.get(ORIGIN_KEY)
    return not isinstance(written, str) or written.partition(" ")[0] == origin.partition(" ")[0]


def _tool_use_block(call: ToolCall, ids: CallIds) -> BlockJson:
    return {
        "type": "tool_use",
        "id": ids.assign(call.call_id),
        "name": accepted_name(call.name),
        "input": parse_arguments(call.arguments),
    }


def _is_same_model(recorded: str, requested: str) -> bool:
    """Whether both name one model: either may have a date at its end, or a vendor's prefix."""
    left, right = (name.lower().rsplit("/", 1)[-1] for name in (recorded, requested))
    return bool(left and right) and (left.startswith(right) or right.startswith(left))


def _drop_unpaired_server_calls(messages: RequestMessages) -> RequestMessages:
    """Removes server tools' calls that have no result, and results that have no call.

    Calls of the unfinished turn stay: the server may still work on them (a paused turn, or code that called
    a client's tool).
    """
    unfinished_blocks = [block for message in messages.unfinished for block in message["content"]]
    blocks = [block for message in messages.finished for block in message["content"]] + unfinished_blocks
    call_ids = {block["id"] for block in blocks if block["type"] in _SERVER_CALL_TYPES}
    kept_ids = {block["tool_use_id"] for block in blocks if _is_server_result(block)}
    kept_ids |= {block["id"] for block in unfinished_blocks if block["type"] in _SERVER_CALL_TYPES}

    def paired(request_messages: list[RequestMessage]) -> list[RequestMessage]:
        kept: list[RequestMessage] = []
        for message in request_messages:
            content = [
                block
                for block in message["content"]
                if not (
                    (block["type"] in _SERVER_CALL_TYPES and block["id"] not in kept_ids)
                    or (_is_server_result(block) and block["tool_use_id"] not in call_ids)
                )
            ]
            if not all(block["type"] in _THINKING_TYPES for block in content):
                _append_content(kept, message["role"], content)
        return kept

    return RequestMessages(paired(messages.finished), paired(messages.unfinished))


def _is_server_result(block: BlockJson) -> bool:
    return block["type"] != "tool_result" and block["type"].endswith("_tool_result")
