"""The text of EPUB books: their chapters in reading order, each below its headings."""

import re

from luxx.infra.documents.archive import Archive, XmlElement, attribute, children, descendants, resolve
from luxx.infra.documents.bounds import storable
from luxx.infra.documents.charset import decode
from luxx.infra.documents.content import MarkdownWriter, parse_html, visible
from luxx.infra.documents.markdown_parts import add_markdown
from luxx.infra.documents.parts import PartWriter, ReadProblem, UnreadableDocument

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_CHAPTER_TYPES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
MAX_CHAPTER = 32 * 1024 * 1024
_EMPTY_ELEMENT = re.compile(r"<([a-zA-Z][\w:-]*+)([^<>]*+)(?<=/)>")
_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr")
)


def read_epub(archive: Archive, writer: PartWriter) -> str:
    """Adds the parts of the chapters. Returns the title of the book."""
    container = archive.xml(_CONTAINER)
    package = next((attribute(one, "full-path") for one in descendants(container, "rootfile")), "")
    root = archive.xml(package, may_have_doctype=True)
    title = next(descendants(root, "title"), None)
    book = " ".join((title.text or "").split())[:300] if title is not None else ""
    encrypted = _encrypted_entries(archive)
    for entry in _chapters(root, package.rpartition("/")[0]):
        if entry in encrypted:
            raise UnreadableDocument(ReadProblem.ENCRYPTED)
        if entry not in archive.names:
            writer.warn(f"the chapter {entry.rpartition('/')[2][:80]} is missing")
            continue
        if archive.names[entry].file_size > MAX_CHAPTER:
            raise UnreadableDocument(
                ReadProblem.UNPACKED, f"a chapter of more than {MAX_CHAPTER // 2**20} MiB"
            )
        _read_chapter(archive.read(entry), book, writer)
    return book


def _chapters(package: XmlElement, folder: str) -> list[str]:
    """The entries of the chapters in reading order."""
    hrefs: dict[str, str] = {}
    for item in descendants(package, "item"):
        if attribute(item, "media-type") in _CHAPTER_TYPES:
            hrefs[attribute(item, "id")] = resolve(folder, attribute(item, "href"))
    order = [
        attribute(one, "idref")
        for spine in descendants(package, "spine")
        for one in children(spine, "itemref")
    ]
    # A chapter that is named twice is read once.
    return list(dict.fromkeys(hrefs[one] for one in order if one in hrefs))


def _encrypted_entries(archive: Archive) -> set[str]:
    """The entries with protection against copies; most books with such a list only have encrypted fonts."""
    root = archive.optional_xml(_ENCRYPTION)
    found = () if root is None else descendants(root, "CipherReference")
    return {resolve("", attribute(one, "URI")) for one in found}


def _read_chapter(data: bytes, book: str, writer: PartWriter) -> None:
    # Books are XML, in which <title/> is complete; to the HTML parser it would begin a title.
    text = _EMPTY_ELEMENT.sub(_closed, storable(decode(data).text))
    root, is_cut = parse_html(text)
    if root is None:
        return
    if is_cut:
        writer.warn("a chapter is nested too deeply, and its innermost text was left out")
    title = root.find(".//title")
    name = " ".join(title.text_content().split()) if title is not None else ""
    content = MarkdownWriter("").write(visible(root))
    has_heading = content.startswith("#")
    add_markdown(content, writer, () if has_heading or not name or name == book else (name[:200],))


def _closed(element: re.Match[str]) -> str:
    name, attributes = element[1], element[2]
    return element[0] if name.lower() in _VOID else f"<{name}{attributes[:-1]}></{name}>"
