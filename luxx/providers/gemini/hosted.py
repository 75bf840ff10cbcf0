"""The calls of Gemini's own tools (code, search and others), which ran at the provider and are only shown."""

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from luxx.wire.turn import Delta, HostedCallDelta


def emit_hosted_call(part: dict[str, Any], out: list[Delta]) -> None:
    """The call of a tool that ran at the provider, if the part is one: code, or another of its tools."""
    code, call = part.get("executableCode"), part.get("toolCall")
    if isinstance(code, dict):
        fields = cast("dict[str, Any]", code)
        arguments = {name: fields[name] for name in ("language", "code") if name in fields}
        out.append(_hosted_call(str(fields.get("id") or ""), "code_execution", arguments))
    elif isinstance(call, dict):
        fields = cast("dict[str, Any]", call)
        name = str(fields.get("toolType") or fields.get("name") or "tool").lower()
        arguments = fields.get("args")
        out.append(_hosted_call(str(fields.get("id") or ""), name, arguments))


def emit_search(queries: Iterable[str], out: list[Delta]) -> None:
    """The search that Google ran for the answer, if it ran one."""
    if listed := list(queries):
        out.append(_hosted_call("", "google_search", {"queries": listed}))


def _hosted_call(call_id: str, name: str, arguments: object) -> HostedCallDelta:
    text = msgspec.json.encode(arguments if isinstance(arguments, dict) else {}).decode()
    return HostedCallDelta(call_id=call_id, name=name, arguments=text)
