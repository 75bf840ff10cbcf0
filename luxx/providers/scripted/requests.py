"""Parses requests in the three dialects for the scripted provider."""

from typing import Any, cast

import msgspec

from luxx.providers.scripted.script import ScriptedRequest


def parse_request(method: str, path: str, body: bytes) -> ScriptedRequest | None:
    """The request in a POST; its path selects the dialect. None for an unknown path or an invalid body."""
    path, _, query = path.partition("?")
    if method != "POST":
        return None
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    if path.endswith("/chat/completions"):
        return _openai(fields)
    if path.endswith("/messages"):
        return _anthropic(fields)
    name, _, verb = path.rpartition("/")[2].partition(":")
    if verb in ("streamGenerateContent", "generateContent"):
        is_stream = verb == "streamGenerateContent"
        return _gemini(fields, name, is_stream=is_stream, is_sse="alt=sse" in query)
    return None


def _openai(fields: dict[str, Any]) -> ScriptedRequest:
    messages = _objects(fields.get("messages"))
    roles = [str(message.get("role")) for message in messages]
    return ScriptedRequest(
        dialect="openai",
        model=str(fields.get("model", "")),
        system="\n".join(
            _text(message.get("content"))
            for message in messages
            if message.get("role") in ("system", "developer")
        ),
        user=_last([_text(m.get("content")) for m in messages if m.get("role") == "user"]),
        has_tool_result="tool" in roles[_after_last(roles, "user") :],
        stream=bool(fields.get("stream")),
    )


def _anthropic(fields: dict[str, Any]) -> ScriptedRequest:
    messages = _objects(fields.get("messages"))
    user_texts: list[str] = []
    has_result = False
    for message in messages:
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if any(part.get("type") == "tool_result" for part in _objects(content)):
            has_result = True
        if text := _text(content):
            user_texts.append(text)
            has_result = any(part.get("type") == "tool_result" for part in _objects(content))
    return ScriptedRequest(
        dialect="anthropic",
        model=str(fields.get("model", "")),
        system=_text(fields.get("system")),
        user=_last(user_texts),
        has_tool_result=has_result,
        stream=bool(fields.get("stream")),
    )


def _gemini(fields: dict[str, Any], model: str, *, is_stream: bool, is_sse: bool) -> ScriptedRequest:
    user_texts: list[str] = []
    has_result = False
    for content in _objects(fields.get("contents")):
        if content.get("role") == "model":
            continue
        parts = _objects(content.get("parts"))
        if text := _text(parts):
            user_texts.append(text)
            has_result = False
        has_result = has_result or any("functionResponse" in part for part in parts)
    system = _objects([fields.get("systemInstruction") or fields.get("system_instruction")])
    return ScriptedRequest(
        dialect="gemini" if is_sse or not is_stream else "gemini_array",
        model=model,
        system=_text(system[0].get("parts")) if system else "",
        user=_last(user_texts),
        has_tool_result=has_result,
        stream=is_stream,
    )


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in _objects(content) if "text" in part)


def _objects(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def _last(texts: list[str]) -> str:
    return texts[-1] if texts else ""


def _after_last(roles: list[str], role: str) -> int:
    return len(roles) - roles[::-1].index(role) if role in roles else 0
