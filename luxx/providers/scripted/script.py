"""The script of the scripted provider: rules, replies, faults, their YAML form; which rule a request matches.

`provider.py` serves it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from luxx.errors import InvalidInput


class Thinking(msgspec.Struct, frozen=True, kw_only=True, tag="thinking"):
    text: str


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """`pieces` deltas of about equal length; 0 means one per word."""

    text: str
    pieces: int = 0


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call"):
    """`arguments` is an object, or its JSON text, which may be invalid."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str = ""


class Counts(msgspec.Struct, frozen=True, kw_only=True, tag="usage"):
    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """`reason` is stop, tool_calls or length; the client gets its dialect's name for it."""

    reason: str = "stop"


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """An error object inside the stream, after status 200. The stream ends after it."""

    message: str
    kind: str = "server_error"
    code: int | str = 500


class Bytes(msgspec.Struct, frozen=True, kw_only=True, tag="raw"):
    """Sent unchanged, in UTF-8; a reply with raw bytes gets no generated beginning or end."""

    data: str


class Gate(msgspec.Struct, frozen=True, kw_only=True, tag="gate"):
    """Waits until the test releases the gate of this name."""

    name: str


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag="pause"):
    seconds: float


ReplyEvent = Thinking | Text | Call | Counts | Finish | Fail | Bytes | Gate | Pause


class When(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All given conditions must be true. `system`, `user` and `model` are regular expressions, searched in
    the system prompt (the agent), the last user message and the model's name; `call` is the number, from 1,
    of the request among those that match the other conditions.
    """

    system: str | None = None
    user: str | None = None
    model: str | None = None
    has_tool_result: bool | None = None
    call: int | None = None


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults in the bytes of a reply; offsets count the body's bytes.

    `split`: at most this many bytes per write. `drop_at`: the socket closes. `stall_at`: nothing more is
    sent, the socket stays open. `garble_at`: eight bytes are overwritten. `never_start`: nothing is sent,
    not even a status line. `keep_open`: the body does not end.
    """

    split: int = 0
    drop_at: int | None = None
    stall_at: int | None = None
    garble_at: int | None = None
    never_start: bool = False
    keep_open: bool = False


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first matching rule replies, at most `times` times. Every rule must be used at least once.

    With a `status` of 400 or more, the reply is `body`, or an error of the dialect with `message`.
    """

    name: str = ""
    when: When = When()
    reply: list[ReplyEvent] = []
    status: int = 200
    headers: dict[str, str] = {}
    message: str = "scripted failure"
    body: str | None = None
    delay: float = 0.0
    crlf: bool = False
    faults: Faults = Faults()
    times: int | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rules: list[Rule]
    models: list[str] = msgspec.field(default_factory=lambda: ["scripted"])
    models_status: int = 200


class ScriptedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of any dialect, with the fields that rules match."""

    dialect: str
    model: str = ""
    system: str = ""
    user: str = ""
    has_tool_result: bool = False
    stream: bool = False


class RuleMatcher:
    """Finds the rule for a request and counts the uses of each rule."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = list(rules)
        self._matched = [0] * len(self._rules)
        self._used = [0] * len(self._rules)

    def find_rule(self, request: ScriptedRequest) -> Rule | None:
        """The rule for this request, counted as used; None if there is none."""
        matching = [at for at, rule in enumerate(self._rules) if _matches(rule.when, request)]
        for at in matching:
            self._matched[at] += 1
        for at in matching:
            rule = self._rules[at]
            is_due = rule.when.call is None or rule.when.call == self._matched[at]
            if is_due and (rule.times is None or self._used[at] < rule.times):
                self._used[at] += 1
                return rule
        return None

    def unused(self) -> list[str]:
        """The names of the rules that no request used."""
        return [rule.name or f"rule {at + 1}" for at, rule in enumerate(self._rules) if not self._used[at]]


def load_script(path: Path) -> Script:
    """Loads a script from a YAML file. Raises InvalidInput, which says what is wrong and where."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text("utf-8")), Script)
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        raise InvalidInput(f"{path}: {error}", kind="script_invalid") from error


def _matches(when: When, request: ScriptedRequest) -> bool:
    if when.has_tool_result is not None and when.has_tool_result != request.has_tool_result:
        return False
    wanted = ((when.system, request.system), (when.user, request.user), (when.model, request.model))
    return all(pattern is None or re.search(pattern, text) for pattern, text in wanted)


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
