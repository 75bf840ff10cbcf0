"""Parses HTML into a tree, and declares types for the parts of lxml's elements that Luxx uses.

The parser bounds the depth to about 2,000, and drops comments and processing instructions.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

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
