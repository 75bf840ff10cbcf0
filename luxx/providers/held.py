"""How much of one answer a parser holds beside what it gives out: counted, and bounded for every dialect.

What was given out is bounded by who reads it (`runs/completion.py`), one event by its splitter.
"""

from luxx.errors import Garbled

MAX_HELD_BYTES = 32 * 1024 * 1024
MAX_BLANK_BYTES = 64 * 1024

_JSON = b"{["


class Held:
    """Counts the events of which anything is kept: `keep` for each, however often, counts `coming` once."""

    __slots__ = ("_bytes", "coming")

    def __init__(self) -> None:
        self.coming = 0
        self._bytes = 0

    def keep(self) -> None:
        """Something of the event at hand stays. Raises Garbled past the bound."""
        self._bytes += self.coming
        self.coming = 0
        if self._bytes > MAX_HELD_BYTES:
            raise Garbled(f"The provider's answer holds more than {MAX_HELD_BYTES} bytes beside its text.")


class Opening:
    """Tells by an answer's first byte how it is framed: `is_events` or `is_json`.

    Blanks before it are dropped. A JSON body begins with a brace or a bracket, which no event stream does.
    """

    def __init__(self) -> None:
        self.is_events = False
        self.is_json = False
        self.body = bytearray()
        self._blanks = 0

    def read(self, piece: bytes) -> bytes:
        """What of the piece belongs to the answer. Raises Garbled for blanks past the bound."""
        if self.is_events or self.is_json:
            return piece
        begun = piece.lstrip()
        if begun:
            self.is_json = begun[0] in _JSON
            self.is_events = not self.is_json
            return begun
        self._blanks += len(piece)
        if self._blanks > MAX_BLANK_BYTES:
            raise Garbled(f"The provider sent more than {MAX_BLANK_BYTES} blank bytes before its answer.")
        return b""

    def gather(self, piece: bytes) -> bytes:
        """What of the piece belongs to an event stream; a JSON body is gathered in `body` instead."""
        begun = self.read(piece)
        if not self.is_json:
            return begun
        self.body += begun
        if len(self.body) > MAX_HELD_BYTES:
            raise Garbled(f"The provider sent an answer of more than {MAX_HELD_BYTES} bytes.")
        return b""
