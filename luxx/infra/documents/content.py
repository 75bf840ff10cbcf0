"""Parses HTML, extracts the main content of a page and writes it as Markdown or plain text.

The parser bounds the depth of the tree to about 2,000, and drops comments and processing instructions. Menus,
banners, scripts and hidden elements are dropped from the content.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from urllib.parse import urljoin, urlsplit

import lxml.html


class HtmlElement(Protocol):
    """`text` is the text before the first child, `tail` the text after the element's end."""

    tag: str
    text: str | None
    tail: str | None

    @property
    def attrib(self) -> Mapping[str, str]: ...
    def __iter__(self) -> "Iterator[HtmlElement]": ...
    def iter(self, *tags: str) -> "Iterator[HtmlElement]": ...
    def itertext(self) -> Iterator[str]: ...
    def iterdescendants(self) -> "Iterator[HtmlElement]": ...
    def find(self, path: str) -> "HtmlElement | None": ...
    def getparent(self) -> "HtmlElement | None": ...
    def drop_tree(self) -> None: ...
    def text_content(self) -> str: ...


def parse_html(text: str) -> tuple[HtmlElement | None, bool]:
    """The root (None for a text without elements), and whether the parser dropped parts nested too deeply."""
    data = text.encode("utf-8", "replace")
    if not data.strip():
        return None, False
    untyped: Any = lxml.html
    # huge_tree: old pages leave hundreds of elements open. The process bounds memory and time.
    parser = untyped.HTMLParser(
        encoding="utf-8", remove_comments=True, remove_pis=True, collect_ids=False, huge_tree=True
    )
    try:
        root = untyped.document_fromstring(data, parser=parser, ensure_head_body=False)
    except untyped.etree.LxmlError:
        return None, False
    is_cut = any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log)
    return cast(HtmlElement, root), is_cut


_IGNORED_TAGS = frozenset(
    (
        *("script", "style", "noscript", "template", "svg", "canvas", "iframe", "frame", "object", "embed"),
        *("applet", "audio", "video", "source", "track", "map", "button", "input", "select", "textarea"),
        *("option", "datalist", "dialog", "link", "meta", "base", "title", "math"),
    )
)
_BOILERPLATE_TAGS = frozenset(("nav", "aside", "footer", "header", "form", "menu"))
_BOILERPLATE_ROLES = frozenset(
    (
        *("navigation", "banner", "contentinfo", "complementary", "search", "dialog", "alertdialog"),
        *("menu", "menubar", "toolbar"),
    )
)
_BOILERPLATE_NAME = re.compile(
    r"(?:^|[\s_-])(?:cookies?|consent|gdpr|newsletter|subscribe|breadcrumbs?|share|sharing|social|sidebar|"
    r"navbar|navigation|menu|advert(?:s|isement)?|ads|promo|popup|modal|related|recommended|footer|masthead|"
    r"skip-link|pagination|toc-container|sr-only|visually-hidden)(?:$|[\s_-])"
)
_NAMED_BOILERPLATE_TAGS = frozenset(("div", "section", "ul", "ol", "p", "span", "a", "table"))
_HIDDEN = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|(?:font-size|opacity)\s*:\s*(?:0+\.?0*|\.0+)(?![.\d])"
)
# An element that looks like boilerplate counts as content if it holds more than this share of the text.
_BOILERPLATE_MAX_SHARE = 0.4
_MAIN_SHARE = 0.25
_MAIN_LEAST = 140
_PARAGRAPH_LEAST = 25
_BLOCK_SHARE = 0.35


def content_of(root: HtmlElement) -> HtmlElement:
    """The element with the content, without hidden elements and boilerplate. Changes the tree."""
    body = root if root.tag == "body" else root.find(".//body")
    _drop(root, _is_hidden)
    # If a page has no body tag, the parser puts elements that it does not know into the head.
    head = root.find("head")
    if body is None or (head is not None and head.text_content().strip()):
        body = root
    sizes = _sizes(body)
    total = sizes.get(body, 0)
    main = _declared_content(body, sizes, total)
    if main is None:
        main = body
    whole = max(sizes.get(main, 0), 1)
    _drop(main, lambda element: _is_boilerplate(element, sizes, whole))
    if main is not body:
        return main
    densest = _densest(body, _sizes(body))
    return body if densest is None else densest


def visible(root: HtmlElement) -> HtmlElement:
    """The body without hidden elements: all of it is content, as in a chapter of a book. Changes the tree."""
    _drop(root, _is_hidden)
    body = root if root.tag == "body" else root.find(".//body")
    return root if body is None else body


def _drop(top: HtmlElement, is_unwanted: Callable[[HtmlElement], bool]) -> None:
    """Removes elements, and keeps the text that follows them."""
    for element in [descendant for descendant in top.iterdescendants() if is_unwanted(descendant)]:
        if element.getparent() is not None:
            element.drop_tree()


