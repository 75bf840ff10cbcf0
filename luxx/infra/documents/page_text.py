"""The reader process for web pages and other text from the web; `reader.PageProcess` starts it.

Standard input has a PageRequest as one line of JSON, then the document. Standard output is a PageText as
JSON. The process sets limits on itself before it reads the document, and may be killed at any time.
"""

import sys
from collections.abc import Mapping

import msgspec

from luxx.infra.documents.bounds import LINK_BYTES, PageForm, PageLink, PageRequest, PageText, limit, storable
from luxx.infra.documents.charset import decode
from luxx.infra.documents.content import HtmlElement, MarkdownWriter, content_of, parse_html

# The tree is at most about 2,000 deep, and writing one element takes a few nested calls.
_RECURSION_LIMIT = 20_000
_MAX_TITLE = 300
_MAX_DESCRIPTION = 500


def main() -> None:
    memory, seconds = (int(word) for word in sys.argv[1:3])
    limit(memory, seconds)
    sys.setrecursionlimit(_RECURSION_LIMIT)
    page_request = msgspec.json.decode(sys.stdin.buffer.readline(), type=PageRequest)
    try:
        answer = read(sys.stdin.buffer.read(), page_request)
    except MemoryError:
        answer = PageText(error="memory")
    except (RecursionError, ValueError, TypeError) as error:
        answer = PageText(error=f"broken: {type(error).__name__}")
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.buffer.flush()


def read(data: bytes, page_request: PageRequest) -> PageText:
    """The answer for a document, cut to the requested number of characters."""
    decoded = decode(data, page_request.charset)
    if "\0" in decoded.text[:2000] and not page_request.is_html:
        return PageText(error="binary")
    text = storable(decoded.text)
    if not page_request.is_html:
        return _cut(PageText(text=text, charset=decoded.charset), page_request)
    page = _page(text, page_request)
    return _cut(msgspec.structs.replace(page, charset=decoded.charset), page_request)


def _page(text: str, page_request: PageRequest) -> PageText:
    root, is_cut = parse_html(text)
    if root is None:
        return PageText(text=text if page_request.form is PageForm.HTML else "")
    title, description = _title(root), _meta(root, "description") or _meta(root, "og:description")
    writer = MarkdownWriter(_base(root, page_request.url), is_plain=page_request.form is PageForm.TEXT)
    content = writer.write(content_of(root))
    return PageText(
        title=title,
        description=description,
        text=text if page_request.form is PageForm.HTML else content,
        links=_links(writer.links, page_request.links),
        is_cut=is_cut and page_request.form is not PageForm.HTML,
    )


def _links(texts_by_url: Mapping[str, str], most: int) -> list[PageLink]:
    """The first links that fit into the bounds of the request."""
    remaining_bytes = most * LINK_BYTES
    kept: list[PageLink] = []
    for url, text in texts_by_url.items():
        size = len(url.encode()) + len(text.encode())
        if len(kept) < most and size <= remaining_bytes:
            kept.append(PageLink(text=text, url=url))
            remaining_bytes -= size
    return kept


def _title(root: HtmlElement) -> str:
    element = root.find(".//title")
    title = _line(element.text_content()) if element is not None else ""
    title = title or _meta(root, "og:title")
    if not title and (heading := root.find(".//h1")) is not None:
        title = _line(heading.text_content())
    return title[:_MAX_TITLE]


def _meta(root: HtmlElement, name: str) -> str:
    for meta in root.iter("meta"):
        if name in (meta.attrib.get("name", "").lower(), meta.attrib.get("property", "").lower()):
            return _line(meta.attrib.get("content", ""))[:_MAX_DESCRIPTION]
    return ""


def _base(root: HtmlElement, url: str) -> str:
    element = root.find(".//base[@href]")
    href = element.attrib.get("href", "") if element is not None else ""
    return href if href.startswith(("http://", "https://")) else url


def _line(text: str) -> str:
    return " ".join(text.split())


def _cut(page: PageText, page_request: PageRequest) -> PageText:
    if len(page.text) <= page_request.characters:
        return page
    return msgspec.structs.replace(page, text=page.text[: page_request.characters], is_cut=True)


if __name__ == "__main__":
    main()
