"""Detects the encoding of a document: from its byte order mark, the server, the document, or by a guess.

Runs in a reader process, so that the server does not load the guessing library.
"""

import codecs
import re

import msgspec
from charset_normalizer import from_bytes

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# As in browsers, a label stands for the superset that pages with this label use.
_CODEC_ALIASES = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
_DECLARED = re.compile(
    rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([\w.:-]{1,40})|<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})""",
    re.IGNORECASE,
)
_DECLARED_WITHIN = 4096
_GUESSED_FROM = 64 * 1024
# The encodings of pages without a label. A guess among all encodings would find rare ones.
_COMMON_CODECS = [
    "cp1252",
    "cp1251",
    "cp1250",
    "gb18030",
    "cp932",
    "euc_jp",
    "big5",
    "cp949",
    "koi8_r",
    "cp1256",
]
_LOST_SHARE = 0.02
# A UTF-8 page may have this share of broken characters among its non-ASCII ones.
_BROKEN_SHARE = 0.25
_BEFORE_GUESS = 1000
_NOT_ASCII = re.compile(rb"[\x80-\xff]+")
# Western Europe comes first, because most of these pages are from there.
_LATIN = ["cp1252", "cp1250"]
_LATIN_RUN_LENGTH = 1.5


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """`charset` is the codec's name. Undecodable bytes became U+FFFD."""

    text: str
    charset: str


def decode(data: bytes, declared_by_server: str = "") -> Decoded:
    """Decodes a document. `declared_by_server`: the label from the Content-Type header, or empty."""
    for mark, codec in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return Decoded(text=data.decode(codec, "replace"), charset="utf-8" if "8" in codec else "utf-16")
    for label in (declared_by_server, _declared(data)):
        codec = _codec(label)
        # Some servers declare one encoding for all pages, so a label that fits badly is ignored.
        if codec and _decodes_well(data, codec):
            return Decoded(text=data.decode(codec, "replace"), charset=codec)
    if _decodes_well(data, "utf-8"):
        return Decoded(text=data.decode("utf-8", "replace"), charset="utf-8")
    guess = _guess(data)
    return Decoded(text=data.decode(guess, "replace"), charset=guess)


def _declared(data: bytes) -> str:
    match = _DECLARED.search(data[:_DECLARED_WITHIN])
    return (match[1] or match[2]).decode("ascii", "replace") if match else ""


def _codec(label: str) -> str:
    """Python's codec for a label; empty if there is none."""
    try:
        info = codecs.lookup(label.strip())
    except (LookupError, ValueError):
        return ""
    # Python-specific codecs are no encodings of pages.
    if info.name in ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"):
        return ""
    try:
        b"text".decode(info.name, "replace")
    except (LookupError, ValueError):
        return ""  # A codec between bytes and bytes, such as zip, or between texts, such as rot13.
    return _CODEC_ALIASES.get(info.name, info.name)


def _decodes_well(data: bytes, codec: str) -> bool:
    if codec == "utf-8":
        return _is_utf8(data)
    sample = data[:_GUESSED_FROM]
    try:
        lost = sample.decode(codec, "replace").count("\ufffd")
    except (UnicodeError, ValueError):
        return False
    return lost <= 1 + len(sample) * _LOST_SHARE


def _is_utf8(data: bytes) -> bool:
    """Whether at most _BROKEN_SHARE of the non-ASCII characters of the whole document are broken."""
    if data.isascii():
        return True
    # An incremental decoder ignores a character that is cut at the end.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    broken = text.count("\ufffd") - data.count("\ufffd".encode())
    if not broken:
        return True
    return broken <= sum(not one.isascii() for one in text if one != "\ufffd") * _BROKEN_SHARE


def _guess(data: bytes) -> str:
    """Guesses from a sample around the first non-ASCII bytes, which may follow a long ASCII head."""
    match = _NOT_ASCII.search(data)
    start = max(match.start() - _BEFORE_GUESS, 0) if match else 0
    sample = data[start : start + _GUESSED_FROM]
    non_ascii_runs = _NOT_ASCII.findall(sample)
    # Accented Latin letters are mostly isolated; letters of other scripts form runs.
    if sum(map(len, non_ascii_runs)) < _LATIN_RUN_LENGTH * len(non_ascii_runs):
        return max(_LATIN, key=lambda codec: _coherence(sample, codec))
    best = from_bytes(sample, cp_isolation=_COMMON_CODECS, preemptive_behaviour=False).best()
    return best.encoding if best is not None else _LATIN[0]


def _coherence(sample: bytes, codec: str) -> float:
    """How similar the decoded text is to a known language."""
    best = from_bytes(sample, cp_isolation=[codec], preemptive_behaviour=False).best()
    return best.coherence if best is not None else -1.0
