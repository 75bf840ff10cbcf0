"""The rows of spreadsheets and of CSV files, with their numbers. Formulas are read as their stored values."""

import csv
import datetime
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from python_calamine import (
    CalamineError,
    CalamineWorkbook,
    PasswordError,
    SheetTypeEnum,
    SheetVisibleEnum,
)

from luxx.infra.documents.bounds import storable
from luxx.infra.documents.parts import MAX_HEADING, Part, PartWriter, ReadProblem, UnreadableDocument

_PASSWORD_STREAM = "EncryptedPackage".encode("utf-16-le")
_MACRO_STREAM = "_VBA_PROJECT".encode("utf-16-le")
_WORKBOOK_STREAMS = tuple(name.encode("utf-16-le") for name in ("Workbook\0", "Book\0"))
_OLD_STREAMS = {
    "WordDocument": "an old Word file (doc)",
    "PowerPoint Document": "an old PowerPoint file (ppt)",
}
_NUMBER = re.compile(r"[-+]?[\d.,' ]{0,30}\d[\d.,' ]{0,30}%?(?:[eE][-+]?\d{1,4})?")
_LONGEST_NUMBER = 60
_DELIMITERS = ",;\t|"
_SAMPLE = 20_000
_MAX_COLUMNS = 2_000

Row = tuple[int, list[str], bool]
"""The number of a row, its cells, and whether it has a cell that is no text."""


def check_old_office(data: bytes) -> None:
    """Raises UnreadableDocument unless an OLE file is a workbook without a password and macros."""
    if _PASSWORD_STREAM in data:
        raise UnreadableDocument(ReadProblem.ENCRYPTED)
    for name, kind in _OLD_STREAMS.items():
        if name.encode("utf-16-le") in data:
            raise UnreadableDocument(ReadProblem.TYPE, kind)
    if not any(stream in data for stream in _WORKBOOK_STREAMS):
        raise UnreadableDocument(ReadProblem.TYPE, "an old Office file or another OLE file")
    if _MACRO_STREAM in data:
        raise UnreadableDocument(ReadProblem.MACROS)


def read_workbook(data: bytes, writer: PartWriter) -> None:
    """Adds the parts of all visible sheets, with the name of the sheet as the heading."""
    try:
        with CalamineWorkbook.from_filelike(io.BytesIO(data)) as workbook:
            hidden = 0
            for index, metadata in enumerate(workbook.sheets_metadata):
                if metadata.typ in (SheetTypeEnum.ChartSheet, SheetTypeEnum.Vba):
                    continue
                if metadata.visible is not SheetVisibleEnum.Visible:
                    hidden += 1
                    continue
                sheet: Any = workbook.get_sheet_by_index(index)
                _add_rows(_cells(sheet.iter_rows()), metadata.name.strip()[:MAX_HEADING], writer)
    except PasswordError as error:
        raise UnreadableDocument(ReadProblem.ENCRYPTED) from error
    except CalamineError as error:
        raise UnreadableDocument(ReadProblem.BROKEN, "a sheet cannot be read") from error
    if hidden:
        writer.warn(f"hidden sheets were left out: {hidden}")


def _cells(rows: Iterable[Sequence[object]]) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        cells = [_shown(value) for value in row]
        yield number, cells, any(value != "" and not isinstance(value, str) for value in row)


def _shown(value: object) -> str:
    match value:
        case str():
            return _line(value)
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case datetime.datetime():
            return value.isoformat(" ")
        case _:
            return str(value)


def read_csv(text: str, writer: PartWriter) -> None:
    """Adds the parts of a CSV file. A row is a record, as spreadsheet programs count."""
    csv.field_size_limit(max(len(text), 1))
    records = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text[:_SAMPLE]))
    try:
        _add_rows(_records(records), "", writer)
    except csv.Error as error:
        raise UnreadableDocument(ReadProblem.BROKEN, f"line {records.line_num:,} is not valid CSV") from error


def _records(records: Iterable[list[str]]) -> Iterator[Row]:
    for number, record in enumerate(records, 1):
        cells = [_line(cell) for cell in record]
        yield number, cells, any(len(cell) < _LONGEST_NUMBER and _NUMBER.fullmatch(cell) for cell in cells)


def _delimiter(sample: str) -> str:
    """The delimiter that the most of the first lines have equally often."""
    lines = [line for line in sample.splitlines()[:20] if line]
    best, best_score = ",", (0, 0)
    for delimiter in _DELIMITERS:
        counts = [line.count(delimiter) for line in lines]
        usual = max(counts, key=counts.count, default=0)
        score = (counts.count(usual) if usual else 0, usual)
        if score > best_score:
            best, best_score = delimiter, score
    return best


def _line(text: str) -> str:
    return " ".join(storable(text).split()) if text else ""


def _add_rows(rows: Iterator[Row], sheet: str, writer: PartWriter) -> None:
    """Adds a part for each run of rows without an empty row between them. A part has one header."""
    headings = (sheet,) if sheet else ()
    columns = ""
    is_first = True
    for block in _blocks(rows, writer):
        header = _header(block, is_first=is_first)
        is_first = False
        if header:
            columns = " | ".join(block[0][1])
            block = block[1:]
        lines = "\n".join(" | ".join(cells) for _, cells, _ in block)
        span = (block[0][0], block[-1][0])
        writer.add(Part(text=lines, rows=span, headings=headings, columns=columns))


def _blocks(rows: Iterator[Row], writer: PartWriter) -> Iterator[list[Row]]:
    block: list[Row] = []
    for number, cells, has_values in rows:
        while cells and not cells[-1]:
            cells.pop()
        if len(cells) > _MAX_COLUMNS:
            writer.warn(f"row {number:,} has more than {_MAX_COLUMNS:,} columns; the others were left out")
            cells = cells[:_MAX_COLUMNS]
        if cells:
            block.append((number, cells, has_values))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _header(block: list[Row], *, is_first: bool) -> bool:
    """Whether the first row names the columns of the others: it has text only. Below an empty row, where the
    rows above may go on, it does so only if another row has a value that is no text."""
    _, cells, has_values = block[0]
    if len(block) < 2 or has_values or sum(1 for cell in cells if cell) < 2:
        return False
    return is_first or any(row_has_values for _, _, row_has_values in block[1:])
