"""Compressed bodies unpacked within a bound: what a bomb would make of itself is never made."""

import zlib
from typing import Protocol

ENCODINGS = "gzip, deflate"
"""What is asked for; another one, or several on top of each other, is not unpacked."""


class NotUnpacked(Exception):
    """The body is damaged, or packed in a way that was not asked for."""


_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 2
_MOST_PARTS = 1000


class _Decompress(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Inflater:
    """Unpacks a body as it comes, up to `limit` bytes; `is_full` says that there was more."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = _known(encoding)
        self._limit = limit
        self._held = b""
        self._inflate: _Decompress | None = None
        self._parts = 0
        self._has_ended = False
        self.data = bytearray()
        self.is_full = False

    @property
    def is_whole(self) -> bool:
        """Whether what came is all of it: nothing was left out, and nothing ends in its middle."""
        if self.is_full or self._held:
            return False
        return self._has_ended or self._inflate is None or self._inflate.eof

    def feed(self, piece: bytes) -> None:
        """Raises NotUnpacked."""
        if self.is_full or self._has_ended or not piece:
            return
        if not self._encoding:
            self._add(piece[: self._room])
            return
        rest = self._held + piece
        self._held = b""
        while rest and not (self.is_full or self._has_ended):
            rest = self._unpack(rest)

    @property
    def _room(self) -> int:
        """One byte more than there is room for tells whether there is more."""
        return self._limit - len(self.data) + 1

    def _add(self, unpacked: bytes) -> None:
        self.data += unpacked
        if len(self.data) > self._limit:
            del self.data[self._limit :]
            self.is_full = True

    def _unpack(self, packed: bytes) -> bytes:
        """What is left of it for the part that follows, as gzip may have several."""
        if self._inflate is None or self._inflate.eof:
            if len(packed) < _HEAD_BYTES:
                self._held = packed
                return b""
            # What follows and is no such part is padding.
            if self._parts and not (self._encoding == "gzip" and packed.startswith(_GZIP)):
                self._has_ended = True
                return b""
            self._parts += 1
            if self._parts > _MOST_PARTS:
                self.is_full = True
                return b""
            self._inflate = _inflate(self._encoding, packed)
        try:
            self._add(self._inflate.decompress(packed, self._room))
        except zlib.error as error:
            if self._parts == 1:
                raise NotUnpacked("its compressed body is damaged") from error
            self._has_ended = True
            return b""
        return self._inflate.unused_data


def _known(encoding: str) -> str:
    """`gzip`, `deflate`, or nothing."""
    match encoding.strip().lower():
        case "" | "identity":
            return ""
        case "gzip" | "x-gzip":
            return "gzip"
        case "deflate":
            return "deflate"
        case other:
            raise NotUnpacked(f"its body is packed as {other[:40]!r}, which was not asked for")


def _inflate(encoding: str, beginning: bytes) -> _Decompress:
    if encoding == "gzip":
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    # "deflate" means zlib's format, and many servers send the bare one.
    method, check = beginning[0], int.from_bytes(beginning[:_HEAD_BYTES])
    is_wrapped = method & 0x0F == zlib.DEFLATED and check % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)
