"""The Markdown of one page as blocks. HTML is text, but for `<br>`; a comment `<!-- layout: x -->` names a
layout. Pure."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec
from markdown_it import MarkdownIt
from markdown_it.rules_block.table import escapedSplit
from markdown_it.token import Token

from luxx.infra.documents.code_fences import fence_after
from luxx.infra.documents.render.chart_spec import ChartSpec, WrongChart, read_chart

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_LAYOUT = re.compile(r"\s*layout:\s*([a-z_-]{1,30})\s*")
_BREAK = re.compile(r"(<br ?/?>)", re.IGNORECASE)
_ARROW = re.compile(r"\s*(?:->|=>|→|⇒|\n)\s*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff\ud800-\udfff]")


class Span(msgspec.Struct, frozen=True):
    """A piece of a line; `"\\n"` is a line break."""

    text: str
    bold: bool = False
    italic: bool = False
    code: bool = False
    struck: bool = False
    link: str = ""


Spans = tuple[Span, ...]


class Heading(msgspec.Struct, frozen=True):
    level: int
    spans: Spans


class Paragraph(msgspec.Struct, frozen=True):
    spans: Spans


class ListItem(msgspec.Struct, frozen=True):
    """An item of a list. `level` counts from 0; `number` is None in a list without numbers."""

    level: int
    number: int | None
    spans: Spans


class Listing(msgspec.Struct, frozen=True):
    items: tuple[ListItem, ...]


class Grid(msgspec.Struct, frozen=True):
    """A table; each row has as many cells as the header. `aligns` are left, center or right."""

    header: tuple[Spans, ...]
    rows: tuple[tuple[Spans, ...], ...]
    aligns: tuple[str, ...]


class CodeBlock(msgspec.Struct, frozen=True):
    text: str
    language: str = ""


class Quote(msgspec.Struct, frozen=True):
    paragraphs: tuple[Spans, ...]


class ImageBlock(msgspec.Struct, frozen=True):
    name: str
    alt: str


class ChartBlock(msgspec.Struct, frozen=True):
    chart: ChartSpec


class Flow(msgspec.Struct, frozen=True):
    """Steps that follow each other."""

    steps: tuple[str, ...]


Block = Heading | Paragraph | Listing | Grid | CodeBlock | Quote | ImageBlock | ChartBlock | Flow


class PageSource(msgspec.Struct, frozen=True):
    """`layout` is what a comment of the page asks for; `wrong` are sentences about its blocks."""

    blocks: tuple[Block, ...]
    layout: str = ""
    wrong: tuple[str, ...] = ()


def plain(spans: Sequence[Span]) -> str:
    """The text of a line, without its marks."""
    return "".join(span.text for span in spans)


def clean(text: str) -> str:
    """The text without characters that XML does not allow and without lone surrogates."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def read_page(markdown: str) -> PageSource:
    """The blocks of a page."""
    text, comments = _without_comments(clean(markdown))
    layouts = [named[1] for comment in comments if (named := _LAYOUT.fullmatch(comment))]
    reader = _BlockReader(_MARKDOWN.parse(text), text.split("\n"))
    blocks = tuple(reader.read())
    return PageSource(blocks=blocks, layout=layouts[-1] if layouts else "", wrong=tuple(reader.wrong))


def _without_comments(text: str) -> tuple[str, list[str]]:
    """The text without its comments outside of fenced code, and the comments. One without end is text."""
    kept: list[str] = []
    comments: list[str] = []
    for is_code, part in _parts(text):
        start = 0
        while not is_code and (opening := part.find("<!--", start)) >= 0:
            if (ending := part.find("-->", opening + 4)) < 0:
                break
            kept.append(part[start:opening])
            comments.append(part[opening + 4 : ending])
            start = ending + 3
        kept.append(part[start:])
    return "".join(kept), comments


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """The text in parts that are fenced code or outside of it. A fence without end takes the rest."""
    fence, lines = "", list[tuple[bool, str]]()
    for line in text.split("\n"):
        fence, is_code = fence_after(fence, line)
        lines.append((is_code, f"{line}\n"))
    for is_code, part in groupby(lines, key=itemgetter(0)):
        yield is_code, "".join(line for _, line in part)


