"""In which encoding a document is written: its mark, its server, itself, and at last a guess.

Runs in a process of its own, where the guessing library costs the server nothing.
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
# As browsers do: a label stands for the larger encoding that its users mean.
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
# A guess among all there are would find rare ones; these are what pages without a label are written in.
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
# Of what looks like characters in UTF-8: a page with a few broken ones is still written in it.
_BROKEN_SHARE = 0.25
_BEFORE_GUESS = 1000
_NOT_ASCII = re.compile(rb"[\x80-\xff]+")
# The first stands for Western Europe, which most of such pages are from.
_LATIN = ["cp1252", "cp1250"]
_LATIN_RUN_LENGTH = 1.5


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """`charset` is the codec's name; `is_guess` where nothing said it; what it cannot say became U+FFFD."""

    text: str
    charset: str
    is_guess: bool = False


def decode(data: bytes, declared_by_server: str = "") -> Decoded:
    """The text of a document. `told` is what the server said."""
    for mark, codec in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return Decoded(text=data.decode(codec, "replace"), charset="utf-8" if "8" in codec else "utf-16")
    for label in (declared_by_server, _declared(data)):
        codec = _codec(label)
        # Some servers call everything by one name: a label that fits badly is not believed.
        if codec and _decodes_well(data, codec):
            return Decoded(text=data.decode(codec, "replace"), charset=codec)
    if _decodes_well(data, "utf-8"):
        return Decoded(text=data.decode("utf-8", "replace"), charset="utf-8")
    guess = _guess(data)
    return Decoded(text=data.decode(guess, "replace"), charset=guess, is_guess=True)


def _declared(data: bytes) -> str:
    found = _DECLARED.search(data[:_DECLARED_WITHIN])
    return (found[1] or found[2]).decode("ascii", "replace") if found else ""


def _codec(label: str) -> str:
    try:
        info = codecs.lookup(label.strip())
    except (LookupError, ValueError):
        return ""
    # A codec of Python's own kind (rot13, zip, idna) is no encoding of a page.
    is_text = getattr(info, "_is_text_encoding", False)
    if not is_text or info.name in ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"):
        return ""
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
    """Judged by all of it: in other encodings one letter in fifty looks broken, and nothing looks whole."""
    if data.isascii():
        return True
    # A character that the end cuts in two is none that is broken.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    broken = text.count("\ufffd") - data.count("\ufffd".encode())
    if not broken:
        return True
    return broken <= sum(not one.isascii() for one in text if one != "\ufffd") * _BROKEN_SHARE


def _guess(data: bytes) -> str:
    """From the first letters that are no ASCII: before them may stand a long head of it."""
    found = _NOT_ASCII.search(data)
    start = max(found.start() - _BEFORE_GUESS, 0) if found else 0
    sample = data[start : start + _GUESSED_FROM]
    non_ascii_runs = _NOT_ASCII.findall(sample)
    # Latin letters with marks stand among others without, those of other scripts beside each other.
    if sum(map(len, non_ascii_runs)) < _LATIN_RUN_LENGTH * len(non_ascii_runs):
        return max(_LATIN, key=lambda codec: _coherence(sample, codec))
    best = from_bytes(sample, cp_isolation=_COMMON_CODECS, preemptive_behaviour=False).best()
    return best.encoding if best is not None else _LATIN[0]


def _coherence(sample: bytes, codec: str) -> float:
    """How much like some language the text is in this encoding."""
    best = from_bytes(sample, cp_isolation=[codec], preemptive_behaviour=False).best()
    return best.coherence if best is not None else -1.0
