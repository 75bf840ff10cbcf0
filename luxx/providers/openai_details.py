"""The `reasoning_details` of an OpenAI-dialect answer: fragments joined to blocks, to go back whole."""

from typing import Any

_JOINED = ("text", "summary")


class ReasoningDetails:
    """Feed it each chunk's details, in order."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def read(self, details: list[dict[str, Any]]) -> None:
        """Joins fragments of one reasoning block: same type and index, no data of their own."""
        for detail in details:
            last = self._blocks[-1] if self._blocks else None
            if last is None or "data" in detail or not last.goes_on_with(detail):
                last = _Block()
                self._blocks.append(last)
            last.grow(detail)

    def whole(self) -> list[dict[str, Any]]:
        """The blocks as they must be sent back."""
        return [block.whole() for block in self._blocks]


class _Block:
    __slots__ = ("_fields", "_texts")

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}

    def goes_on_with(self, detail: dict[str, Any]) -> bool:
        return all(self._fields.get(key) == detail.get(key) for key in ("type", "index"))

    def grow(self, detail: dict[str, Any]) -> None:
        for key, value in detail.items():
            if key in _JOINED and isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
                self._fields[key] = None  # keeps its place among the others
            elif value is not None or key not in self._fields:
                self._fields[key] = value

    def whole(self) -> dict[str, Any]:
        return self._fields | {key: "".join(parts) for key, parts in self._texts.items()}
