"""In which encoding a document is written: its mark, its server, itself, and at last a guess.

Runs in a process of its own, where the guessing library costs the server nothing.
"""

import codecs
import re

import msgspec
from charset_normalizer import from_bytes

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# As browsers do: a label stands for the larger encoding that its users mean.
_MEANT = {
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
_USUAL = ["cp1252", "cp1251", "cp1250", "gb18030", "cp932", "euc_jp", "big5", "cp949", "koi8_r", "cp1256"]
_LOST_SHARE = 0.02


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """`charset` is the codec's name; `is_guess` where nothing said it; what it cannot say became U+FFFD."""

    text: str
    charset: str
    is_guess: bool = False


def decode(data: bytes, told: str = "") -> Decoded:
    """The text of a document. `told` is what the server said."""
    for mark, codec in _MARKS:
        if data.startswith(mark):
            return Decoded(text=data.decode(codec, "replace"), charset="utf-8" if "8" in codec else "utf-16")
    for label in (told, _declared(data)):
        codec = _codec(label)
        # Some servers call everything by one name: a label that fits badly is not believed.
        if codec and _fits(data, codec):
            return Decoded(text=data.decode(codec, "replace"), charset=codec)
    if _fits(data, "utf-8"):
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
    return _MEANT.get(info.name, info.name)


def _fits(data: bytes, codec: str) -> bool:
    sample = data[:_GUESSED_FROM]
    try:
        lost = sample.decode(codec, "replace").count("\ufffd")
    except (UnicodeError, ValueError):
        return False
    return lost <= 1 + len(sample) * _LOST_SHARE


def _guess(data: bytes) -> str:
    best = from_bytes(data[:_GUESSED_FROM], cp_isolation=_USUAL, preemptive_behaviour=False).best()
    return best.encoding if best is not None else "cp1252"
