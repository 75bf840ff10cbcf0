"""Which formats of documents can be read: by the extension of a name, and the sentences for problems.

What the content of a file is, the readers find out.
"""

from enum import StrEnum

from luxx.infra.documents.parts import Document, ReadProblem


class Format(StrEnum):
    PDF = "pdf"
    DOCX = "docx"
    PPTX = "pptx"
    XLSX = "xlsx"
    XLS = "xls"
    ODS = "ods"
    EPUB = "epub"
    CSV = "csv"
    HTML = "html"
    MARKDOWN = "md"
    JSON = "json"
    TEXT = "txt"


BINARY_FORMATS = frozenset(
    (Format.PDF, Format.DOCX, Format.PPTX, Format.XLSX, Format.XLS, Format.ODS, Format.EPUB)
)
"""The formats that content shows without the name; all others are text."""

_MACRO_EXTENSIONS = frozenset(("docm", "dotm", "pptm", "potm", "ppsm", "xlsm", "xltm", "xlsb", "xlam"))
_TEXT_EXTENSIONS = """
txt text log rst adoc org tex bib srt vtt ini cfg conf toml yaml yml xml svg diff patch
py pyi js mjs cjs jsx ts tsx vue svelte java kt kts scala groovy c h cc cpp cxx hpp hh cs go rs rb php pl pm
lua r jl swift m mm dart ex exs erl hs clj lisp el ml fs vb sql sh bash zsh fish ps1 bat cmd asm s css scss
sass less graphql proto tf nix cmake gradle make mk dockerfile
"""
_FORMATS: dict[str, Format] = {
    **{one.value: one for one in Format},
    "ppsx": Format.PPTX,
    "dotx": Format.DOCX,
    "xltx": Format.XLSX,
    "tsv": Format.CSV,
    "htm": Format.HTML,
    "xhtml": Format.HTML,
    "markdown": Format.MARKDOWN,
    "mdx": Format.MARKDOWN,
    "jsonl": Format.JSON,
    "ndjson": Format.JSON,
    "geojson": Format.JSON,
    "ipynb": Format.JSON,
    **dict.fromkeys(("", *_TEXT_EXTENSIONS.split()), Format.TEXT),
}


def format_of_extension(extension: str) -> Format | None:
    """The format that an extension stands for; without one, a text. None for an unknown type."""
    return _FORMATS.get(extension.lower())


def has_macro_extension(extension: str) -> bool:
    """Whether it stands for an Office file with macros, which are refused."""
    return extension.lower() in _MACRO_EXTENSIONS


def name_warning(found: Format, named: Format | None) -> str:
    """The warning for a document that is read although its name says something else; else empty."""
    if named in (found, None):
        return ""
    return f"the content is {found}, although the name says {named}"


FORMAT_NAMES = (
    "PDF, Word (docx), PowerPoint (pptx), Excel (xlsx, xls), OpenDocument spreadsheets (ods), EPUB, CSV, web "
    "pages, Markdown, JSON, source code and other text"
)
_SENTENCES = {
    ReadProblem.ENCRYPTED: "{name} is encrypted; use a copy without a password",
    ReadProblem.MEMORY: "{name} needs too much memory to be read",
    ReadProblem.TIME: "{name} takes too long to be read",
    ReadProblem.PAGES: "{name} has too many pages; use a part of it",
    ReadProblem.LONG: "{name} has too much text to be read; use a part of it",
    ReadProblem.MACROS: "{name} has macros; use a copy without macros",
    ReadProblem.UNPACKED: "{name} is not opened: unpacked it has {detail}",
    ReadProblem.TYPE: "{name} is {detail}; what can be read is {formats}",
    ReadProblem.MISMATCH: "{name} is not what its name says: it is {detail}",
}


def problem_sentence(name: str, document: Document) -> str:
    """Why the document has no text, in one sentence; empty if it has some."""
    if not document.error:
        if any(part.text or part.headings for part in document.parts):
            return ""
        pages = "; its pages are images" if document.format == Format.PDF else ""
        return f"{name} contains no text{pages}"
    if document.error == ReadProblem.BROKEN:
        kind = document.format or "document"
        if kind == Format.PDF:
            return f"{name} is damaged or not a PDF"
        return f"{name} is damaged: {document.detail}" if document.detail else f"{name} is damaged"
    sentence = _SENTENCES[ReadProblem(document.error)]
    return sentence.format(name=name, detail=document.detail, formats=FORMAT_NAMES)
