"""A script for the scripted provider: which requests it answers, with what, and how it misbehaves.

Values and their YAML form only; matching is here too, serving is in `scripted.py`.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    """`arguments` is an object, or the JSON text itself where it shall be broken."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str = ""


class Counts(msgspec.Struct, frozen=True, kw_only=True, tag="usage"):
    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """`reason` is one of stop, tool_calls, length; given to the client in its dialect's word."""

    reason: str = "stop"


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """An error object inside the stream, after status 200. Nothing follows it."""

    message: str
    kind: str = "server_error"
    code: int | str = 500


class Bytes(msgspec.Struct, frozen=True, kw_only=True, tag="raw"):
    """Sent as they are, in UTF-8; a reply with raw bytes gets no ending of its own."""

    data: str


class Gate(msgspec.Struct, frozen=True, kw_only=True, tag="gate"):
    """Waits until the test releases this name."""

    name: str


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag="pause"):
    seconds: float


ReplyEvent = Thinking | Text | Call | Counts | Finish | Fail | Bytes | Gate | Pause


class When(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All given conditions must hold. `system`, `user` and `model` are regular expressions searched in
    the system prompt (the agent), the last user message and the model's name; `call` counts, from 1,
    the requests for which this rule's other conditions hold.
    """

    system: str | None = None
    user: str | None = None
    model: str | None = None
    has_tool_result: bool | None = None
    call: int | None = None


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the bytes of a reply are spoiled; offsets count the body's bytes.

    `split`: at most so many bytes per write. `drop_at`: the socket is cut there. `stall_at`: nothing
    more is sent, the socket stays open. `garble_at`: eight bytes are overwritten there.
    `never_start`: not even a status line. `keep_open`: the body has no end.
    """

    split: int = 0
    drop_at: int | None = None
    stall_at: int | None = None
    garble_at: int | None = None
    never_start: bool = False
    keep_open: bool = False


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first rule that fits answers. `times` limits how often; a rule must be used at least once.

    With a `status` of 400 or more, `body` (or an error of the dialect with `message`) is the answer.
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
    """A request, read from any dialect, as far as rules look at it."""

    dialect: str
    model: str = ""
    system: str = ""
    user: str = ""
    has_tool_result: bool = False
    stream: bool = False


class RuleMatcher:
    """A script with what has been used of it."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = list(rules)
        self._matched = [0] * len(self._rules)
        self._used = [0] * len(self._rules)

    def pick(self, request: ScriptedRequest) -> Rule | None:
        """The rule that answers this request, counted as used; None when nobody scripted it."""
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
        """The names of rules no request used."""
        return [rule.name or f"rule {at + 1}" for at, rule in enumerate(self._rules) if not self._used[at]]


def load_script(path: Path) -> Script:
    """A script from its YAML file. Raises InvalidInput naming what is wrong and where."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text("utf-8")), Script)
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        raise InvalidInput(f"{path}: {error}", kind="script_invalid") from error


def _matches(when: When, request: ScriptedRequest) -> bool:
    if when.has_tool_result is not None and when.has_tool_result != request.has_tool_result:
        return False
    wanted = ((when.system, request.system), (when.user, request.user), (when.model, request.model))
    return all(pattern is None or re.search(pattern, text) for pattern, text in wanted)
