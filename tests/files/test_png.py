"""Only a complete PNG that unpacks to exactly its own pixels is shown as an image."""

import zlib

import pytest

from files.sample_files import png
from luxx.domain.files.tool_files import MAX_SIDE, NotDisplayable, PngSize, png_size

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
    assert png_size(data) == PngSize(width=width, height=height)


BOMB = 200_000_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a PNG"),
        (b"<svg onload='alert(1)'/>", "not a PNG"),
        (b"GIF89a\x01\x00\x01\x00", "not a PNG"),
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
        png_size(data)


def test_an_image_that_unpacks_to_much_more_is_not_shown() -> None:
    # Not a parameter: it takes a second to make, in each process that collects the tests.
    with pytest.raises(NotDisplayable, match="does not match the size"):
        png_size(image(rows=bytes(BOMB)))
