"""What one message of a ChatGPT export says, by its kind of content; how they hang together: `chatgpt.py`.

The format is nobody's standard and grows; what is not known here is counted as lost, never guessed at.
"""

import json
import re
from enum import StrEnum
from typing import Any

import msgspec

from luxx.transfer.draft import Json, Losses, list_of, object_of, text_of

MARKS = re.compile("\ue200[^\ue200\ue201]*\ue201")
"""References to search results, which stand in the text between characters for private use."""

NAME = re.compile(r"[^A-Za-z0-9_-]")
NAME_LENGTH = 64

PICTURES = "pictures"
SOUND = "sound recordings"
UNKNOWN = "contents of an unknown kind"


class Kind(StrEnum):
    """What a message is in a conversation of ours."""

    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"
    RESULT = "result"
    INSTRUCTIONS = "instructions"
    NOTHING = "nothing"


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One message, read. `name` and `arguments` are a call's; `is_error` a result's."""

    kind: Kind
    text: str = ""
    name: str = ""
    arguments: str = ""
    is_error: bool = False


NOTHING = Said(kind=Kind.NOTHING)


def said_by(message: Json, losses: Losses) -> Said:
    """What a message says; NOTHING for what only the other service needed."""
    author, content = object_of(message.get("author")), object_of(message.get("content"))
    metadata = object_of(message.get("metadata"))
    role, kind = author.get("role"), content.get("content_type")
    if kind == "user_editable_context" or metadata.get("is_user_system_message") is True:
        return Said(kind=Kind.INSTRUCTIONS, text=_instructions(content, metadata, losses))
    if role == "system" or kind == "model_editable_context":
        losses.add("notes of the other service to itself", 1 if _text(content, Losses()) else 0)
        return NOTHING
    if metadata.get("is_visually_hidden_from_conversation") is True:
        losses.add("messages that were hidden there")
        return NOTHING
    if role == "user":
        return Said(kind=Kind.TEXT, text=_text(content, losses))
    if role == "tool":
        text = _text(content, losses)
        return Said(kind=Kind.RESULT, text=text, name=tool_name(author), is_error=kind == "system_error")
    if role != "assistant":
        losses.add("messages of an unknown author")
        return NOTHING
    return _assistant(message, content, losses)


def tool_name(author: Json) -> str:
    """A tool's name as models take one."""
    return valid_name(author.get("name"))


def valid_name(name: Any) -> str:
    """A name as every dialect takes one for a tool."""
    return NAME.sub("_", name)[:NAME_LENGTH] if isinstance(name, str) and name else "tool"


def _assistant(message: Json, content: Json, losses: Losses) -> Said:
    kind, recipient = content.get("content_type"), message.get("recipient")
    if kind == "thoughts":
        return Said(kind=Kind.THINKING, text=_thoughts(content, losses))
    if kind == "reasoning_recap":
        return NOTHING  # "Thought for 8 seconds"
    text = _text(content, losses)
    if isinstance(recipient, str) and recipient != "all":
        return Said(kind=Kind.CALL, name=valid_name(recipient), arguments=_arguments(text, kind))
    if kind == "code" and text:
        language = content.get("language")
        return Said(kind=Kind.TEXT, text=_fenced(text, language if isinstance(language, str) else ""))
    return Said(kind=Kind.TEXT, text=text)


def _arguments(text: str, kind: Any) -> str:
    """What a tool was called with, as the JSON object that a call has here."""
    try:
        if isinstance(json.loads(text), dict):
            return text
    except (ValueError, RecursionError):
        pass
    return msgspec.json.encode({"code" if kind == "code" else "input": text}).decode()


def _instructions(content: Json, metadata: Json, losses: Losses) -> str:
    data = object_of(metadata.get("user_context_message_data"))
    texts = [
        text_of(content.get("user_profile") or data.get("about_user_message"), losses),
        text_of(content.get("user_instructions") or data.get("about_model_message"), losses),
    ]
    return "\n\n".join(text for text in texts if text.strip()) or _text(content, losses)


def _thoughts(content: Json, losses: Losses) -> str:
    thoughts = content.get("thoughts")
    if isinstance(thoughts, str):
        return text_of(thoughts, losses)
    paragraphs: list[str] = []
    for thought in map(object_of, list_of(thoughts)):
        summary = text_of(thought.get("summary"), losses).strip()
        detail = text_of(thought.get("content"), losses).strip()
        paragraphs += [f"**{summary}**"] if summary else []
        paragraphs += [detail] if detail else []
    return text_of("\n\n".join(paragraphs), losses)


def _text(content: Json, losses: Losses) -> str:
    """The readable text of a content of any kind."""
    kind = content.get("content_type")
    match kind:
        case "text" | "multimodal_text":
            found = [_part(part, losses) for part in list_of(content.get("parts"))]
            text = "\n".join(part for part in found if part)
        case "code" | "execution_output":
            text = text_of(content.get("text"), losses)
        case "tether_quote" | "sonic_webpage":
            lines = [text_of(content.get(name), losses) for name in ("title", "url", "text")]
            text = "\n".join(line for line in lines if line)
        case "tether_browsing_display":
            text = text_of(content.get("result") or content.get("summary"), losses)
        case "system_error":
            lines = [text_of(content.get(name), losses) for name in ("name", "text")]
            text = ": ".join(line for line in lines if line)
        case _:
            text = text_of(content.get("text"), losses)
            losses.add(UNKNOWN, 0 if text or kind is None else 1)
    return _without_marks(text_of(text, losses), losses)


def _part(part: Any, losses: Losses) -> str:
    if isinstance(part, str):
        return text_of(part, losses)
    about = object_of(part)
    kind = about.get("content_type")
    if kind == "image_asset_pointer":
        losses.add(PICTURES)
        return ""
    if isinstance(kind, str) and "audio" in kind and "transcription" not in kind:
        losses.add(SOUND)
        return ""
    text = text_of(about.get("text"), losses)
    losses.add(UNKNOWN, 0 if text else 1)
    return text


def _without_marks(text: str, losses: Losses) -> str:
    if "\ue200" not in text:
        return text
    text, count = MARKS.subn("", text)
    losses.add("references to search results", count)
    return text


def _fenced(text: str, language: str) -> str:
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{NAME.sub('', language)[:20]}\n{text}\n{fence}"
