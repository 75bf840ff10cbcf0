"""HTML as a tree: the parser, and what of its untyped elements is used here.

Depth is bounded by the parser, to some 250; comments and instructions are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

import lxml.html


class Element(Protocol):
    """`text` comes before the first child, `tail` after the element's end."""

    tag: str
    text: str | None
    tail: str | None

    @property
    def attrib(self) -> Mapping[str, str]: ...
    def __iter__(self) -> "Iterator[Element]": ...
    def iter(self, *tags: str) -> "Iterator[Element]": ...
    def itertext(self) -> Iterator[str]: ...
    def iterdescendants(self) -> "Iterator[Element]": ...
    def find(self, path: str) -> "Element | None": ...
    def getparent(self) -> "Element | None": ...
    def drop_tree(self) -> None: ...
    def text_content(self) -> str: ...


def parse_html(text: str) -> Element | None:
    """The root; None for a text without any element, as one of comments alone."""
    data = text.encode("utf-8", "replace")
    if not data.strip():
        return None
    untyped: Any = lxml.html
    parser = untyped.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, collect_ids=False)
    try:
        return cast(Element, untyped.document_fromstring(data, parser=parser, ensure_head_body=False))
    except untyped.etree.LxmlError:
        return None
