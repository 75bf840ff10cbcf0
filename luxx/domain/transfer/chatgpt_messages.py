"""Reads one message of ChatGPT's export: what it is in a Luxx conversation, and its text.

`chatgpt.py` reads the tree of the messages.
"""

import json
import re
from enum import StrEnum
from typing import Any

import msgspec

from luxx.domain.transfer.draft import JsonObject, Losses, list_of, object_of, text_of
from luxx.wire.message import fenced

REFERENCE_MARKS = re.compile("\ue200[^\ue200\ue201]*\ue201")
"""References to search results, which the text encloses in private-use characters."""

NAME = re.compile(r"[^A-Za-z0-9_-]")
NAME_LENGTH = 64

PICTURES = "pictures"
SOUND = "sound recordings"
UNKNOWN = "contents of an unknown kind"


class ChatGptKind(StrEnum):
    """The role of a ChatGPT node in a Luxx conversation."""

    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"
    RESULT = "result"
    INSTRUCTIONS = "instructions"
    NOTHING = "nothing"


class ChatGptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One decoded message. `name` and `arguments` belong to a call, `is_error` to a result."""

    kind: ChatGptKind
    text: str = ""
    name: str = ""
    arguments: str = ""
    is_error: bool = False


NOTHING = ChatGptMessage(kind=ChatGptKind.NOTHING)


def read_message(message: JsonObject, losses: Losses) -> ChatGptMessage:
    """Decodes a message; NOTHING for those that have no meaning outside ChatGPT."""
    author, content = object_of(message.get("author")), object_of(message.get("content"))
    metadata = object_of(message.get("metadata"))
    role, kind = author.get("role"), content.get("content_type")
    if kind == "user_editable_context" or metadata.get("is_user_system_message") is True:
        return ChatGptMessage(kind=ChatGptKind.INSTRUCTIONS, text=_instructions(content, metadata, losses))
    if role == "system" or kind == "model_editable_context":
        losses.add("internal notes of ChatGPT", 1 if _text(content, Losses()) else 0)
        return NOTHING
    if metadata.get("is_visually_hidden_from_conversation") is True:
        losses.add("messages that ChatGPT hides")
        return NOTHING
    if role == "user":
        return ChatGptMessage(kind=ChatGptKind.TEXT, text=_text(content, losses))
    if role == "tool":
        text = _text(content, losses)
        return ChatGptMessage(
            kind=ChatGptKind.RESULT,
            text=text,
            name=valid_name(author.get("name")),
            is_error=kind == "system_error",
        )
    if role != "assistant":
        losses.add("messages of an unknown author")
        return NOTHING
    losses.add("addresses of sources", _sources(metadata))
    return _assistant(message, content, losses)


def _sources(metadata: JsonObject) -> int:
    """How many addresses the notes about the text have, which Luxx does not read."""
    notes = [*list_of(metadata.get("citations")), *list_of(metadata.get("content_references"))]
    found = [object_of(note) for note in notes]
    inner = [object_of(note.get("metadata")) for note in found]
    listed = [object_of(item) for note in found for item in list_of(note.get("items"))]
    return len({str(each["url"]) for each in (*found, *inner, *listed) if each.get("url")})


def valid_name(name: Any) -> str:
    """A name with only those characters that every provider accepts for a tool."""
    return NAME.sub("_", name)[:NAME_LENGTH] if isinstance(name, str) and name else "tool"


def _assistant(message: JsonObject, content: JsonObject, losses: Losses) -> ChatGptMessage:
    kind, recipient = content.get("content_type"), message.get("recipient")
    if kind == "thoughts":
        return ChatGptMessage(kind=ChatGptKind.THINKING, text=_thoughts(content, losses))
    if kind == "reasoning_recap":
        return NOTHING  # Text such as "Thought for 8 seconds".
    text = _text(content, losses)
    if isinstance(recipient, str) and recipient != "all":
        return ChatGptMessage(
            kind=ChatGptKind.CALL, name=valid_name(recipient), arguments=_arguments(text, kind)
        )
    if kind == "code" and text:
        language = content.get("language")
        name = NAME.sub("", language)[:20] if isinstance(language, str) else ""
        return ChatGptMessage(kind=ChatGptKind.TEXT, text=fenced(text, name))
    return ChatGptMessage(kind=ChatGptKind.TEXT, text=text)


def _arguments(text: str, kind: Any) -> str:
    """The arguments of a tool call, as a JSON object."""
    try:
        if isinstance(json.loads(text), dict):
            return text
    except (ValueError, RecursionError):
        pass
    return msgspec.json.encode({"code" if kind == "code" else "input": text}).decode()


def _instructions(content: JsonObject, metadata: JsonObject, losses: Losses) -> str:
    data = object_of(metadata.get("user_context_message_data"))
    texts = [
        text_of(content.get("user_profile") or data.get("about_user_message"), losses),
        text_of(content.get("user_instructions") or data.get("about_model_message"), losses),
    ]
    return "\n\n".join(text for text in texts if text.strip()) or _text(content, losses)


def _thoughts(content: JsonObject, losses: Losses) -> str:
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


def _text(content: JsonObject, losses: Losses) -> str:
    """The readable text of content of any type."""
    kind = content.get("content_type")
    match kind:
        case "text" | "multimodal_text":
            parts = [_part(part, losses) for part in list_of(content.get("parts"))]
            text = "\n".join(part for part in parts if part)
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
    fields = object_of(part)
    kind = fields.get("content_type")
    if kind == "image_asset_pointer":
        losses.add(PICTURES)
        return ""
    if isinstance(kind, str) and "audio" in kind and "transcription" not in kind:
        losses.add(SOUND)
        return ""
    text = text_of(fields.get("text"), losses)
    losses.add(UNKNOWN, 0 if text else 1)
    return text


def _without_marks(text: str, losses: Losses) -> str:
    if "\ue200" not in text:
        return text
    text, count = REFERENCE_MARKS.subn("", text)
    losses.add("references to search results", count)
    return text
