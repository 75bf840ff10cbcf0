"""Compressed bodies unpacked within a bound: what a bomb would make of itself is never made."""

import zlib
from typing import Protocol

ENCODINGS = "gzip, deflate"
"""What is asked for; another one, or several on top of each other, is not unpacked."""


class NotUnpacked(Exception):
    """The body is damaged, or packed in a way that was not asked for."""


class _Decompress(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Inflater:
    """Unpacks a body as it comes, up to `limit` bytes; `is_full` says that there was more."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = encoding.strip().lower()
        self._limit = limit
        self._inflate = _inflate(self._encoding)
        self._is_first = True
        self.data = bytearray()
        self.is_full = False

    def feed(self, piece: bytes) -> None:
        """Raises NotUnpacked."""
        if self.is_full or not piece:
            return
        room = self._limit - len(self.data)
        # One byte more than there is room for tells whether there is more.
        self.data += self._unpacked(piece, room + 1)
        if len(self.data) > self._limit:
            del self.data[self._limit :]
            self.is_full = True

    def _unpacked(self, piece: bytes, most: int) -> bytes:
        if self._inflate is None:
            return piece[:most]
        is_first, self._is_first = self._is_first, False
        try:
            return self._inflate.decompress(piece, most)
        except zlib.error as error:
            if not is_first or self._encoding != "deflate":
                raise NotUnpacked("its compressed body is damaged") from error
        # "deflate" means zlib's format, and many servers send the bare one.
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            return self._inflate.decompress(piece, most)
        except zlib.error as error:
            raise NotUnpacked("its compressed body is damaged") from error


def _inflate(encoding: str) -> _Decompress | None:
    match encoding:
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        case "deflate":
            return zlib.decompressobj()
        case _:
            raise NotUnpacked(f"its body is packed as {encoding[:40]!r}, which was not asked for")
