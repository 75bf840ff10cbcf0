"""A document as a list of parts in reading order, as a reader process writes it and the server reads it.

A part is a page, a slide, the text below a heading or a run of rows. Reader processes build parts with
`PartWriter` and `HeadingPath`; neither reads a file.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

MAX_HEADING = 200
"""Characters of a heading; a longer one is cut."""

NO_EXTENSION = "-"
"""Stands for an empty extension among the arguments of a reader process."""

MAX_WARNINGS = 20
_PART_COST = 10
_HEADING_COST = 12
_END = b"end"


class ReadProblem(StrEnum):
    """Why a document has no parts. TIME, MEMORY and LONG are also the values of `ReadFailure`."""

    ENCRYPTED = "encrypted"
    MEMORY = "memory"
    TIME = "time"
    PAGES = "pages"
    LONG = "long"
    BROKEN = "broken"
    MACROS = "macros"
    UNPACKED = "unpacked"
    TYPE = "type"
    MISMATCH = "mismatch"


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`page`, `slide` and `rows` (first and last) are counted from 1; a part has one of them at most.

    `headings`: the path of headings that the text stands below; of a sheet its name. `columns`: the header of
    a table; then each line of `text` is one row.
    """

    text: str
    page: int | None = None
    slide: int | None = None
    rows: tuple[int, int] | None = None
    headings: tuple[str, ...] = ()
    columns: str = ""


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`format` names what the content is. `pages`: of a PDF its pages, of a presentation its slides.

    `error` is a ReadProblem, with its `detail`; empty if the document could be read, even if it has no text.
    """

    parts: Sequence[Part] = ()
    title: str = ""
    format: str = ""
    pages: int = 0
    is_cut: bool = False
    warnings: Sequence[str] = ()
    error: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        """All parts as one text, with headings as in Markdown."""
        blocks: list[str] = []
        before: tuple[str, ...] = ()
        columns = ""
        for part in self.parts:
            if part.headings != before:
                shared = _shared_depth(before, part.headings)
                blocks += [
                    f"{'#' * (at + 1)} {part.headings[at]}" for at in range(shared, len(part.headings))
                ]
                before, columns = part.headings, ""
            if part.columns != columns:
                columns = part.columns
                blocks += [columns] if columns else []
            blocks += [part.text] if part.text else []
        return "\n\n".join(blocks)


def _shared_depth(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    depth = 0
    while depth < min(len(left), len(right)) and left[depth] == right[depth]:
        depth += 1
    return depth


def encode_document(document: Document) -> bytes:
    """The document with a line for each part, so that the server decodes no large value at once."""
    head = msgspec.json.encode(msgspec.structs.replace(document, parts=()))
    return b"\n".join([head, *map(msgspec.json.encode, document.parts), _END])


def decode_document(answer: bytes) -> Document:
    """The document that a reader wrote. An incomplete answer has the error MEMORY: the kernel ended it."""
    head, *lines = answer.split(b"\n")
    if not lines or lines.pop() != _END:
        return Document(error=ReadProblem.MEMORY)
    try:
        document = msgspec.json.decode(head, type=Document)
        parts = [msgspec.json.decode(line, type=Part) for line in lines]
    except msgspec.DecodeError:
        return Document(error=ReadProblem.MEMORY)
    return msgspec.structs.replace(document, parts=parts)


class UnreadableDocument(Exception):
    """The document has no parts, for this reason."""

    def __init__(self, problem: ReadProblem, detail: str = "") -> None:
        super().__init__(problem, detail)
        self.problem = problem
        self.detail = detail


class TextLimitReached(Exception):
    """The limit of characters is reached and the text may be cut: what was added before is the document."""


class PartWriter:
    """Collects parts of at most `characters` in all. A longer text is cut if `may_cut`, else an error."""

    def __init__(self, characters: int, *, may_cut: bool = False) -> None:
        self._remaining = characters
        self._may_cut = may_cut
        self.parts: list[Part] = []
        self.warnings: list[str] = []
        self.is_cut = False

    def add(self, part: Part) -> None:
        """Raises UnreadableDocument or TextLimitReached if the part has no room."""
        headings = sum(len(heading) + _HEADING_COST for heading in part.headings)
        cost = len(part.text) + len(part.columns) + headings + _PART_COST
        if cost <= self._remaining:
            self.parts.append(part)
            self._remaining -= cost
            return
        if not self._may_cut:
            raise UnreadableDocument(ReadProblem.LONG)
        self.is_cut = True
        room = self._remaining - (cost - len(part.text))
        if room > 0:
            self.parts.append(msgspec.structs.replace(part, text=part.text[:room]))
        raise TextLimitReached

    def warn(self, warning: str) -> None:
        """Notes what was left out of the document; an empty warning is none."""
        if warning and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(warning)


class HeadingPath:
    """The headings that a text stands below, as a stack of levels."""

    def __init__(self, above: tuple[str, ...] = ()) -> None:
        self._above = above
        self._stack: list[tuple[int, str]] = []

    def enter(self, level: int, heading: str) -> None:
        """Begins the text below a heading, and ends those of the same and of deeper levels."""
        while self._stack and self._stack[-1][0] >= level:
            self._stack.pop()
        self._stack.append((level, " ".join(heading.split())[:MAX_HEADING]))

    @property
    def path(self) -> tuple[str, ...]:
        return (*self._above, *(heading for _, heading in self._stack))
