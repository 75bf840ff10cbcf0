"""Splits Markdown that is still being written into parts that can be rendered one after the other. Pure."""

import re
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

_parse = MarkdownIt().enable("strikethrough").enable("table").parse
"""With the extensions that rich renders."""

ORDERED_MARKER = re.compile(r"(\s*)\d+([.)])")
SENTENCE_END = re.compile(r"[.!?:;][ \n]+|[。！？；：]|\n")
TABLE_HEAD_LINES = 2


class MarkdownBlocks:
    """Text that grows. `feed` returns the blocks that cannot change any more; `tail` is the last block.

    In CommonMark a block ends for good where a block of the same level begins after it.
    """

    def __init__(self) -> None:
        self.tail = ""

    def feed(self, text: str) -> list[str]:
        """Adds text and returns the sources of the blocks that it has ended; mostly none."""
        self.tail += text
        if "\n" not in text:
            return []
        lines = self.tail.splitlines(keepends=True)
        # The last line may still change its kind: `*` is an item of a list until `*bold*` is complete.
        complete = len(lines) if self.tail.endswith("\n") else len(lines) - 1
        starts = [start for start in _starts(_parse(self.tail), level=0) if start < complete]
        return self._split(lines, starts)

    def end(self) -> list[str]:
        """Returns the sources of the blocks in the tail, which has ended."""
        lines = self.tail.splitlines(keepends=True)
        blocks = [*self._split(lines, _starts(_parse(self.tail), level=0)), self.tail]
        self.tail = ""
        return [block for block in blocks if block.strip()]

    def _split(self, lines: list[str], starts: list[int]) -> list[str]:
        """The blocks before the last one, which becomes the tail."""
        bounds = [0, *starts[1:]] if starts else [0]
        self.tail = "".join(lines[bounds[-1] :])
        return ["".join(lines[start:end]) for start, end in pairwise(bounds)]

    def cut(self) -> str:
        """Takes the beginning of a tail that is too tall for the screen; empty if it cannot be cut.

        Both parts are complete Markdown: a list is cut between items, a table between rows, a code block
        between lines, and a paragraph, as the last resort, after a sentence.
        """
        tokens = [token for token in _parse(self.tail) if token.map is not None]
        if not tokens:
            return ""
        lines = self.tail.splitlines(keepends=True)
        match tokens[0].type:
            case "fence":
                head, rest = _cut_fence(lines, tokens[0].markup)
            case "table_open":
                middle = (TABLE_HEAD_LINES + len(lines)) // 2
                head, rest = lines[:middle], [*lines[:TABLE_HEAD_LINES], *lines[middle:]]
                head = head if middle > TABLE_HEAD_LINES else []
            case "bullet_list_open" | "ordered_list_open":
                head, rest = _cut_list(lines, tokens)
            case _:
                head, rest = _cut_text(self.tail)
        if not head:
            return ""
        self.tail = "".join(rest)
        return "".join(head)


def _starts(tokens: list[Token], level: int, kind: str = "") -> list[int]:
    """The lines where the blocks of this level begin."""
    return [
        token.map[0]
        for token in tokens
        if token.map is not None and token.level == level and token.nesting >= 0 and kind in ("", token.type)
    ]


def _cut_fence(lines: list[str], markup: str) -> tuple[list[str], list[str]]:
    middle = len(lines) // 2
    if middle < 2:
        return [], []
    return [*lines[:middle], f"{markup}\n"], [lines[0], *lines[middle:]]


def _cut_list(lines: list[str], tokens: list[Token]) -> tuple[list[str], list[str]]:
    """Cuts before the last item. The items of an ordered list keep their numbers."""
    items = _starts(tokens, level=1, kind="list_item_open")
    if len(items) < 2:
        return _cut_text("".join(lines))
    rest = lines[items[-1] :]
    if tokens[0].type == "ordered_list_open":
        number = int(tokens[0].attrs.get("start", 1)) + len(items) - 1
        rest[0] = ORDERED_MARKER.sub(rf"\g<1>{number}\g<2>", rest[0], count=1)
    return lines[: items[-1]], rest


def _cut_text(text: str) -> tuple[list[str], list[str]]:
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    spaces = [match.end() for match in re.finditer(r"\s", text)]
    for places in (ends, spaces):
        usable = [place for place in places if len(text) // 4 < place < len(text)]
        if usable:
            return [text[: usable[-1]]], [text[usable[-1] :]]
    return [], []
