"""The reader process for all documents but PDF files; `reader.DocumentProcess` starts it.

Standard input is the file, standard output the Document. Arguments: the limits of memory and time, the most
characters, whether a longer text is cut, and the extension of the file's name. The process sets limits on
itself before it reads the file, and may be killed at any time.
"""

import sys
from collections.abc import Callable

import msgspec

from luxx.infra.documents.archive import Archive
from luxx.infra.documents.bounds import limit, storable
from luxx.infra.documents.charset import decode
from luxx.infra.documents.content import MarkdownWriter, content_of, parse_html
from luxx.infra.documents.epub_text import read_epub
from luxx.infra.documents.formats import (
    BINARY_FORMATS,
    Format,
    format_of_extension,
    has_macro_extension,
    name_warning,
)
from luxx.infra.documents.markdown_parts import add_markdown
from luxx.infra.documents.office_text import read_docx, read_pptx
from luxx.infra.documents.parts import (
    NO_EXTENSION,
    Document,
    Part,
    PartWriter,
    ReadProblem,
    TextLimitReached,
    UnreadableDocument,
    encode_document,
)
from luxx.infra.documents.sheet_text import check_old_office, read_csv, read_workbook

_RECURSION_LIMIT = 20_000
_ZIP_MARKS = (b"PK\x03\x04", b"PK\x05\x06")
_OLE_MARK = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_TEXT_SAMPLE = 8_000


def main() -> None:
    memory, seconds, characters, may_cut = (int(word) for word in sys.argv[1:5])
    limit(memory, seconds)
    sys.setrecursionlimit(_RECURSION_LIMIT)
    extension = sys.argv[5] if sys.argv[5] != NO_EXTENSION else ""
    answer = read(sys.stdin.buffer.read(), extension, characters, may_cut=bool(may_cut))
    sys.stdout.buffer.write(encode_document(answer))
    sys.stdout.buffer.flush()


def read(data: bytes, extension: str, characters: int, *, may_cut: bool) -> Document:
    """The document, or the reason why it cannot be read."""
    named = format_of_extension(extension)
    writer = PartWriter(characters, may_cut=may_cut)
    found = named
    try:
        found = _format(data, named, extension)
        return _read(data, found, writer, named)
    except UnreadableDocument as problem:
        return Document(format=found or "", error=problem.problem, detail=problem.detail)
    except MemoryError:
        return Document(format=found or "", error=ReadProblem.MEMORY)
    except BaseException:
        # Parsers raise errors of many kinds for what they did not expect; one in Rust that panics raises an
        # error that is no Exception.
        return Document(format=found or "", error=ReadProblem.BROKEN)


def _format(data: bytes, named: Format | None, extension: str) -> Format:
    """What the content is; the name decides among texts only. Raises UnreadableDocument."""
    try:
        if has_macro_extension(extension):
            raise UnreadableDocument(ReadProblem.MACROS)
        if data.startswith(_ZIP_MARKS):
            return Archive(data).format()
        if data.startswith(_OLE_MARK):
            check_old_office(data)
            return Format.XLS
        if b"\0" in data[:_TEXT_SAMPLE] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise UnreadableDocument(ReadProblem.TYPE, "a file of an unknown type")
        if named is None:
            raise UnreadableDocument(ReadProblem.TYPE, f"a file of an unknown type (.{extension})")
        if named in BINARY_FORMATS:
            raise UnreadableDocument(ReadProblem.TYPE, "empty" if not data.strip() else "a text")
        return named
    except UnreadableDocument as problem:
        if problem.problem is ReadProblem.TYPE and named is not None:
            raise UnreadableDocument(ReadProblem.MISMATCH, problem.detail) from problem
        raise


def _read(data: bytes, found: Format, writer: PartWriter, named: Format | None) -> Document:
    title, pages = "", 0
    writer.warn(name_warning(found, named))
    try:
        if found is Format.PPTX:
            title, pages = read_pptx(Archive(data), writer)
        else:
            title = _READERS[found](data, writer)
    except TextLimitReached:
        pass
    return Document(
        parts=writer.parts,
        title=storable(title)[:300],
        format=found,
        pages=pages,
        is_cut=writer.is_cut,
        warnings=writer.warnings,
    )


def _read_sheets(data: bytes, writer: PartWriter) -> str:
    title = ""
    if data.startswith(_ZIP_MARKS):
        archive = Archive(data)
        title = archive.title("meta.xml" if "meta.xml" in archive.names else "docProps/core.xml")
    read_workbook(data, writer)
    return title


def _read_html(data: bytes, writer: PartWriter) -> str:
    root, is_cut = parse_html(storable(decode(data).text))
    if root is None:
        return ""
    if is_cut:
        writer.warn("the page is nested too deeply, and its innermost text was left out")
    found = root.find(".//title")
    title = " ".join(found.text_content().split()) if found is not None else ""
    heading = add_markdown(MarkdownWriter("").write(content_of(root)), writer)
    return title or heading


def _read_markdown(data: bytes, writer: PartWriter) -> str:
    return add_markdown(_decoded(data), writer)


def _read_csv(data: bytes, writer: PartWriter) -> str:
    read_csv(_decoded(data), writer)
    return ""


def _read_text(data: bytes, writer: PartWriter) -> str:
    text = _decoded(data).strip("\n")
    if text.strip():
        writer.add(Part(text=text))
    return ""


def _decoded(data: bytes) -> str:
    return storable(decode(data).text).replace("\r\n", "\n").replace("\r", "\n")


def _read_json(data: bytes, writer: PartWriter) -> str:
    """A value on one line is written on several, so that it can be divided; anything else stays as it is."""
    text = _decoded(data)
    if "\n" not in text.strip():
        try:
            text = msgspec.json.format(text, indent=2)
        except (msgspec.DecodeError, RecursionError):
            writer.warn("the file is not valid JSON and was read as text")
    return _read_text(text.encode(), writer)


_READERS: dict[Format, Callable[[bytes, PartWriter], str]] = {
    Format.DOCX: lambda data, writer: read_docx(Archive(data), writer),
    Format.EPUB: lambda data, writer: read_epub(Archive(data), writer),
    Format.XLSX: _read_sheets,
    Format.ODS: _read_sheets,
    Format.XLS: _read_sheets,
    Format.CSV: _read_csv,
    Format.HTML: _read_html,
    Format.MARKDOWN: _read_markdown,
    Format.JSON: _read_json,
    Format.TEXT: _read_text,
}
"""Each adds the parts of a document and returns its title."""


if __name__ == "__main__":
    main()
