"""Pictures: of the pages of a PDF as PNG, and the pictures that a source brings."""

# The libraries of this module have no complete types.
# pyright: basic

from collections.abc import Sequence
from io import BytesIO

import pypdfium2
from PIL import Image

MOST_PICTURE_BYTES = 150_000
_MOST_PIXELS = 40_000_000
_FORMATS = ("PNG", "JPEG", "GIF")
_COLOURS = (256, 128, 64, 32, 16)


def checked_image(data: bytes) -> tuple[int, int] | None:
    """The size of a picture in pixels; None if it is none, or too large."""
    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > _MOST_PIXELS or not width or not height:
                return None
            image.verify()
    except Exception:
        # Decoders raise errors of many kinds for what they did not expect.
        return None
    return width, height


def page_pictures(pdf: bytes, wanted: Sequence[int] | None, width: int) -> dict[int, bytes]:
    """PNG pictures of the pages of a PDF, by page from 1, `width` pixels wide; None: of all pages."""
    document = pypdfium2.PdfDocument(pdf)
    try:
        count = len(document)
        pages = range(1, count + 1) if wanted is None else [page for page in wanted if 1 <= page <= count]
        return {number: _picture(document[number - 1], width) for number in pages}
    finally:
        document.close()


def _picture(page: pypdfium2.PdfPage, width: int) -> bytes:
    scale = width / page.get_width()
    image = page.render(scale=scale).to_pil().convert("RGB")
    if image.width != width:
        image = image.resize((width, image.height))
    return png(image)


def png(image: Image.Image) -> bytes:
    """The picture as PNG of at most MOST_PICTURE_BYTES, with a palette where that needs one."""
    data = _png(image)
    for colours in _COLOURS:
        if len(data) <= MOST_PICTURE_BYTES:
            break
        data = _png(image.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE))
    return data


def _png(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG", compress_level=6)
    return file.getvalue()
