"""File names: sanitizing, numbering duplicates, Content-Disposition headers; media types by name or bytes."""

import mimetypes
import unicodedata
from urllib.parse import quote

from luxx.infra.store.search_words import composed

MAX_NAME_BYTES = 255
"""The limit of Linux for one name."""

UNNAMED = "file"
UNKNOWN_TYPE = "application/octet-stream"
_NUMBER_SUFFIX_BYTES = len(" (1000)")
_FORBIDDEN = frozenset('/\\<>:"|?*')
"""Characters with a meaning in some file system or header."""

_JOINERS = frozenset("\u200c\u200d")
"""Persian words and many emoji need them."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ._-()+,=@")
_IMAGES = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF87a", "gif"), (b"GIF89a", "gif"))


def safe_name(given: str) -> str:
    """The last path component of a client's file name, as a safe name of at most 255 bytes.

    Control characters and those that change the text direction are replaced, so that a name displays as it
    is stored.
    """
    last = composed(given).replace("\\", "/").rstrip("/").rpartition("/")[2]
    clean = "".join("_" if _is_bad(char) else char for char in last).strip(" ")
    if clean.strip(". ") == "" or clean.startswith(".luxx-"):
        clean = UNNAMED + clean.strip(". ")
    return _cut(clean, MAX_NAME_BYTES - _NUMBER_SUFFIX_BYTES)


def add_number(name: str, number: int) -> str:
    """`report.pdf`, `report (2).pdf`, `report (3).pdf`, …"""
    if number == 1:
        return name
    stem, suffix = _split(name)
    return f"{stem} ({number}){suffix}"


def media_type_of(name: str) -> str:
    """The media type guessed from the extension. For display only."""
    guessed, encoding = mimetypes.guess_type(name)
    return guessed if guessed and not encoding else UNKNOWN_TYPE


def image_type(head: bytes) -> str | None:
    """The media type of an image that models accept, by its first bytes; None for anything else."""
    for magic, kind in _IMAGES:
        if head.startswith(magic):
            return f"image/{kind}"
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None


def extension_of(name: str) -> str:
    """The extension without its dot; empty if the name has none."""
    return _split(name)[1].removeprefix(".")


def content_disposition(name: str) -> str:
    """A Content-Disposition header that makes a browser save the file (RFC 6266, RFC 5987)."""
    plain = "".join(char if char in _PLAIN else "_" for char in name)
    encoded = quote(name.encode("utf-8", "replace"), safe="")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}"


def _is_bad(char: str) -> bool:
    return char in _FORBIDDEN or (
        char not in _JOINERS and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    )


def _split(name: str) -> tuple[str, str]:
    """The stem and the suffix with its dot; a leading dot starts no suffix."""
    stem, dot, suffix = name.rpartition(".")
    return (stem, dot + suffix) if stem.strip(".") and dot else (name, "")


def _cut(name: str, limit: int) -> str:
    if len(name.encode()) <= limit:
        return name
    stem, suffix = _split(name)
    if len(suffix.encode()) > limit // 4:
        stem, suffix = name, ""
    return stem.encode()[: limit - len(suffix.encode())].decode("utf-8", "ignore") + suffix
