"""The text of Word documents and PowerPoint presentations (OOXML).

Left out: hidden and deleted text, comments, headers and footers of pages, charts, what fields compute from.
"""

from collections.abc import Iterable, Iterator

from luxx.infra.documents.archive import (
    Archive,
    XmlElement,
    attribute,
    child,
    children,
    descendants,
    name_of,
)
from luxx.infra.documents.parts import HeadingPath, Part, PartWriter

_TITLE_LEVEL = 0
_MAX_LEVEL = 9
_MAX_ANCESTORS = 10
_SKIPPED = frozenset(("Fallback", "moveFrom", "del", "pPr", "rPr", "instrText", "delText", "tblPr", "sdtPr"))
_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_OFF = ("0", "false", "off")
_NOTES = {"footnotes": "footnote", "endnotes": "endnote"}


def read_docx(archive: Archive, writer: PartWriter) -> str:
    """Adds the parts of a document: one for the text below each heading, on each page if Word has noted
    where pages begin. Returns the title."""
    main = archive.main_entry()
    root = archive.xml(main)
    entries = dict(archive.targets(main).values())
    styles = archive.optional_xml(entries.get("styles", ""))
    reader = _DocxReader(writer, _heading_levels(styles))
    body = child(root, "body")
    reader.read(root if body is None else body)
    for kind, note in _NOTES.items():
        notes = archive.optional_xml(entries.get(kind, ""))
        if notes is not None:
            reader.add_notes(kind, children(notes, note))
    return archive.title() or reader.title


def _heading_levels(styles: XmlElement | None) -> dict[str, int]:
    """The levels of the paragraph styles that are headings, by the id of the style."""
    levels: dict[str, int] = {}
    parents: dict[str, str] = {}
    for style in children(styles, "style"):
        style_id = attribute(style, "styleId")
        name = _value(child(style, "name")).lower()
        outline = child(style, "pPr", "outlineLvl")
        if outline is not None:
            levels[style_id] = _level(_value(outline))
        elif name == "title":
            levels[style_id] = _TITLE_LEVEL
        elif name.startswith("heading "):
            levels[style_id] = _level(name.removeprefix("heading "), first=0)
        parents[style_id] = _value(child(style, "basedOn"))
    for style_id in parents:
        ancestor, steps = style_id, 0
        while ancestor and ancestor not in levels and steps < _MAX_ANCESTORS:
            ancestor, steps = parents.get(ancestor, ""), steps + 1
        if ancestor in levels and levels[ancestor] != _TITLE_LEVEL:
            levels.setdefault(style_id, levels[ancestor])
    return levels


def _level(text: str, *, first: int = 1) -> int:
    """A level from 1; _MAX_LEVEL + 1, which is no heading, for anything else."""
    number = int(text) + first if text.isascii() and text.isdigit() and len(text) < 3 else 0
    return number if 1 <= number <= _MAX_LEVEL else _MAX_LEVEL + 1


def _value(element: XmlElement | None) -> str:
    return "" if element is None else attribute(element, "val")


class _DocxReader:
    def __init__(self, writer: PartWriter, levels: dict[str, int]) -> None:
        self.title = ""
        self._writer = writer
        self._levels = levels
        self._headings = HeadingPath()
        self._has_pages = False
        self._page = 1
        self._part_page = 1
        self._paragraphs: list[str] = []
        self._is_open = False

    def read(self, body: XmlElement) -> None:
        """Adds the parts of the body."""
        self._has_pages = next(descendants(body, "lastRenderedPageBreak"), None) is not None
        self._read_blocks(body)
        self._end_part()

    def add_notes(self, kind: str, notes: Iterable[XmlElement]) -> None:
        """Adds a part with the footnotes or endnotes."""
        texts = [" ".join(_text(note).split()) for note in notes]
        text = "\n".join(one for one in texts if one)
        if text:
            self._writer.add(Part(text=text, headings=(kind.capitalize(),)))

    def _read_blocks(self, container: XmlElement) -> None:
        for block in container:
            match name_of(block):
                case "p":
                    self._read_paragraph(block)
                case "tbl":
                    self._read_table(block)
                case name if name and name not in _SKIPPED:
                    self._read_blocks(block)
                case _:
                    pass

    def _read_paragraph(self, paragraph: XmlElement) -> None:
        text, breaks_before, breaks = _text_and_breaks(paragraph)
        self._page += breaks_before
        level = self._level_of(paragraph)
        if text and level <= _MAX_LEVEL:
            self._end_part()
            self._headings.enter(level, text)
            self._is_open = True
            self._part_page = self._page
            self.title = self.title or (text if level <= 1 else "")
        elif text:
            is_item = child(paragraph, "pPr", "numPr") is not None
            self._add(f"- {text}" if is_item else text)
        self._page += breaks - breaks_before

    def _level_of(self, paragraph: XmlElement) -> int:
        properties = child(paragraph, "pPr")
        outline = child(properties, "outlineLvl")
        if outline is not None:
            return _level(_value(outline))
        return self._levels.get(_value(child(properties, "pStyle")), _MAX_LEVEL + 1)

    def _read_table(self, table: XmlElement) -> None:
        rows: list[str] = []
        breaks = 0
        for row in _within(table, "tr"):
            cells = [" ".join(_text(cell).split()) for cell in _within(row, "tc")]
            breaks += sum(1 for _ in descendants(row, "lastRenderedPageBreak"))
            if any(cells):
                rows.append(" | ".join(cells))
        if rows:
            self._add("\n".join(rows))
        self._page += breaks

    def _add(self, text: str) -> None:
        if self._page != self._part_page:
            self._end_part()
        self._part_page = self._page
        self._paragraphs.append(text)

    def _end_part(self) -> None:
        if self._paragraphs or self._is_open:
            page = self._part_page if self._has_pages else None
            text = "\n\n".join(self._paragraphs)
            self._writer.add(Part(text=text, page=page, headings=self._headings.path))
        self._paragraphs = []
        self._is_open = False


