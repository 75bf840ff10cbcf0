"""What a later request sends back of a response: its reasoning, the phases and the order of its items.

A note names the text and the calls of a completion instead of repeating them. Encrypted reasoning can be read
only where it was written: at the same host, by models of the same family. It must be followed by the item
that it led to, so it is left out together with that item.
"""

from typing import Any, cast

from luxx.providers.openai_responses.content import CALL_TYPES, OutputItem, OutputReader
from luxx.providers.parsing import json_objects
from luxx.wire.message import AssistantPrompt

NOTE_KEY = "openai_responses"
"""The key in `replay`: an object with `origin` and `items`."""

RESENT_TYPES = frozenset(
    {
        "code_interpreter_call",
        "compaction",
        "file_search_call",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "web_search_call",
    }
)
"""Items of tools that ran at the provider, and summaries by it, which it accepts back as they are."""

PHASES = frozenset({"commentary", "final_answer"})

CALL_FIELDS = ("namespace", "caller")
"""Fields of a call that are sent back with it: where its tool is defined, and which program made it."""

ItemJson = dict[str, Any]


def note_of(output: OutputReader, origin: str) -> dict[str, Any]:
    """The note of a response; empty if its text and calls say everything."""
    items: list[ItemJson] = []
    for index in sorted(output.items):
        if (item := _noted(output.items[index])) is not None:
            items.append(item)
    return {} if _is_plain(items) else {NOTE_KEY: {"origin": origin, "items": items}}


def noted_items(prompt: AssistantPrompt, origin: str) -> list[ItemJson]:
    """The items in the note of an earlier completion, as far as they can be sent to `origin`; empty: none.

    The note may come from an imported file, so invalid items are dropped; the note is ignored if its text is
    longer than that of the message.
    """
    note = prompt.replay.get(NOTE_KEY)
    if not isinstance(note, dict) or not origin:
        return []
    fields = cast("dict[str, Any]", note)
    written = str(fields.get("origin", ""))
    host, _, family = origin.partition(" ")
    written_host = written.partition(" ")[0]
    if ":" not in written_host:
        # Older versions of Luxx noted no port.
        host = host.partition(":")[0]
        origin = f"{host} {family}"
    if written_host != host:
        return []
    items = [item for item in json_objects(fields.get("items")) if _is_valid(item)]
    if sum(item["length"] for item in items if item["type"] == "message") > len(prompt.text):
        return []
    return [item for item in items if item["type"] not in ("reasoning", "compaction") or written == origin]


def is_left_out(item: ItemJson) -> bool:
    """Whether a noted item is one that is not sent back."""
    return item["type"] not in ("message", "reasoning", *CALL_TYPES, *RESENT_TYPES)


def drop_reasoning_at_end(items: list[ItemJson]) -> None:
    """Removes the reasoning whose following item is missing."""
    while items and items[-1]["type"] == "reasoning":
        items.pop()


def _is_plain(items: list[ItemJson]) -> bool:
    """Whether the items are only texts and then calls, with nothing beside them."""
    items = [item for item in items if not is_left_out(item)]
    kinds = [item["type"] for item in items]
    calls = [item for item in items if item.keys() == {"type", "call"} and item["type"] == "function_call"]
    texts = [item for item in items if item.keys() == {"type", "length"}]
    return len(calls) + len(texts) == len(items) and kinds == sorted(kinds, reverse=True)


def _noted(item: OutputItem) -> ItemJson | None:
    """The item as noted, of one that is not sent back only the type; None for reasoning without its text."""
    fields = item.final or {}
    if item.kind == "message" or (item.text_length and not item.kind):
        phase = fields.get("phase")
        noted: ItemJson = {"type": "message", "length": item.text_length}
        return {**noted, "phase": phase} if phase in PHASES else noted
    if item.kind in CALL_TYPES and item.slot is not None:
        noted = {"type": item.kind, "call": item.call_id}
        return noted | {key: fields[key] for key in CALL_FIELDS if fields.get(key)}
    if item.kind == "reasoning" or item.kind in RESENT_TYPES:
        return fields if _is_valid(fields) else None
    return {"type": item.kind} if item.kind else None


def _is_valid(item: ItemJson) -> bool:
    """Whether an item has the fields of its type."""
    match item.get("type"):
        case "message":
            length = item.get("length")
            return isinstance(length, int) and length >= 0 and item.get("phase") in (None, *PHASES)
        case "function_call" | "custom_tool_call":
            has_fields = isinstance(item.get("namespace", ""), str) and isinstance(
                item.get("caller", {}), dict
            )
            return isinstance(item.get("call"), str) and has_fields
        case "reasoning":
            has_parts = _are_parts(item.get("summary"), "summary_text")
            has_parts = has_parts and _are_parts(item.get("content") or [], "reasoning_text")
            return has_parts and _has_texts(item, "id", "encrypted_content")
        case "compaction":
            return _has_texts(item, "id", "encrypted_content")
        case str(kind):
            return kind not in RESENT_TYPES or _has_texts(item, "id")
        case _:
            return False


def _are_parts(value: object, kind: str) -> bool:
    """Whether it is a list of texts of this type."""
    parts = json_objects(value)
    is_list = isinstance(value, list) and len(parts) == len(cast("list[object]", value))
    return is_list and all(part.get("type") == kind and isinstance(part.get("text"), str) for part in parts)


def _has_texts(item: ItemJson, *names: str) -> bool:
    return all(isinstance(item.get(name), str) and item[name] for name in names)
