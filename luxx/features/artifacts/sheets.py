"""The source of sheets: checked JSON, and sheets as CSV. Pure.

Only cells of columns of the type `formula` are formulas, in a file as in CSV.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from luxx.errors import InvalidInput
from luxx.infra.documents.render.sheet_source import ColumnType, formula_problem
from luxx.infra.strict_json import decode_strict

MAX_SHEETS = 60
MAX_COLUMNS = 256
MAX_ROWS = 20_000
MAX_CELL = 32_767
"""Characters that Excel stores in a cell."""

_SHEET_NAME = re.compile(r"(?!')[^\[\]:*?/\\\n\t]{1,31}(?<!')")
_DANGEROUS_START = ("=", "+", "-", "@", "\t", "\r")
"""How a field of CSV begins that programs take for a formula."""


class SheetColumn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column with its heading."""

    name: Annotated[str, Meta(max_length=1_000)]
    type: ColumnType = ColumnType.TEXT


class Sheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sheet: `rows` are lists of as many cells as there are columns, or fewer."""

    name: str
    columns: Annotated[list[SheetColumn], Meta(min_length=1, max_length=MAX_COLUMNS)]
    rows: Annotated[list[list[Any]], Meta(max_length=MAX_ROWS)] = []


class Workbook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole source of a sheet."""

    sheets: Annotated[list[Sheet], Meta(min_length=1)]

    @staticmethod
    def check_names(names: Sequence[str]) -> None:
        """Raises InvalidInput for a name that Excel does not take, or that two sheets have."""
        seen: set[str] = set()
        for index, name in enumerate(names):
            if not _SHEET_NAME.fullmatch(name):
                raise _invalid(
                    f"$.sheets[{index}].name: a sheet's name has 1 to 31 characters, without [ ] : * ? / \\"
                )
            if name.casefold() in seen:
                raise _invalid(f"$.sheets[{index}].name: two sheets are named {name!r}")
            seen.add(name.casefold())


def read_workbook(text: str) -> list[str]:
    """The canonical JSON of each sheet. Raises InvalidInput, which names the first wrong place."""
    workbook = _converted(text, Workbook)
    Workbook.check_names([sheet.name for sheet in workbook.sheets])
    return [_checked(sheet, f"$.sheets[{index}]") for index, sheet in enumerate(workbook.sheets)]


def read_sheet(text: str) -> str:
    """The canonical JSON of one sheet. Raises InvalidInput."""
    sheet = _converted(text, Sheet)
    Workbook.check_names([sheet.name])
    return _checked(sheet, "$")


def _converted(text: str, type_: Any) -> Any:
    try:
        return msgspec.convert(decode_strict(text.encode()), type_)
    except (ValueError, RecursionError) as error:
        raise _invalid(
            f"{error}; a sheet is JSON {{sheets: [{{name, columns: [{{name, type}}], rows: [[…]]}}]}}"
        ) from error


def _checked(sheet: Sheet, path: str) -> str:
    types = [column.type for column in sheet.columns]
    for number, row in enumerate(sheet.rows):
        if len(row) > len(types):
            raise _invalid(
                f"{path}.rows[{number}]: it has {len(row)} cells, and there are {len(types)} columns"
            )
        for place, cell in enumerate(row):
            if cell is not None and (problem := _problem_of(cell, types[place])) is not None:
                raise _invalid(f"{path}.rows[{number}][{place}]: {problem}")
    return msgspec.json.encode(sheet).decode()


def _problem_of(cell: Any, type_: ColumnType) -> str | None:
    is_text = isinstance(cell, str)
    if is_text and len(cell) > MAX_CELL:
        return f"a cell has at most {MAX_CELL} characters"
    match type_:
        case ColumnType.TEXT:
            return None if is_text else "a text is needed in a column of the type text"
        case ColumnType.NUMBER:
            is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
            return None if is_number else "a number is needed in a column of the type number"
        case ColumnType.BOOL:
            return None if isinstance(cell, bool) else "true or false is needed in a column of the type bool"
        case ColumnType.DATE:
            return None if is_text and _is_date(cell) else "a date such as 2026-01-31 is needed"
        case ColumnType.FORMULA:
            return formula_problem(cell) if is_text else "a formula is a text such as =SUM(A2:A9)"


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return len(text) >= len("2026-01-31")


def _invalid(problem: str) -> InvalidInput:
    return InvalidInput(problem, field="$.content", kind="source_invalid")


def to_csv(pages: Sequence[str]) -> str:
    """The sheets as CSV with CRLF; several of them below each other, each after a line with its name."""
    out = io.StringIO()
    writer = csv.writer(out)
    sheets = [msgspec.json.decode(page, type=Sheet) for page in pages]
    for index, sheet in enumerate(sheets):
        if len(sheets) > 1:
            if index:
                out.write("\r\n")
            writer.writerow([harmless(sheet.name)])
        writer.writerows(_csv_rows(sheet))
    return out.getvalue()


def _csv_rows(sheet: Sheet) -> Iterator[list[str]]:
    types = [column.type for column in sheet.columns]
    yield [harmless(column.name) for column in sheet.columns]
    for row in sheet.rows:
        yield [_csv_field(cell, types[place]) for place, cell in enumerate(row)]


def _csv_field(cell: Any, type_: ColumnType) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "TRUE" if cell else "FALSE"
    return str(cell) if type_ in (ColumnType.FORMULA, ColumnType.NUMBER) else harmless(str(cell))


def harmless(text: str) -> str:
    """The text, after a tab where a program that reads CSV would take it for a formula."""
    return f"\t{text}" if text.startswith(_DANGEROUS_START) else text
