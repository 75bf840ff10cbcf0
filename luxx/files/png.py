"""Whether bytes are a PNG image that a program may be trusted to show: its size, and no bomb in it. Pure."""

import struct
import zlib
from collections.abc import Iterator

import msgspec

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_SIDE = 10_000
MAX_PIXELS = 16_000_000
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = frozenset({1, 2, 4, 8, 16})
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of an interlaced image: first column and row, and the steps between them."""
_PIECE = 256 * 1024
# What unpacks to anything but pixels.
_PACKED = frozenset({b"iCCP", b"zTXt"})
_PACKED_TEXT = b"iTXt"
# Each frame of a moving image is packed by itself.
_MOVING = frozenset({b"acTL", b"fcTL", b"fdAT"})


class NotShown(Exception):
    """Its words say why, after the image's name."""


class PngSize(msgspec.Struct, frozen=True, kw_only=True):
    width: int
    height: int


def png_size(data: bytes) -> PngSize:
    """How large the image is. Raises NotShown for what is no whole PNG, too large, or unpacks to more."""
    if not data.startswith(SIGNATURE):
        raise NotShown("is no PNG image")
    chunks = list(_chunks(data))
    if not chunks or chunks[0][0] != b"IHDR" or len(chunks[0][1]) != 13 or chunks[-1][0] != b"IEND":
        raise NotShown("is no whole PNG image")
    width, height, depth, colour, packing, filtering, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise NotShown(f"has {width} × {height} pixels, which is too many")
    if depth not in _DEPTHS or colour not in _CHANNELS or packing or filtering or interlace > 1:
        raise NotShown("is a PNG image of an unknown kind")
    for kind, body in chunks:
        if kind in _PACKED or (kind == _PACKED_TEXT and _is_packed_text(body)):
            raise NotShown("holds packed data that are no pixels")
        if kind in _MOVING:
            raise NotShown("is a moving image")
    if sum(1 for kind, _ in chunks if kind == b"IHDR") > 1:
        raise NotShown("is no whole PNG image, or more than one")
    bits = depth * _CHANNELS[colour]
    size = _unpacked(width, height, bits, is_interlaced=interlace == 1)
    _require_size(b"".join(body for kind, body in chunks if kind == b"IDAT"), size)
    return PngSize(width=width, height=height)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each with a right checksum, up to the end of the image."""
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        check = data[at + 8 + length : at + 12 + length]
        if len(check) < 4 or zlib.crc32(kind + body) != int.from_bytes(check, "big"):
            raise NotShown("is a damaged PNG image")
        yield kind, body
        at += 12 + length
        if kind == b"IEND":
            break
    if at != len(data):
        raise NotShown("is no whole PNG image, or more than one")


def _is_packed_text(body: bytes) -> bool:
    return body.partition(b"\0")[2][:1] != b"\0"


def _unpacked(width: int, height: int, bits: int, *, is_interlaced: bool) -> int:
    """The bytes of all rows, each with the byte that names its filter."""
    passes = _PASSES if is_interlaced else ((0, 0, 1, 1),)
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total


def _require_size(packed: bytes, size: int) -> None:
    unpacker, found = zlib.decompressobj(), 0
    try:
        while not unpacker.eof and found <= size:
            piece = unpacker.decompress(packed, _PIECE)
            packed = unpacker.unconsumed_tail
            found += len(piece)
            if not piece and not packed:
                break
    except zlib.error as error:
        raise NotShown("is a damaged PNG image") from error
    if found != size or not unpacker.eof:
        raise NotShown("does not unpack to what it says it holds")