class _BlockReader:
    def __init__(self, tokens: list[Token], lines: list[str]) -> None:
        self._tokens = tokens
        self._lines = lines
        self._at = 0
        self.wrong: list[str] = []

    def read(self) -> Iterator[Block]:
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            match token.type:
                case "heading_open":
                    yield Heading(int(token.tag[1]), _spans(self._take()))
                case "paragraph_open":
                    yield from _paragraph(self._take())
                case "bullet_list_open" | "ordered_list_open":
                    yield Listing(tuple(self._items(token)))
                case "blockquote_open":
                    yield Quote(tuple(self._quoted()))
                case "table_open":
                    yield self._table()
                case "fence" | "code_block":
                    yield self._code(token)
                case _:
                    pass

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _items(self, opening: Token, level: int = 0) -> Iterator[ListItem]:
        number = int(opening.attrGet("start") or 1) if opening.type == "ordered_list_open" else None
        has_text = False
        while True:
            token = self._take()
            match token.type:
                case "list_item_open":
                    has_text = False
                case "inline":
                    yield ListItem(
                        min(level, 3) if not has_text else min(level + 1, 3), number, _spans(token)
                    )
                    number = None if number is None else number + (not has_text)
                    has_text = True
                case "bullet_list_open" | "ordered_list_open":
                    yield from self._items(token, level + 1)
                case "fence" | "code_block":
                    yield ListItem(min(level + 1, 3), None, (Span(token.content.rstrip("\n"), code=True),))
                case "bullet_list_close" | "ordered_list_close":
                    return
                case _:
                    pass

    def _quoted(self) -> Iterator[Spans]:
        depth = 1
        while depth:
            token = self._take()
            depth += (token.type == "blockquote_open") - (token.type == "blockquote_close")
            if token.type == "inline":
                yield _spans(token)
            elif token.type in ("fence", "code_block"):
                yield (Span(token.content.rstrip("\n"), code=True),)

    def _table(self) -> Grid:
        rows: list[list[Spans]] = []
        aligns: list[str] = []
        opening = self._tokens[self._at]
        while (token := self._take()).type != "table_close":
            if token.type == "tr_close":
                if surplus := self._surplus(opening, len(rows[0])):
                    rows[-1][-1] = (*rows[-1][-1], Span(" | "), *surplus)
            elif token.type == "tr_open":
                opening = token
                rows.append([])
            elif token.type == "inline":
                rows[-1].append(_spans(token))
            elif token.type == "th_open":
                style = str(token.attrGet("style") or "")
                aligns.append(style.rpartition(":")[2] if style else "")
        header, *body = rows
        width = len(header)
        filled = [tuple([*row, *[()] * width][:width]) for row in body]
        return Grid(tuple(header), tuple(filled), tuple(_aligned(aligns, filled)))

    def _surplus(self, row: Token, width: int) -> Spans:
        """What a row has after the cells that the header has columns for, which the parser leaves out."""
        if not row.map or row.level != 2:
            return ()
        cells = escapedSplit(self._lines[row.map[0]].strip().removeprefix("|").removesuffix("|"))
        text = " | ".join(cell.strip() for cell in cells[width:])
        return _spans(_MARKDOWN.parseInline(text)[0]) if text else ()

    def _code(self, token: Token) -> Block:
        language = token.info.strip().split(" ")[0].lower() if token.info else ""
        if language == "chart":
            try:
                return ChartBlock(read_chart(token.content))
            except WrongChart as error:
                self.wrong.append(str(error))
        if language == "flow":
            lines = [re.sub(r"^\s*(?:[-*]|\d{1,3}[.)])\s+", "", line) for line in token.content.split("\n")]
            steps = [step.strip() for step in _ARROW.split("\n".join(lines)) if step.strip()]
            if steps:
                return Flow(tuple(steps))
        return CodeBlock(token.content.rstrip("\n"), language)


def _aligned(aligns: Sequence[str], rows: Sequence[tuple[Spans, ...]]) -> Iterator[str]:
    """A column of numbers is right-aligned, unless the source says otherwise."""
    for column, align in enumerate(aligns):
        cells = [plain(row[column]).strip() for row in rows]
        numbers = [
            re.fullmatch(r"[-+±~≈<>]?\s?[$€£¥]?\s?[\d.,  ]*\d\s?[\w%‰°/€$]{0,6}", cell)
            for cell in cells
            if cell
        ]
        yield align or ("right" if numbers and all(numbers) else "left")


def _paragraph(token: Token) -> Iterator[Block]:
    children = token.children or []
    text: list[Token] = []
    for child in children:
        if child.type == "image":
            if spans := _stripped(_inline(text)):
                yield Paragraph(spans)
            text = []
            yield ImageBlock(str(child.attrGet("src") or ""), child.content)
        else:
            text.append(child)
    if spans := _stripped(_inline(text)):
        yield Paragraph(spans)


def _spans(token: Token) -> Spans:
    return _stripped(_inline(token.children or []))


def _stripped(spans: Spans) -> Spans:
    return spans if plain(spans).strip() else ()


def _inline(tokens: Sequence[Token]) -> Spans:
    marks = {"strong": 0, "em": 0, "s": 0}
    link, spans = "", list[Span]()
    for token in tokens:
        name, _, part = token.type.rpartition("_")
        if name in marks:
            marks[name] += 1 if part == "open" else -1
        elif name == "link":
            link = str(token.attrGet("href") or "") if part == "open" else ""
        else:
            content = {"softbreak": " ", "hardbreak": "\n"}.get(token.type, token.content)
            is_code = token.type == "code_inline"
            parts = [content] if is_code or "<" not in content else _with_breaks(content)
            style = marks["strong"] > 0, marks["em"] > 0, is_code, marks["s"] > 0, link
            spans.extend(Span(part, *style) for part in parts if part)
    return tuple(spans)


def _with_breaks(text: str) -> list[str]:
    """The text with a line break for each `<br>`."""
    parts = _BREAK.split(text)
    return ["\n" if index % 2 else part.strip(" ") if 0 < index < len(parts) - 1 else part
            for index, part in enumerate(parts)]  # fmt: skip