def _is_hidden(element: HtmlElement) -> bool:
    if element.tag in _IGNORED_TAGS:
        return True
    attributes = element.attrib
    if not attributes:
        return False
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    style = attributes.get("style")
    return style is not None and _HIDDEN.search(style[:2000].lower()) is not None


def _is_boilerplate(element: HtmlElement, sizes: dict[HtmlElement, int], whole: int) -> bool:
    get = element.attrib.get
    if sizes.get(element, 0) > _BOILERPLATE_MAX_SHARE * whole:
        return False
    if element.tag in _BOILERPLATE_TAGS:
        # A header with an h1 holds the title of the article.
        return element.tag != "header" or element.find(".//h1") is None
    if get("role") in _BOILERPLATE_ROLES:
        return True
    if element.tag not in _NAMED_BOILERPLATE_TAGS:
        return False
    named = f"{get('class', '')} {get('id', '')}"[:300].lower()
    return _BOILERPLATE_NAME.search(named) is not None and element.find(".//h1") is None


def _sizes(top: HtmlElement) -> dict[HtmlElement, int]:
    """The number of text characters in each element."""
    sizes: dict[HtmlElement, int] = {}
    for element in reversed(list(top.iter())):  # From the leaves.
        size = len((element.text or "").strip())
        for child in element:
            size += sizes.get(child, 0) + len((child.tail or "").strip())
        sizes[element] = size
    return sizes


def _declared_content(body: HtmlElement, sizes: dict[HtmlElement, int], total: int) -> HtmlElement | None:
    """The largest element that the page marks as its content; None if it holds too little of the text."""
    candidates = [
        element
        for element in body.iter()
        if element.tag in ("main", "article")
        or element.attrib.get("role") in ("main", "article")
        or element.attrib.get("itemprop") == "articleBody"
    ]
    best = max(candidates, key=lambda element: sizes.get(element, 0), default=None)
    if best is None or sizes[best] < max(_MAIN_LEAST, _MAIN_SHARE * total):
        return None
    return best


def _densest(body: HtmlElement, sizes: dict[HtmlElement, int]) -> HtmlElement | None:
    """The element with the most paragraph text; None if it holds too little of the page."""
    scores: dict[HtmlElement, float] = {}
    for paragraph in body.iter("p", "pre", "blockquote", "td"):
        size = sizes.get(paragraph, 0) - sum(sizes.get(link, 0) for link in paragraph.iter("a"))
        # A cell or quote with paragraphs would count their text twice.
        has_paragraphs = paragraph.tag in ("td", "blockquote") and paragraph.find(".//p") is not None
        if size < _PARAGRAPH_LEAST or has_paragraphs:
            continue
        parent = paragraph.getparent()
        for share in (1.0, 0.5):
            if parent is None or parent is body.getparent():
                break
            scores[parent] = scores.get(parent, 0.0) + size * share
            parent = parent.getparent()
    best = max(scores, key=lambda element: scores[element], default=None)
    if best is None or sizes.get(best, 0) < _BLOCK_SHARE * sizes.get(body, 0):
        return None
    return best


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


