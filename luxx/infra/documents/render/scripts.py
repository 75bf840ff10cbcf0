"""Languages and scripts of a text: its runs of East Asian and of other characters, and their fonts. Pure."""

import re
import unicodedata
from collections.abc import Iterator

LATIN_FONT = "Arial"
CODE_FONT = "Courier New"
_EAST_ASIAN = re.compile(
    "[\u1100-\u11ff\u2e80-\u303f\u3040-\u30ff\u3100-\u31bf\u31f0-\u4dbf\u4e00-\u9fff\ua960-\ua97f"
    "\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U0001b000-\U0001b16f\U00020000-\U0003ffff]+"
)
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_QUOTES = "“”‘’…—·"
_FONTS = {
    "zh-CN": "Microsoft YaHei",
    "zh-TW": "Microsoft JhengHei",
    "ja-JP": "Yu Gothic",
    "ko-KR": "Malgun Gothic",
}
_DRAWN_WITH = {"zh-CN": "SC", "zh-TW": "TC", "ja-JP": "JP", "ko-KR": "KR"}
_CONTENTS = {
    "zh-CN": "目录",
    "zh-TW": "目錄",
    "ja-JP": "目次",
    "ko-KR": "목차",
    "de": "Inhalt",
    "fr": "Sommaire",
}


class Language:
    """The language of an artifact: its tag, and that of its East Asian text."""

    def __init__(self, given: str, text: str) -> None:
        self.east_asian = _east_asian(given.lower(), text)
        has_east_asian = len("".join(_EAST_ASIAN.findall(text))) * 3 > len(text)
        self.tag = given or (self.east_asian if has_east_asian else "en-US")

    @property
    def is_east_asian(self) -> bool:
        return self.tag.lower()[:2] in ("zh", "ja", "ko")

    @property
    def font(self) -> str:
        """The font that files name for East Asian text."""
        return _FONTS[self.east_asian]

    @property
    def drawing_font(self) -> str:
        """The font with which East Asian text is drawn."""
        return f"Noto Sans CJK {_DRAWN_WITH[self.east_asian]}"

    @property
    def contents(self) -> str:
        """The heading of a table of contents."""
        return _CONTENTS.get(self.tag) or _CONTENTS.get(
            self.east_asian if self.is_east_asian else self.tag[:2], "Contents"
        )


def _east_asian(given: str, text: str) -> str:
    if given.startswith("zh"):
        return "zh-TW" if re.search("hant|tw|hk|mo", given) else "zh-CN"
    for code, tag in (("ja", "ja-JP"), ("ko", "ko-KR")):
        if given.startswith(code):
            return tag
    if _KANA.search(text):
        return "ja-JP"
    return "ko-KR" if _HANGUL.search(text) else "zh-CN"


def has_east_asian(text: str) -> bool:
    """Whether a text has an East Asian character."""
    return _EAST_ASIAN.search(text) is not None


def script_runs(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a text, each with whether it is East Asian. Quotation marks between East Asian characters
    belong to them.
    """
    position = 0
    for match in _EAST_ASIAN.finditer(text):
        start, end = match.span()
        while start > position and text[start - 1] in _QUOTES:
            start -= 1
        while end < len(text) and text[end] in _QUOTES:
            end += 1
        if start < position:
            start = position
        if start > position:
            yield text[position:start], False
        if end > start:
            yield text[start:end], True
        position = max(end, position)
    if position < len(text):
        yield text[position:], False


def is_wide(character: str) -> bool:
    """Whether a character is one em wide: East Asian ones and symbols that are drawn as such."""
    return unicodedata.east_asian_width(character) in "WF"
