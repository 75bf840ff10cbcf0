"""What requests of `/v1` have that Luxx does not: what is left out with a warning of the run, and what is
refused because the answer would be another one without it. Also the forms in which clients switch thinking.
"""

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from luxx.errors import InvalidInput
from luxx.wire.model_settings import ReasoningEffort

MAX_NAMED = 20
MAX_NAME = 64

SEND_FORMAT = "this server has no such parameter; send response_format with a JSON schema"
REFUSED = {
    "guided_json": SEND_FORMAT,
    "guided_regex": SEND_FORMAT,
    "guided_choice": SEND_FORMAT,
    "guided_grammar": SEND_FORMAT,
    "structured_outputs": SEND_FORMAT,
    "json_schema": SEND_FORMAT,
    "grammar": SEND_FORMAT,
    "regex": SEND_FORMAT,
    "continue_final_message": "this server begins each answer anew; leave out continue_final_message",
    "response_format": "this route has the format in text.format",
    "messages": "this route takes the messages as input",
    "input": "this route takes the input as messages",
    "prompt": "this route takes the prompt as messages",
    "echo": "this server does not repeat the prompt; leave out echo",
}
"""Members of other servers' requests without which the answer would have another form."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EMPTY = (b"null", b"false", b"{}", b"[]", b'""')


def ignored_members(body: bytes, request: type[msgspec.Struct]) -> list[str]:
    """The warning about members of the body that `request` does not have, if there are any.

    Raises InvalidInput for those of REFUSED.
    """
    members = _members.decode(body)
    unknown = [name for name in members if name not in request.__struct_encode_fields__]
    for name in unknown:
        if name in REFUSED and bytes(members[name]) not in _EMPTY:
            raise InvalidInput(REFUSED[name], field=f"$.{name}")
    return left_out("parameters", unknown)


def left_out(what: str, names: Iterable[str]) -> list[str]:
    """The warning about these names, if there are any."""
    unique = list(dict.fromkeys(names))
    if not unique:
        return []
    shown = ", ".join(name[:MAX_NAME] for name in unique[:MAX_NAMED])
    more = f" and {len(unique) - MAX_NAMED} more" if len(unique) > MAX_NAMED else ""
    return [f"Left out of the request, because this server has no such {what}: {shown}{more}."]


def thinking_options(effort: object, *switches: object) -> dict[str, Any]:
    """`thinking_enabled` and `reasoning_effort` of a run; None: as the model does by default.

    The first that says something counts: an effort, or one of the switches of other servers: true or false,
    or an object with `enabled`, `effort`, `enable_thinking`, `thinking`, or the `type` enabled or disabled.
    """
    given = (effort, *switches)
    return {
        "thinking_enabled": next((found for each in given if (found := _switch(each)) is not None), None),
        "reasoning_effort": next((found for each in given if (found := _effort(each)) is not None), None),
    }


_EFFORTS = {
    **{each.value: each for each in ReasoningEffort},
    "xhigh": ReasoningEffort.HIGH,
    "max": ReasoningEffort.HIGH,
}
"""Efforts by their names; above the highest of Luxx, its highest counts."""


def _effort(given: object) -> ReasoningEffort | None:
    named = cast("dict[str, Any]", given).get("effort") if isinstance(given, dict) else given
    return _EFFORTS.get(named) if isinstance(named, str) else None


def _switch(given: object) -> bool | None:
    if isinstance(given, dict):
        fields = cast("dict[str, Any]", given)
        names = ("enabled", "effort", "enable_thinking", "thinking", "type")
        found = (_switch(fields[name]) for name in names if not isinstance(fields.get(name), dict | None))
        return next((one for one in found if one is not None), None)
    if isinstance(given, bool):
        return given
    if not isinstance(given, str) or given in ("auto", "default"):
        return None
    return given not in ("none", "minimal", "disabled")