@dataclass(slots=True, eq=False)
class MarkdownWriter:
    """Writes elements as Markdown; `is_plain`: as text without marks and URLs. `base`: the base of links."""

    _base: str
    is_plain: bool = False
    links: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """Link texts by URL, in the order of the page."""

    def write(self, element: HtmlElement) -> str:
        """The text of the element, without blank lines at its ends, and never two in a row."""
        return _BLANK_LINES.sub("\n\n", self._blocks(element)).strip()

    def _blocks(self, element: HtmlElement) -> str:
        """The contents of an element: runs of inline text and blocks, separated by blank lines."""
        parts: list[str] = []
        run: list[str] = [element.text or ""]

        def end_run() -> None:
            if text := _clean_inline("".join(run)):
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

    def _block(self, element: HtmlElement) -> str:
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
                    inner if self.is_plain else "\n".join(f"> {line}".rstrip() for line in inner.split("\n"))
                )
            case "hr":
                return "" if self.is_plain else "---"
            case _ if tag in _HEADINGS:
                text = self._line(element)
                return text if self.is_plain or not text else f"{'#' * _HEADINGS[tag]} {text}"
            case _:
                return self._blocks(element)

    def _line(self, element: HtmlElement) -> str:
        """The contents of an element as one line."""
        return _SPACES.sub(" ", self._inside(element).replace("\x1e", " ")).strip()

    def _inside(self, element: HtmlElement) -> str:
        parts = [element.text or ""]
        for child in element:
            parts.append(self._inline(child))
            parts.append(child.tail or "")
        return "".join(parts)

    def _inline(self, element: HtmlElement) -> str:
        tag = element.tag
        if tag == "br":
            return "\x1e"
        if tag == "img":
            alt = _SPACES.sub(" ", element.attrib.get("alt", "")).strip()[:_TEXT_OF_LINK]
            return alt if self.is_plain or not alt else f"![{alt}]"
        if tag == "a":
            return self._link(element)
        inner = self._inside(element)
        if _is_block(element):
            return f" {inner} "
        if self.is_plain or not inner.strip():
            return inner
        if tag in ("code", "kbd", "samp", "tt"):
            return _wrap(inner, "``" if "`" in inner else "`")
        return _wrap(inner, _STRONG[tag]) if tag in _STRONG else inner

    def _link(self, element: HtmlElement) -> str:
        inner = self._inside(element)
        address = _address(self._base, element.attrib.get("href", ""))
        if not address:
            return inner
        text = _SPACES.sub(" ", inner.replace("\x1e", " ")).strip()
        if address not in self.links or not self.links[address]:
            self.links[address] = text[:_TEXT_OF_LINK]
        if self.is_plain or not text:
            return inner
        return _wrap(inner.replace("\x1e", " "), "[", f"]({address})")

    def _code(self, element: HtmlElement) -> str:
        text = "".join(element.itertext()).replace("\r\n", "\n").strip("\n")
        if self.is_plain or not text.strip():
            return text
        longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        classes = [inner.attrib.get("class", "") for inner in (element, *element.iter("code"))]
        language = next((match[1] for name in classes if (match := _LANGUAGE.search(name[:300]))), "")
        return f"{fence}{language}\n{text}\n{fence}"

    def _list(self, element: HtmlElement) -> str:
        lines: list[str] = []
        number = 1
        for item in element:
            text = _BLANK_LINES.sub("\n\n", self._blocks(item)).strip()
            # No blank line between an item's text and a nested list.
            text = re.sub(r"\n\n(?=(?:- |\d+\. ))", "\n", text)
            if not text:
                continue
            mark = f"{number}. " if element.tag == "ol" else "- "
            number += 1
            first, *more = text.split("\n")
            lines.append(mark + first)
            lines += [f"{' ' * len(mark)}{line}".rstrip() for line in more]
        return "\n".join(lines)

    def _table(self, element: HtmlElement) -> str:
        rows = [
            [self._line(cell) for cell in row if cell.tag in ("td", "th")][:_MOST_CELLS]
            for row in element.iter("tr")
        ]
        rows = [row for row in rows if any(row)]
        width = max((len(row) for row in rows), default=0)
        if width <= 1 or element.find(".//table") is not None:
            # A table with one column or with nested tables is page layout.
            return "\n\n".join(part for cell in element.iter("td", "th", "caption")
                               if cell.find(".//td") is None and (part := self._blocks(cell)))  # fmt: skip
        if self.is_plain:
            return "\n".join("\t".join(row) for row in rows)
        cells = [[cell.replace("|", "\\|") for cell in [*row, *[""] * (width - len(row))]] for row in rows]
        lines = [f"| {' | '.join(row)} |" for row in cells]
        return "\n".join([lines[0], "|" + " --- |" * width, *lines[1:]])


def _clean_inline(text: str) -> str:
    """A run of inline text with line breaks only at the page's `br` elements."""
    return "\n".join(_break_long_line(_SPACES.sub(" ", line).strip()) for line in text.split("\x1e")).strip()


def _break_long_line(line: str) -> str:
    """Splits a line longer than _LONG_LINE, because tools cut long lines in what a model reads."""
    pieces: list[str] = []
    while len(line) > _LONG_LINE:
        position = max(line.rfind(mark, _LONG_LINE // 2, _LONG_LINE) for mark in " 。，、")
        if position < 0:
            break
        pieces.append(line[: position + 1].rstrip())
        line = line[position + 1 :]
    return "\n".join([*pieces, line])


def _is_block(element: HtmlElement) -> bool:
    return element.tag in _BLOCKS or element.tag in _HEADINGS


def _holds_blocks(element: HtmlElement) -> bool:
    """Whether it wraps blocks: pages use elements such as span or custom ones for that."""
    return element.tag != "a" and any(_is_block(inside) for inside in element.iterdescendants())


def _wrap(text: str, before: str, after: str = "") -> str:
    """The text between marks. Spaces at its ends stay outside: Markdown ignores marks next to spaces."""
    core = text.strip()
    if not core:
        return text
    start = text[: len(text) - len(text.lstrip())]
    return f"{start}{before}{core}{after or before}{text[len(text.rstrip()) :]}"


def _address(base: str, href: str) -> str:
    """The absolute URL of a link; empty if it is not HTTP or leads to the same page."""
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