def _within(element: XmlElement, name: str) -> Iterator[XmlElement]:
    """The rows or cells of a table, also those inside content controls; not those of a nested table."""
    for one in element:
        found = name_of(one)
        if found == name:
            yield one
        elif found in ("sdt", "sdtContent", "customXml", "ins"):
            yield from _within(one, name)


def _text(element: XmlElement) -> str:
    return _text_and_breaks(element)[0]


def _text_and_breaks(element: XmlElement) -> tuple[str, int, int]:
    """The visible text, how many pages begin before its first character, and how many in all."""
    pieces: list[str] = []
    breaks_before = breaks = 0
    for piece in _pieces(element):
        if piece is None:
            breaks += 1
            breaks_before += not any(one.strip() for one in pieces)
        else:
            pieces.append(piece)
    return "".join(pieces).strip(), breaks_before, breaks


def _pieces(element: XmlElement) -> Iterator[str | None]:
    """The pieces of visible text; None where Word began a page when it saved the document."""
    for one in element:
        name = name_of(one)
        if name == "t":
            yield one.text or ""
        elif name in _BREAKS:
            yield _BREAKS[name]
        elif name == "lastRenderedPageBreak":
            yield None
        elif name in ("p", "tc"):
            yield "\n"
            yield from _pieces(one)
        elif name and name not in _SKIPPED and not (name == "r" and _is_hidden(one)):
            yield from _pieces(one)


def _is_hidden(run: XmlElement) -> bool:
    vanish = child(run, "rPr", "vanish")
    return vanish is not None and _value(vanish) not in _OFF


def read_pptx(archive: Archive, writer: PartWriter) -> tuple[str, int]:
    """Adds a part for each slide, its title as the heading, with the speaker notes. Returns the title and the
    number of slides."""
    main = archive.main_entry()
    entries = archive.targets(main)
    slides = children(child(archive.xml(main), "sldIdLst"), "sldId")
    number = 0
    for number, slide in enumerate(slides, 1):
        entry = entries.get(_relation_id(slide), ("", ""))[1]
        heading, text = _slide_text(archive, entry)
        if heading or text:
            headings = (" ".join(heading.split())[:200],) if heading else ()
            writer.add(Part(text=text, slide=number, headings=headings))
    return archive.title(), number


def _relation_id(element: XmlElement) -> str:
    """The id of a relationship, which stands beside a number that is also called id."""
    return next((value for key, value in element.attrib.items() if key.endswith("}id")), "")


def _slide_text(archive: Archive, entry: str) -> tuple[str, str]:
    """The title of a slide, and the rest of its text."""
    heading = ""
    texts: list[str] = []
    for shape in _shapes(archive.xml(entry)):
        if name_of(shape) == "tbl":
            texts.append("\n".join(_table_rows(shape)))
            continue
        text = _paragraphs(shape)
        if not heading and _is_title(shape):
            heading = text
        else:
            texts.append(text)
    for kind, target in archive.targets(entry).values():
        if kind == "diagramData":
            texts.append(_paragraphs(archive.xml(target)))
        elif kind == "notesSlide":
            notes = [_paragraphs(shape) for shape in _shapes(archive.xml(target)) if _is_body(shape)]
            texts += [f"Notes: {text}" for text in notes if text]
    return heading, "\n\n".join(text for text in texts if text)


def _shapes(root: XmlElement) -> Iterator[XmlElement]:
    """The shapes with text and the tables, also those in groups."""
    for one in root:
        name = name_of(one)
        if name in ("sp", "cxnSp", "tbl"):
            yield one
        elif name and name != "Fallback":
            yield from _shapes(one)


def _placeholder(shape: XmlElement) -> str:
    found = next(descendants(shape, "ph"), None)
    return "" if found is None else attribute(found, "type") or "body"


def _is_title(shape: XmlElement) -> bool:
    return _placeholder(shape) in ("title", "ctrTitle")


def _is_body(shape: XmlElement) -> bool:
    return _placeholder(shape) == "body"


def _table_rows(table: XmlElement) -> Iterator[str]:
    for row in children(table, "tr"):
        yield " | ".join(" ".join(_paragraphs(cell).split()) for cell in children(row, "tc"))


def _paragraphs(element: XmlElement) -> str:
    """The paragraphs below an element, each on a line."""
    lines = (_text(paragraph) for paragraph in descendants(element, "p"))
    return "\n".join(line for line in lines if line)
