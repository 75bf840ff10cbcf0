"""The arguments of a streamed Gemini call: values at JSON paths, put together into one object.

Which call they belong to is `gemini_calls.py`'s.
"""

import re
from typing import Any, cast

import msgspec

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+) | \[\s*(?P<index>\d{1,9})\s*\]
      | \[\s*'(?P<single>(?:[^'\\]|\\.)*)'\s*\] | \[\s*"(?P<double>(?:[^"\\]|\\.)*)"\s*\]""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

MAX_DEPTH = 64
MAX_GAPS = 100
"""How many items of arrays may be left out in all; a model writes them in order."""

_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")


class PartialArguments:
    """Grows by `put`; strings at one path are joined, anything else takes the place of what was there.

    `is_broken`: a path could not be followed, so the object is not what the model meant.
    """

    def __init__(self) -> None:
        self._root: list[Any] = [{}]
        self._gaps = 0
        self.is_broken = False
        self.has_values = False

    def merge(self, values: dict[str, Any]) -> None:
        """Takes arguments that came as an object."""
        self.has_values = True
        if isinstance(self._root[0], dict):
            cast("dict[str, Any]", self._root[0]).update(values)

    def put(self, item: dict[str, Any]) -> None:
        """Takes one item of `partialArgs`; one without a value only says that its path is complete."""
        self.has_values = True
        kind = next((kind for kind in _VALUES if kind in item), None)
        steps = _steps(item.get("jsonPath"))
        if steps is None:
            self.is_broken = True
        elif kind is not None:
            self._put(steps, _value(kind, item[kind]))

    def text(self) -> str:
        """The JSON text of what is there so far."""
        return msgspec.json.encode(self._root[0], enc_hook=_joined).decode()

    def _put(self, steps: list[str | int], value: Any) -> None:
        place: Any = self._root
        key: str | int = 0
        for step in steps:
            child: Any = _get(place, key)
            if not isinstance(child, list if isinstance(step, int) else dict):
                child = [] if isinstance(step, int) else {}
                if not self._set(place, key, child):
                    return
            place, key = cast("Any", child), step
        old = _get(place, key)
        if not isinstance(value, str):
            self._set(place, key, value)
        elif isinstance(old, _Text):
            old.pieces.append(value)
        else:
            self._set(place, key, _Text([old, value] if isinstance(old, str) else [value]))

    def _set(self, place: Any, key: str | int, value: Any) -> bool:
        if isinstance(key, int) and key >= len(place):
            gap = key - len(place)
            if self._gaps + gap > MAX_GAPS:
                self.is_broken = True
                return False
            self._gaps += gap
            place.extend([None] * (gap + 1))
        place[key] = value
        return True


class _Text:
    """A string that grows; joined once, when it is whole."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces


def _joined(text: object) -> str:
    assert isinstance(text, _Text)
    return "".join(text.pieces)


def _steps(path: object) -> list[str | int] | None:
    """`$.a.b[0]['c d']` as `["a", "b", 0, "c d"]`; None for what is no such path."""
    if not isinstance(path, str):
        return None
    rest = path.strip().removeprefix("$")
    if rest and rest[0] not in ".[":
        rest = "." + rest
    steps: list[str | int] = []
    at = 0
    while at < len(rest):
        step = _STEP.match(rest, at)
        if step is None or len(steps) >= MAX_DEPTH:
            return None
        if step["index"] is not None:
            steps.append(int(step["index"]))
        elif step["name"] is not None:
            steps.append(step["name"])
        else:
            quoted = step["single"] if step["single"] is not None else step["double"]
            steps.append(_ESCAPED.sub(r"\1", quoted))
        at = step.end()
    return steps


def _value(kind: str, value: Any) -> Any:
    if kind == "nullValue":
        return None
    if kind == "numberValue" and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        # The wire has only doubles; a tool that asks for an integer must get one.
        return int(value)
    return value


def _get(place: Any, key: str | int) -> Any:
    if isinstance(key, int):
        return place[key] if key < len(place) else None
    return place.get(key)
