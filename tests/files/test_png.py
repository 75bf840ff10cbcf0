"""Only a complete image is shown: a PNG unpacks to exactly its own pixels."""

import zlib

import pytest

from files.sample_files import png
from luxx.domain.files.image_formats import MAX_SIDE, ImageFormat, NotDisplayable, image_format

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def image(
    width: int = 3,
    height: int = 2,
    *,
    kind: bytes = b"\x08\x02\x00\x00\x00",
    rows: bytes | None = None,
    more: bytes = b"",
    end: bytes | None = None,
) -> bytes:
    rows = bytes((1 + 3 * width) * height) if rows is None else rows
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + kind
    pixels = chunk(b"IDAT", zlib.compress(rows, 9))
    return SIGNATURE + chunk(b"IHDR", head) + more + pixels + (chunk(b"IEND", b"") if end is None else end)


@pytest.mark.parametrize(
    ("data", "width", "height"),
    [
        (png(), 1, 1),
        (image(), 3, 2),
        (image(kind=b"\x08\x06\x00\x00\x00", rows=bytes((1 + 4 * 3) * 2)), 3, 2),
        (image(9, 1, kind=b"\x01\x00\x00\x00\x00", rows=bytes(1 + 2)), 9, 1),
        # Seven passes: 2 + 2 + 3 + 2 * 3 + 2 * 5 + 4 * 5 + 4 * 9.
        (
            image(8, 8, kind=b"\x08\x00\x00\x00\x01", rows=bytes(79)),
            8,
            8,
        ),
        (image(more=chunk(b"tEXt", b"Software\0a plotter")), 3, 2),
    ],
)
def test_the_size_of_a_whole_image_is_read(data: bytes, width: int, height: int) -> None:
    assert image_format(data) == ImageFormat(media_type="image/png", width=width, height=height)


BOMB = 200_000_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a PNG, JPEG or WebP"),
        (b"<svg onload='alert(1)'/>", "not a PNG, JPEG or WebP"),
        (b"GIF89a\x01\x00\x01\x00", "not a PNG, JPEG or WebP"),
        (SIGNATURE, "not exactly one complete"),
        (png()[:-5], "damaged|not exactly one complete"),
        (png(7), "not exactly one complete"),
        (image() + image(), "not exactly one complete"),
        (image(end=b""), "not exactly one complete"),
        (image().replace(b"IDAT", b"IDAX"), "damaged"),
        (image(0, 2), "too many"),
        (image(MAX_SIDE + 1, 1), "too many"),
        (image(9000, 9000, rows=b""), "too many"),
        (image(kind=b"\x07\x02\x00\x00\x00"), "unknown type"),
        (image(kind=b"\x08\x05\x00\x00\x00"), "unknown type"),
        (image(kind=b"\x08\x02\x00\x00\x02"), "unknown type"),
        (image(rows=b""), "does not match the size"),
        (image(rows=bytes(19)), "does not match the size"),
        (image(more=chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1000)))), "compressed data"),
        (image(more=chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(1000)))), "compressed data"),
        (image(more=chunk(b"iTXt", b"k\0\1\0\0\0" + zlib.compress(bytes(1000)))), "compressed data"),
        (image(more=chunk(b"acTL", bytes(8))), "animated"),
        (image(more=chunk(b"fcTL", bytes(26))), "animated"),
        (image(more=chunk(b"fdAT", bytes(4) + zlib.compress(bytes(1000)))), "animated"),
        (image(more=chunk(b"IHDR", bytes(13))), "not exactly one complete"),
        (image(more=b"\xff\xff\xff\xffJUNK"), "damaged"),
    ],
)
def test_anything_else_is_not_shown(data: bytes, words: str) -> None:
    with pytest.raises(NotDisplayable, match=words):
        image_format(data)


def jpeg(*segments: tuple[int, bytes], end: bytes = b"\xff\xd9") -> bytes:
    parts = (b"\xff" + bytes([kind]) + (len(body) + 2).to_bytes(2, "big") + body for kind, body in segments)
    return b"\xff\xd8" + b"".join(parts) + b"\x01\x02" + end


def webp(kind: bytes, body: bytes) -> bytes:
    chunk = kind + len(body).to_bytes(4, "little") + body + bytes(len(body) % 2)
    return b"RIFF" + (4 + len(chunk)).to_bytes(4, "little") + b"WEBP" + chunk


APP, FRAME = (0xE0, b"JFIF\0" + bytes(9)), (0xC2, b"\x08\x00\x02\x00\x03\x03" + bytes(9))
LOSSY = b"\0\0\0\x9d\x01\x2a\x03\x00\x02\x00" + bytes(4)
LOSSLESS = b"\x2f" + (2 | 1 << 14).to_bytes(4, "little") + bytes(6)
EXTENDED = bytes(4) + b"\x02\0\0\x01\0\0"


@pytest.mark.parametrize(
    "data",
    [jpeg(APP, FRAME), webp(b"VP8 ", LOSSY), webp(b"VP8L", LOSSLESS), webp(b"VP8X", EXTENDED)],
)
def test_the_size_of_other_kinds_of_images_is_read(data: bytes) -> None:
    kind = "image/webp" if data[:4] == b"RIFF" else "image/jpeg"
    assert image_format(data) == ImageFormat(media_type=kind, width=3, height=2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (jpeg(APP), "not exactly one complete"),
        (jpeg(APP, FRAME, end=b""), "not exactly one complete"),
        (jpeg((0xC0, b"\x08\xff\xff\xff\xff\x03")), "too many"),
        (jpeg((0xC4, FRAME[1])), "not exactly one complete"),
        (jpeg(APP, FRAME)[:9], "not exactly one complete"),
        (webp(b"VP8 ", LOSSY)[:-1], "not exactly one complete"),
        (webp(b"VP8 ", LOSSY) + b"more", "not exactly one complete"),
        (webp(b"VP8X", b"\x02" + EXTENDED[1:]), "animated"),
        (webp(b"VP8X", bytes(4) + b"\xff" * 6), "too many"),
        (webp(b"VP8?", LOSSY), "unknown type"),
        (b"RIFF\x04\0\0\0WEBP", "not exactly one complete"),
    ],
)
def test_other_kinds_of_images_are_refused_unless_complete(data: bytes, words: str) -> None:
    with pytest.raises(NotDisplayable, match=words):
        image_format(data)


def test_an_image_that_unpacks_to_much_more_is_not_shown() -> None:
    # Not a parameter: it takes a second to make, in each process that collects the tests.
    with pytest.raises(NotDisplayable, match="does not match the size"):
        image_format(image(rows=bytes(BOMB)))
