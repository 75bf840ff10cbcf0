"""The size of an image in pixels, as its header declares it, and whether bytes are one complete image that
can be shown: PNG, JPEG or WebP within limits.

The bytes are from programs and MCP servers. What a browser decodes is bounded by the size that the image
declares; of a PNG the compressed data are unpacked to see that they have that size.
"""

import struct
import zlib
from collections.abc import Iterator

import msgspec

from luxx.domain.files.names import image_type

MAX_SIDE = 10_000
MAX_PIXELS = 16_000_000
"""The limits of an image that is shown."""

MAX_GIVEN_PIXELS = 100_000_000
"""The limit of an image that a person gives to a model: more than cameras of phones make."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = frozenset({1, 2, 4, 8, 16})
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""The passes of an interlaced image: first column and row, and the steps between columns and rows."""
_PIECE = 256 * 1024
# Chunks with compressed data other than pixels.
_PACKED = frozenset({b"iCCP", b"zTXt"})
_PACKED_TEXT = b"iTXt"
# Each frame of an animation is compressed separately, so the size check would miss it.
_ANIMATION_CHUNKS = frozenset({b"acTL", b"fcTL", b"fdAT"})


_NOT_ONE_IMAGE = "is not exactly one complete image"
_SIZELESS_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a JPEG without a length, and those whose segment has the size of the image."""


class NotDisplayable(Exception):
    """Why an image is not shown; the message continues a sentence that starts with the image's name."""


class ImageFormat(msgspec.Struct, frozen=True, kw_only=True):
    media_type: str
    width: int
    height: int


def image_format(data: bytes) -> ImageFormat:
    """The type of an image and its size in pixels, by its bytes.

    Raises NotDisplayable unless it is one complete image of a known type within the limits.
    """
    match image_type(data):
        case "image/png":
            width, height = _png_size(data)
        case "image/jpeg":
            width, height = _jpeg_size(data)
        case "image/webp":
            width, height = _webp_size(data)
        case _:
            raise NotDisplayable("is not a PNG, JPEG or WebP image")
    return ImageFormat(media_type=image_type(data) or "", width=width, height=height)


def has_too_many_pixels(data: bytes) -> bool:
    """Whether the header of an image declares more than MAX_GIVEN_PIXELS; who decodes it stores them all."""
    width, height = declared_size(data) or (0, 0)
    return width * height > MAX_GIVEN_PIXELS


def declared_size(data: bytes) -> tuple[int, int] | None:
    """The size in the header of a PNG, JPEG, GIF or WebP image; None if it has no header. Decodes nothing."""
    match image_type(data):
        case "image/png" if data[12:16] == b"IHDR" and len(data) >= 24:
            width, height = struct.unpack(">II", data[16:24])
            return width, height
        case "image/gif" if len(data) >= 10:
            width, height = struct.unpack("<HH", data[6:10])
            return width, height
        case "image/jpeg":
            return _jpeg_header(data)
        case "image/webp":
            return _webp_header(data)
        case _:
            return None


def _check_size(width: int, height: int) -> None:
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise NotDisplayable(f"has {width} × {height} pixels, which is too many")


def _jpeg_header(data: bytes) -> tuple[int, int] | None:
    """The size in the header of the first frame, before the compressed data."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in _SIZELESS_MARKERS:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _FRAME_MARKERS and at + 9 <= len(data):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _jpeg_size(data: bytes) -> tuple[int, int]:
    size = _jpeg_header(data)
    if size is None or not data.endswith(b"\xff\xd9"):
        raise NotDisplayable(_NOT_ONE_IMAGE)
    _check_size(*size)
    return size


def _webp_header(data: bytes) -> tuple[int, int] | None:
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        width, height = (side & 0x3FFF for side in struct.unpack("<HH", body[6:10]))
    elif kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8X":
        width, height = (int.from_bytes(body[at : at + 3], "little") + 1 for at in (4, 7))
    else:
        return None
    return width, height


def _webp_size(data: bytes) -> tuple[int, int]:
    length = int.from_bytes(data[4:8], "little") + 8
    if length not in (len(data), len(data) - 1) or len(data) < 30:
        raise NotDisplayable(_NOT_ONE_IMAGE)
    if data[12:16] == b"VP8X" and data[20] & 2:
        raise NotDisplayable("is an animated image")
    size = _webp_header(data)
    if size is None:
        raise NotDisplayable("is a WebP image of an unknown type")
    _check_size(*size)
    return size


def _png_size(data: bytes) -> tuple[int, int]:
    """The size in the header; the compressed data must have exactly that size."""
    chunks = list(_chunks(data))
    if not chunks or chunks[0][0] != b"IHDR" or len(chunks[0][1]) != 13 or chunks[-1][0] != b"IEND":
        raise NotDisplayable(_NOT_ONE_IMAGE)
    width, height, depth, colour, packing, filtering, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    _check_size(width, height)
    if depth not in _DEPTHS or colour not in _CHANNELS or packing or filtering or interlace > 1:
        raise NotDisplayable("is a PNG image of an unknown type")
    for kind, body in chunks:
        is_packed_text = kind == _PACKED_TEXT and body.partition(b"\0")[2][:1] != b"\0"
        if kind in _PACKED or is_packed_text:
            raise NotDisplayable("contains compressed data other than pixels")
        if kind in _ANIMATION_CHUNKS:
            raise NotDisplayable("is an animated image")
    if sum(1 for kind, _ in chunks if kind == b"IHDR") > 1:
        raise NotDisplayable(_NOT_ONE_IMAGE)
    bits = depth * _CHANNELS[colour]
    size = _pixel_bytes(width, height, bits, is_interlaced=interlace == 1)
    _require_size(b"".join(body for kind, body in chunks if kind == b"IDAT"), size)
    return width, height


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks up to the end of the image. Raises NotDisplayable for a wrong checksum or trailing data."""
    at = len(_SIGNATURE)
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        checksum = data[at + 8 + length : at + 12 + length]
        if len(checksum) < 4 or zlib.crc32(kind + body) != int.from_bytes(checksum, "big"):
            raise NotDisplayable("is a damaged PNG image")
        yield kind, body
        at += 12 + length
        if kind == b"IEND":
            break
    if at != len(data):
        raise NotDisplayable(_NOT_ONE_IMAGE)


def _pixel_bytes(width: int, height: int, bits: int, *, is_interlaced: bool) -> int:
    """The uncompressed size of all rows; each row begins with a filter byte."""
    passes = _PASSES if is_interlaced else ((0, 0, 1, 1),)
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total


def _require_size(packed: bytes, size: int) -> None:
    unpacker, unpacked_size = zlib.decompressobj(), 0
    try:
        while not unpacker.eof and unpacked_size <= size:
            piece = unpacker.decompress(packed, _PIECE)
            packed = unpacker.unconsumed_tail
            unpacked_size += len(piece)
            if not piece and not packed:
                break
    except zlib.error as error:
        raise NotDisplayable("is a damaged PNG image") from error
    if unpacked_size != size or not unpacker.eof:
        raise NotDisplayable("does not match the size in its header")
