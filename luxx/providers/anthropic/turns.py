"""A history as the turns of the Anthropic dialect: who follows whom, and what goes back as it came.

Users and assistants alternate; results stand first in the user's turn right after their calls. An answer
whose content was kept (`CONTENT_KEY`) is sent as it was, as far as it still fits what is known of it.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, cast

import msgspec

from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall

CONTENT_KEY = "anthropic_content"
MODEL_KEY = "anthropic_model"
"""The keys of a replay note: an answer's content blocks, and the model that gave them."""

HISTORY_TOOL = "A tool that was used earlier and cannot be called now."
NOTHING_SAID = "(no text)"
BEFORE = "(The conversation began earlier.)"

Block = dict[str, Any]
Turn = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_THINKING = frozenset({"thinking", "redacted_thinking"})
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})
_OF_USERS = frozenset({"tool_result", "image", "document", "search_result"})


def system_text(messages: Iterable[PromptMessage]) -> str:
    """What the system says, which this dialect has outside the turns."""
    return "\n\n".join(
        message.text for message in messages if isinstance(message, SystemPrompt) and message.text.strip()
    )


def turns_of(messages: Sequence[PromptMessage], model: str) -> list[Turn]:
    """The turns of the history, for `model`: another model's thinking is left out of turns that are over."""
    last_said = max((at for at, one in enumerate(messages) if isinstance(one, UserPrompt)), default=-1)
    ids = _Ids()
    turns: list[Turn] = []
    for at, message in enumerate(messages):
        match message:
            case SystemPrompt():
                continue
            case UserPrompt():
                _add(turns, "user", _said(message))
            case ToolPrompt():
                _add(turns, "user", [_result(message, ids)])
            case AssistantPrompt():
                is_same = _is_same_model(str(message.replay.get(MODEL_KEY, "")), model)
                content = _answer(message, ids, keeps_thinking=at > last_said or is_same)
                _add(turns, "assistant", content)
    if turns and turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": BEFORE}]})
    return _without_halves(turns)


def begins_with_thinking(turns: list[Turn]) -> bool:
    """Whether the answer that is being gone on with begins so; true where none is."""
    begun = next((turn for turn in _going_on(turns) if turn["role"] == "assistant"), None)
    return begun is None or begun["content"][0]["type"] in _THINKING


def called_tools(turns: list[Turn]) -> list[str]:
    """The names of the tools that the history calls, each once."""
    blocks = (block for turn in turns for block in turn["content"])
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))


class _Ids:
    """Ids of calls as they are sent: of the characters the API takes, and each but once in a history."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._of_call: dict[str, str] = {}

    def begin(self, call_id: str) -> str:
        """The id of a call; its results, until the same id is called again, are sent under it."""
        sent = call_id if _NAME.fullmatch(call_id) else f"call_{sha256(call_id.encode()).hexdigest()[:24]}"
        if sent in self._taken:
            sent = f"{sent[:48]}_{len(self._taken)}"
        self._taken.add(sent)
        self._of_call[call_id] = sent
        return sent

    def of_result(self, call_id: str) -> str:
        return self._of_call.get(call_id, call_id)


def _add(turns: list[Turn], role: str, content: list[Block]) -> None:
    if not content:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] += content
    else:
        turns.append({"role": role, "content": content})


def _said(message: UserPrompt) -> list[Block]:
    blocks: list[Block] = [
        {
            "type": "image",
            "source": {
                "type": "base64",
                "media_type": image.media_type,
                "data": b64encode(image.data).decode(),
            },
        }
        for image in message.images
    ]
    if message.text.strip():
        blocks.append({"type": "text", "text": message.text})
    return blocks or [{"type": "text", "text": NOTHING_SAID}]


def _result(message: ToolPrompt, ids: _Ids) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": ids.of_result(message.call_id)}
    if message.content.strip():
        block["content"] = message.content
    if not message.success:
        block["is_error"] = True
    return block


def _answer(message: AssistantPrompt, ids: _Ids, *, keeps_thinking: bool) -> list[Block]:
    calls = {call.call_id: call for call in message.tool_calls}
    content: list[Block] = []
    rest = message.text
    kept = _kept_content(message)
    if kept is not None:
        rest = message.text[len(_text_of(kept)) :]
        for block in kept:
            if block["type"] == "tool_use":
                call = calls.pop(str(block.get("id")), None)
                if call is not None:
                    content.append({**block, **_tool_use(call, ids)})
            elif _is_sendable(block, keeps_thinking=keeps_thinking):
                content.append(block)
    if rest.strip():
        content.append({"type": "text", "text": rest})
    content += [_tool_use(call, ids) for call in calls.values()]
    if all(block["type"] in _THINKING for block in content):
        return []
    return content


def _kept_content(message: AssistantPrompt) -> list[Block] | None:
    """The content as it came, if the stored text still begins with its text.

    A note may be an imported file's and hold anything; what is no block of an answer is left out.
    """
    kept = message.replay.get(CONTENT_KEY)
    if not isinstance(kept, list):
        return None
    items = cast("list[object]", kept)
    objects = [cast("Block", item) for item in items if isinstance(item, dict)]
    blocks = [block for block in objects if _is_of_an_answer(block)]
    return blocks if message.text.startswith(_text_of(blocks)) else None


def _is_of_an_answer(block: Block) -> bool:
    """Whether what is known of the block's type is there; a type that is not known may hold anything."""
    kind = block.get("type")
    if not isinstance(kind, str) or kind in _OF_USERS:
        return False
    match kind:
        case "text":
            cited = block.get("citations")
            return isinstance(block.get("text"), str) and (cited is None or isinstance(cited, list))
        case "thinking":
            return isinstance(block.get("thinking"), str) and isinstance(block.get("signature"), str)
        case "redacted_thinking":
            return isinstance(block.get("data"), str)
        case "server_tool_use" | "mcp_tool_use":
            has_names = isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
            return has_names and isinstance(block.get("input"), dict)
        case _:
            return not kind.endswith("_tool_result") or isinstance(block.get("tool_use_id"), str)


