"""What an MCP server was given as `env`, taken out of what is told of it: it may say it at any time. Pure."""

from collections.abc import Iterable
from typing import Any, cast

from luxx.mcp.schema import shortened

SHORTEST = 6
"""Characters of a value that is taken out; a shorter one may be any word."""

_INSTEAD = "…"


class Secrets:
    """`env`: entries `NAME=value`."""

    def __init__(self, env: Iterable[str]) -> None:
        values = {one.partition("=")[2] for one in env}
        self._values = sorted((one for one in values if len(one) >= SHORTEST), key=len, reverse=True)

    def hidden(self, text: str) -> str:
        """The text without them."""
        for value in self._values:
            text = text.replace(value, _INSTEAD)
        return text

    def cut(self, text: str, most: int) -> str:
        """The same, shortened: only afterwards, so that no half of one is left."""
        return shortened(self.hidden(text), most)

    def are_in(self, data: Any) -> bool:
        """Whether JSON data say one anywhere."""
        return self.hidden_in(data) is not data

    def hidden_in(self, data: Any) -> Any:
        """JSON data without them; the same object where there are none in it."""
        if not self._values:
            return data
        found: Any = data
        if isinstance(data, str):
            found = self.hidden(data)
        elif isinstance(data, list):
            found = [self.hidden_in(one) for one in cast("list[Any]", data)]
        elif isinstance(data, dict):
            given = cast("dict[str, Any]", data)
            found = {self.hidden(name): self.hidden_in(one) for name, one in given.items()}
        return cast(Any, data) if found == data else found
