"""What the parsers of all dialects share: splitting a body into events, detecting its framing, bounds.

No dialect and no network here.
"""

from luxx.errors import MalformedStream

MAX_RETAINED_BYTES = 32 * 1024 * 1024
MAX_BLANK_BYTES = 64 * 1024
MAX_UNPARSED_BYTES = 64 * 1024
MAX_EVENT_BYTES = 8 * 1024 * 1024
"""More than any real event: a generated image in base64 is about 3 MB."""

SseEvent = tuple[bytes, bytes]
"""The event's name (empty if not given) and its data, lines joined by a line feed."""

_BOM = b"\xef\xbb\xbf"
_LINE_FEED = 0x0A
_JSON = b"{["


class RetainedBytes:
    """Bounds the bytes of events that a parser keeps.

    The parser sets `event_bytes` per event; `retain_event` counts them once, however often it is called.
    """

    __slots__ = ("_bytes", "event_bytes")

    def __init__(self) -> None:
        self.event_bytes = 0
        self._bytes = 0

    def retain_event(self) -> None:
        """Counts the current event. Raises MalformedStream past the bound."""
        self._bytes += self.event_bytes
        self.event_bytes = 0
        if self._bytes > MAX_RETAINED_BYTES:
            raise MalformedStream(
                f"The provider's response contains more than {MAX_RETAINED_BYTES} bytes besides its text."
            )


class FramingDetector:
    """Detects by the first byte whether a body is an event stream (`is_events`) or JSON (`is_json`).

    It drops leading whitespace. A JSON body begins with a brace or a bracket; an event stream never does.
    """

    def __init__(self) -> None:
        self.is_events = False
        self.is_json = False
        self.body = bytearray()
        self._blank_bytes = 0

    def read(self, piece: bytes) -> bytes:
        """The piece without leading whitespace. Raises MalformedStream for whitespace past the bound."""
        if self.is_events or self.is_json:
            return piece
        data = piece.lstrip()
        if data:
            self.is_json = data[0] in _JSON
            self.is_events = not self.is_json
            return data
        self._blank_bytes += len(piece)
        if self._blank_bytes > MAX_BLANK_BYTES:
            raise MalformedStream(
                f"The provider sent more than {MAX_BLANK_BYTES} blank bytes before its response."
            )
        return b""

    def gather(self, piece: bytes) -> bytes:
        """The part of the piece that belongs to an event stream; a JSON body is collected in `body`.

        Raises MalformedStream for a body past the bound.
        """
        data = self.read(piece)
        if not self.is_json:
            return data
        self.body += data
        if len(self.body) > MAX_RETAINED_BYTES:
            raise MalformedStream(f"The provider sent a response of more than {MAX_RETAINED_BYTES} bytes.")
        return b""


class SseSplitter:
    """Takes pieces in order and returns each event once it is complete. Not reusable.

    `unparsed` has the first lines that are not SSE fields: some servers end a stream with a bare JSON error.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._buffer = bytearray()
        self._after_cr = False
        self._at_start = True
        self._unparsed = bytearray()

    @property
    def unparsed(self) -> bytes:
        return bytes(self._unparsed)

    def single_event(self, piece: bytes) -> bytes | None:
        """The data of a piece that is exactly one unnamed event, as nearly all are.

        None for any other piece, which must then be fed.
        """
        if (
            piece.startswith(b"data: ")
            and piece.find(b"\n") == len(piece) - 2
            and piece[-1] == _LINE_FEED
            and not (self._buffer or self._after_cr or self._at_start)
            and b"\r" not in piece
        ):
            return piece[6:-2]
        return None

    def feed(self, piece: bytes) -> list[SseEvent]:
        """The events completed by this piece. Raises MalformedStream for an event past the size bound."""
        if self._after_cr or b"\r" in piece:
            piece = self._unify_line_ends(piece)
        buffer = self._buffer
        if self._at_start:
            piece = self._without_bom(piece)
        scanned_to = max(0, len(buffer) - 1)
        if b"\n" not in piece:
            buffer += piece
            self._check_size()
            return []
        if buffer:
            buffer += piece
            if buffer.find(b"\n\n", scanned_to) < 0:
                # Only the new bytes are scanned, so an event of many lines is not copied per line.
                self._check_size()
                return []
            blocks = bytes(buffer).split(b"\n\n")
            buffer.clear()
        else:
            blocks = piece.split(b"\n\n")
        rest = blocks.pop()
        if rest:
            buffer += rest
            self._check_size()
        events: list[SseEvent] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append((b"", block[6:]))
            else:
                self._read_block(block, events)
        return events

    def finish(self) -> list[SseEvent]:
        """The last event if the stream ended without a blank line; it may be truncated."""
        events: list[SseEvent] = []
        block = bytes(self._buffer)
        self._buffer.clear()
        self._read_block(block, events)
        return events

    def _unify_line_ends(self, piece: bytes) -> bytes:
        # CR, LF and CRLF all end a line; a CRLF may be cut between its two bytes.
        if not piece:
            return piece
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_bom(self, piece: bytes) -> bytes:
        start = bytes(self._buffer) + piece
        if len(start) < len(_BOM) and _BOM.startswith(start):
            return piece
        self._at_start = False
        self._buffer.clear()
        return start.removeprefix(_BOM)

    def _check_size(self) -> None:
        if len(self._buffer) > self._max_event_bytes:
            raise MalformedStream(f"The provider sent an event of more than {self._max_event_bytes} bytes.")

    def _read_block(self, block: bytes, events: list[SseEvent]) -> None:
        name = b""
        data: list[bytes] = []
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
            elif field not in (b"", b"id", b"retry") and len(self._unparsed) < MAX_UNPARSED_BYTES:
                self._unparsed += line[:MAX_UNPARSED_BYTES] + b"\n"
        if data:
            events.append((name, b"\n".join(data)))