def _text_of(blocks: list[Block]) -> str:
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def _is_sendable(block: Block, *, keeps_thinking: bool) -> bool:
    match block["type"]:
        case "text":
            return bool(block["text"].strip())
        case "thinking":
            return keeps_thinking and bool(block["signature"])
        case "redacted_thinking":
            return keeps_thinking
        case _:
            return True


def _tool_use(call: ToolCall, ids: _Ids) -> Block:
    name = call.name if _NAME.fullmatch(call.name) else re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64]
    return {
        "type": "tool_use",
        "id": ids.begin(call.call_id),
        "name": name or "unnamed",
        "input": _object(call.arguments),
    }


def _object(arguments: str) -> Any:
    """Arguments as an object, or `{}`: this dialect takes nothing else, whatever the model wrote."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _is_same_model(told: str, asked: str) -> bool:
    """Whether both name one model: one of them may have a date at its end, or a vendor before it."""
    one, other = (name.lower().rsplit("/", 1)[-1] for name in (told, asked))
    return bool(one and other) and (one.startswith(other) or other.startswith(one))


def _without_halves(turns: list[Turn]) -> list[Turn]:
    """Without server tools' calls that have no result and results that have no call.

    A call that the server still works on (a paused turn, code that called a client's tool) stays.
    """
    blocks = [block for turn in turns for block in turn["content"]]
    called = {block["id"] for block in blocks if block["type"] in _SERVER_CALLS}
    going_on = [block for turn in _going_on(turns) for block in turn["content"]]
    stay = {block["tool_use_id"] for block in blocks if _is_server_result(block)}
    stay |= {block["id"] for block in going_on if block["type"] in _SERVER_CALLS}
    whole: list[Turn] = []
    for turn in turns:
        content = [
            block
            for block in turn["content"]
            if not (
                (block["type"] in _SERVER_CALLS and block["id"] not in stay)
                or (_is_server_result(block) and block["tool_use_id"] not in called)
            )
        ]
        if all(block["type"] in _THINKING for block in content):
            continue
        _add(whole, turn["role"], content)
    return whole


def _going_on(turns: list[Turn]) -> list[Turn]:
    """The turns after the last in which a person spoke: an answer that is not at its end."""
    said = [
        at for at, turn in enumerate(turns) if any(b["type"] in ("text", "image") for b in turn["content"])
    ]
    spoke = [at for at in said if turns[at]["role"] == "user"]
    return turns[spoke[-1] + 1 :] if spoke else turns


def _is_server_result(block: Block) -> bool:
    return block["type"] != "tool_result" and block["type"].endswith("_tool_result")
