"""The fonts with which text is measured and drawn, and their characters. Needs the extra `artifacts`."""

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from PIL import ImageFont

from luxx.infra.documents.render.blocks import Span
from luxx.infra.documents.render.scripts import is_wide

_UNITS = 1000
_NO_LINE_START = frozenset("，。、；：？！）》」』】〕…—,.;:?!)]}%’”")
_NO_LINE_END = frozenset("（《「『【〔([{‘“")
_DRAWN_BY_ALL = frozenset("\n\t\u200b\u200c\u200d\u2060\ufe0f\ufeff\u00ad")
_CODE_EM = 0.6


def latin_fonts() -> Path:
    """The directory of Arimo, whose characters are as wide as those of Arial."""
    return _package("fontpkg_arimo") / "files"


def cjk_font() -> Path | None:
    """The collection of Noto Sans CJK; None without the extra `artifacts-cjk`."""
    if find_spec("noto_cjk_sans_otc") is None:
        return None
    return _package("noto_cjk_sans_otc") / "NotoSansCJK-Regular.ttc"


def font_directories() -> list[Path]:
    """The directories of all fonts."""
    cjk = cjk_font()
    return [latin_fonts(), *([] if cjk is None else [cjk.parent])]


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def _font(is_bold: bool) -> ImageFont.FreeTypeFont:
    path = latin_fonts() / "Arimo[wght].ttf"
    font = ImageFont.truetype(str(path), _UNITS, layout_engine=ImageFont.Layout.BASIC)
    if is_bold:
        font.set_variation_by_axes([700])
    return font


@cache
def _character_width(character: str, is_bold: bool) -> float:
    return 1.0 if is_wide(character) else _font(is_bold).getlength(character) / _UNITS


def text_width(text: str, size: float, *, bold: bool = False, code: bool = False) -> float:
    """The width of a line of text in points."""
    if code:
        return size * sum(1.0 if is_wide(character) else _CODE_EM for character in text)
    return size * sum(_character_width(character, bold) for character in text)


def wrapped_lines(spans: Sequence[Span], size: float, width: float, *, bold: bool = False) -> int:
    """The number of lines in `width` points. Lines break at spaces and at East Asian characters, and
    within a word that is longer than a line.
    """
    lines, used = 1, 0.0
    for word, is_space, is_bold, is_code in _words(spans):
        if word == "\n":
            lines, used = lines + 1, 0.0
            continue
        length = text_width(word, size, bold=bold or is_bold, code=is_code)
        if used + length <= width:
            used += length
        elif is_space:
            used = width  # A space hangs over the end of the line.
        else:
            lines += used > 0
            used = length
            if length > width:
                more = int(length // width)
                lines, used = lines + more, length - more * width
    return lines


def _words(spans: Sequence[Span]) -> Iterable[tuple[str, bool, bool, bool]]:
    for span in spans:
        start = 0
        text = span.text
        for end in range(1, len(text) + 1):
            if end < len(text) and not _may_break(text[end - 1], text[end]):
                continue
            piece = text[start:end]
            yield piece, piece.isspace() and piece != "\n", span.bold, span.code
            start = end


def _may_break(before: str, after: str) -> bool:
    if before.isspace() or after.isspace():
        return not (before == after == " ")
    if after in _NO_LINE_START or before in _NO_LINE_END:
        return False
    return is_wide(before) or is_wide(after) or (before == "-" and after.isalpha())


def missing_characters(texts: Iterable[str]) -> list[str]:
    """The characters that no font has, in order."""
    has = _covered()
    wanted = {character for text in texts for character in text}
    return sorted(c for c in wanted if ord(c) not in has and c not in _DRAWN_BY_ALL and not c.isspace())


@cache
def _covered() -> frozenset[int]:
    cjk = cjk_font()
    covered = _characters(latin_fonts() / "Arimo[wght].ttf")
    return frozenset(covered if cjk is None else covered | _characters(cjk))


def _characters(path: Path) -> set[int]:
    """The characters of a font, or of the first one of a collection, by the table `cmap`."""
    with path.open("rb") as file:
        head = file.read(16)
        start = struct.unpack(">I", head[12:16])[0] if head[:4] == b"ttcf" else 0
        file.seek(start + 4)
        (tables,) = struct.unpack(">H", file.read(2))
        file.seek(start + 12)
        directory = file.read(16 * tables)
        for index in range(tables):
            tag, _, offset, length = struct.unpack_from(">4sIII", directory, 16 * index)
            if tag == b"cmap":
                file.seek(offset)
                return _mapped(file.read(length))
    return set()


def _mapped(cmap: bytes) -> set[int]:
    characters = set[int]()
    (tables,) = struct.unpack_from(">H", cmap, 2)
    for index in range(tables):
        (offset,) = struct.unpack_from(">I", cmap, 8 + 8 * index)
        (form,) = struct.unpack_from(">H", cmap, offset)
        if form == 12:
            (groups,) = struct.unpack_from(">I", cmap, offset + 12)
            for group in range(groups):
                first, last, _ = struct.unpack_from(">III", cmap, offset + 16 + 12 * group)
                characters.update(range(first, last + 1))
        elif form == 4:
            (segments,) = struct.unpack_from(">H", cmap, offset + 6)
            ends = struct.unpack_from(f">{segments // 2}H", cmap, offset + 14)
            starts = struct.unpack_from(f">{segments // 2}H", cmap, offset + 16 + segments)
            for first, last in zip(starts, ends, strict=True):
                if first != 0xFFFF:
                    characters.update(range(first, last + 1))
    return characters
