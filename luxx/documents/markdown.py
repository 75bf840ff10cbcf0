"""A page's content as Markdown, or as plain text: headings, lists, tables, code, links and emphasis.

Walks the parser's tree, which is at most some 2,000 deep; time and memory are bounded by the process.
"""

import re
from urllib.parse import urljoin, urlsplit

from luxx.documents.tree import Element

_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "body", "center", "dd", "details", "div", "dl", "dt", "fieldset"),
        *("figcaption", "figure", "footer", "form", "header", "hgroup", "html", "main", "nav", "p"),
        *("section", "summary", "ul", "ol", "li", "pre", "blockquote", "table", "hr"),
    )
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_STRONG = {"strong": "**", "b": "**", "em": "*", "i": "*", "del": "~~", "s": "~~"}
_SPACES = re.compile(r"[ \t\r\n\f\v\u00a0]+")
_BLANK_LINES = re.compile(r"\n[ \t]*\n(?:[ \t]*\n)+")
_LANGUAGE = re.compile(r"(?:language|lang|highlight-source)-([\w+#.-]{1,20})")
_MOST_CELLS = 50
_TEXT_OF_LINK = 200
_LONG_LINE = 1500


class Writer:
    """Makes text of elements. `is_plain`: without marks and addresses. `base`: what links are relative to."""

    def __init__(self, base: str, *, is_plain: bool = False) -> None:
        self._base = base
        self._is_plain = is_plain
        self.links: dict[str, str] = {}
        """Texts by address, in the order of the page."""

    def write(self, element: Element) -> str:
        """All of it, without blank lines at its ends and never two in a row."""
        return _BLANK_LINES.sub("\n\n", self._blocks(element)).strip()

    def _blocks(self, element: Element) -> str:
        """What an element contains: runs of inline text and blocks, each block between blank lines."""
        parts: list[str] = []
        run: list[str] = [element.text or ""]

        def end_run() -> None:
            if text := _tidy("".join(run)):
                parts.append(text)
            run.clear()

        for child in element:
            if _is_block(child) or _holds_blocks(child):
                end_run()
                if text := self._block(child):
                    parts.append(text)
            else:
                run.append(self._inline(child))
            run.append(child.tail or "")
        end_run()
        return "\n\n".join(parts)

    def _block(self, element: Element) -> str:
        tag = element.tag
        match tag:
            case "pre":
                return self._code(element)
            case "ul" | "ol":
                return self._list(element)
            case "table":
                return self._table(element)
            case "blockquote":
                inner = self.write(element)
                return (
                    inner if self._is_plain else "\n".join(f"> {line}".rstrip() for line in inner.split("\n"))
                )
            case "hr":
                return "" if self._is_plain else "---"
            case _ if tag in _HEADINGS:
                text = self._line(element)
                return text if self._is_plain or not text else f"{'#' * _HEADINGS[tag]} {text}"
            case _:
                return self._blocks(element)

    def _line(self, element: Element) -> str:
        """What an element contains, as one line."""
        return _SPACES.sub(" ", self._inside(element).replace("\x1e", " ")).strip()

    def _inside(self, element: Element) -> str:
        parts = [element.text or ""]
        for child in element:
            parts.append(self._inline(child))
            parts.append(child.tail or "")
        return "".join(parts)

    def _inline(self, element: Element) -> str:
        tag = element.tag
        if tag == "br":
            return "\x1e"
        if tag == "img":
            alt = _SPACES.sub(" ", element.attrib.get("alt", "")).strip()[:_TEXT_OF_LINK]
            return alt if self._is_plain or not alt else f"![{alt}]"
        if tag == "a":
            return self._link(element)
        inner = self._inside(element)
        if _is_block(element):
            return f" {inner} "
        if self._is_plain or not inner.strip():
            return inner
        if tag in ("code", "kbd", "samp", "tt"):
            return _around(inner, "``" if "`" in inner else "`")
        return _around(inner, _STRONG[tag]) if tag in _STRONG else inner

    def _link(self, element: Element) -> str:
        inner = self._inside(element)
        address = _address(self._base, element.attrib.get("href", ""))
        if not address:
            return inner
        text = _SPACES.sub(" ", inner.replace("\x1e", " ")).strip()
        if address not in self.links or not self.links[address]:
            self.links[address] = text[:_TEXT_OF_LINK]
        if self._is_plain or not text:
            return inner
        return _around(inner.replace("\x1e", " "), "[", f"]({address})")

    def _code(self, element: Element) -> str:
        text = "".join(element.itertext()).replace("\r\n", "\n").strip("\n")
        if self._is_plain or not text.strip():
            return text
        longest = max((len(found) for found in re.findall(r"`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        named = [one.attrib.get("class", "") for one in (element, *element.iter("code"))]
        language = next((found[1] for name in named if (found := _LANGUAGE.search(name[:300]))), "")
        return f"{fence}{language}\n{text}\n{fence}"

    def _list(self, element: Element) -> str:
        lines: list[str] = []
        number = 1
        for item in element:
            text = _BLANK_LINES.sub("\n\n", self._blocks(item)).strip()
            # A list inside an item follows its text at once.
            text = re.sub(r"\n\n(?=(?:- |\d+\. ))", "\n", text)
            if not text:
                continue
            mark = f"{number}. " if element.tag == "ol" else "- "
            number += 1
            first, *more = text.split("\n")
            lines.append(mark + first)
            lines += [f"{' ' * len(mark)}{line}".rstrip() for line in more]
        return "\n".join(lines)

    def _table(self, element: Element) -> str:
        rows = [
            [self._line(cell) for cell in row if cell.tag in ("td", "th")][:_MOST_CELLS]
            for row in element.iter("tr")
        ]
        rows = [row for row in rows if any(row)]
        width = max((len(row) for row in rows), default=0)
        if width <= 1 or element.find(".//table") is not None:
            # A table of one column, or of tables, lays out a page.
            return "\n\n".join(part for cell in element.iter("td", "th", "caption")
                               if cell.find(".//td") is None and (part := self._blocks(cell)))  # fmt: skip
        if self._is_plain:
            return "\n".join("\t".join(row) for row in rows)
        cells = [[cell.replace("|", "\\|") for cell in [*row, *[""] * (width - len(row))]] for row in rows]
        lines = [f"| {' | '.join(row)} |" for row in cells]
        return "\n".join([lines[0], "|" + " --- |" * width, *lines[1:]])


def _tidy(text: str) -> str:
    """A run of inline text, its lines broken only where the page breaks them."""
    return "\n".join(_broken(_SPACES.sub(" ", line).strip()) for line in text.split("\x1e")).strip()


def _broken(line: str) -> str:
    """A long line in several: lines past a bound are cut when a model reads them."""
    pieces: list[str] = []
    while len(line) > _LONG_LINE:
        place = max(line.rfind(mark, _LONG_LINE // 2, _LONG_LINE) for mark in " 。，、")
        if place < 0:
            break
        pieces.append(line[: place + 1].rstrip())
        line = line[place + 1 :]
    return "\n".join([*pieces, line])


def _is_block(element: Element) -> bool:
    return element.tag in _BLOCKS or element.tag in _HEADINGS


def _holds_blocks(element: Element) -> bool:
    """Whether it is one of the many elements without a meaning of their own that pages wrap blocks in."""
    return element.tag != "a" and any(_is_block(inside) for inside in element.iterdescendants())


def _around(text: str, before: str, after: str = "") -> str:
    """Marks set inside the spaces at both ends, where they would not count."""
    core = text.strip()
    if not core:
        return text
    start = text[: len(text) - len(text.lstrip())]
    return f"{start}{before}{core}{after or before}{text[len(text.rstrip()) :]}"


def _address(base: str, href: str) -> str:
    """The whole address of a link; empty for what is no page."""
    href = href.strip()
    if not href or href.startswith("#") or len(href) > 2000:
        return ""
    try:
        address = urljoin(base, href)
        scheme = urlsplit(address).scheme
    except ValueError:
        return ""
    if scheme not in ("http", "https"):
        return ""
    return address.replace(" ", "%20").replace("(", "%28").replace(")", "%29")
