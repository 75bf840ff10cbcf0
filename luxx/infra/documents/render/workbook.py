"""Writes sheets as xlsx files: typed cells, formulas only in columns of that type, and a look as in Excel."""

# The libraries of this module have no complete types.
# pyright: basic

import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from io import BytesIO
from typing import Any

import msgspec
import xlsxwriter

from luxx.infra.documents.render.archive_bytes import fixed_archive
from luxx.infra.documents.render.blocks import clean
from luxx.infra.documents.render.formulas import Calculator, UnknownValue
from luxx.infra.documents.render.request import RenderProblem, RenderSource
from luxx.infra.documents.render.scripts import LATIN_FONT, is_wide
from luxx.infra.documents.render.sheet_source import ColumnType, RenderedSheet, formula_problem, read_sheet
from luxx.infra.documents.render.themes import THEMES, Theme, theme_named

MAX_ROWS = 100_000
_MAX_NAME = 31
_MAX_TEXT = 32_000
_MOST_WIDTH, _LEAST_WIDTH = 60.0, 8.0
_ROWS_MEASURED = 500
_FORBIDDEN_IN_NAMES = re.compile(r"[\[\]:*?/\\]")
_ISO_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?")


def write_workbook(source: RenderSource) -> tuple[bytes, list[RenderProblem]]:
    """The xlsx file, and what is wrong with the source."""
    file = BytesIO()
    options = {
        "in_memory": True,
        "strings_to_formulas": False,
        "strings_to_urls": False,
        "strings_to_numbers": False,
        "nan_inf_to_errors": True,
        "default_date_format": "yyyy-mm-dd",
    }
    workbook = xlsxwriter.Workbook(file, options)
    workbook.set_properties({"title": clean(source.name)[:255], "created": datetime(2000, 1, 1)})
    theme = THEMES["clear"] if source.theme == "night" else theme_named(source.theme)
    sheets = [_sheet_or_problem(page, number) for number, page in enumerate(source.pages, 1)]
    writer = _WorkbookWriter(workbook, theme, [sheet for sheet, _ in sheets])
    for number, (sheet, problem) in enumerate(sheets, 1):
        writer.add(sheet, number, problem)
    workbook.close()
    return fixed_archive(file.getvalue()), writer.problems


def _sheet_or_problem(page: str, number: int) -> tuple[RenderedSheet, str]:
    try:
        return read_sheet(page), ""
    except (msgspec.DecodeError, UnicodeError) as error:
        return RenderedSheet(name=f"Sheet {number}", columns=()), f"Sheet {number} is no sheet: {error}."


def _cells_of_workbook(sheets: Sequence[RenderedSheet]) -> dict[tuple[str, int, int], object]:
    """The cells by sheet, row and column; only in columns of formulas a text is one."""
    cells: dict[tuple[str, int, int], object] = {}
    for sheet in sheets:
        name = sheet.name.lower()
        for row, values in enumerate(sheet.rows[:MAX_ROWS], 1):
            for column, (kind, cell) in enumerate(zip(sheet.columns, values, strict=False)):
                is_text = (
                    isinstance(cell, str) and cell.startswith("=") and kind.type is not ColumnType.FORMULA
                )
                cells[name, row, column] = f"'{cell}" if is_text else cell
    return cells


class _WorkbookWriter:
    def __init__(self, workbook: Any, theme: Theme, sheets: Sequence[RenderedSheet]) -> None:
        self._calculator = Calculator(_cells_of_workbook(sheets))
        self._sheet = ""
        self.problems: list[RenderProblem] = []
        self._workbook = workbook
        self._names: set[str] = set()
        self._number = 0
        font = {"font_name": LATIN_FONT, "font_size": 10, "valign": "top"}
        workbook.formats[0].set_font_name(LATIN_FONT)
        workbook.formats[0].set_font_size(10)
        head = {
            **font,
            "bold": True,
            "font_color": f"#{theme.accent_text}",
            "bg_color": f"#{theme.accent}",
            "bottom": 1,
            "bottom_color": f"#{theme.accent}",
            "valign": "vcenter",
            "text_wrap": True,
        }
        self._head = {
            side: workbook.add_format({**head, "align": side}) for side in ("left", "right", "center")
        }
        line = {"bottom": 1, "bottom_color": f"#{theme.line}"}
        self._text = workbook.add_format({**font, **line, "text_wrap": True})
        self._bool = workbook.add_format({**font, **line, "align": "center"})
        self._date = workbook.add_format({**font, **line, "num_format": "yyyy-mm-dd", "align": "left"})
        self._time = workbook.add_format({**font, **line, "num_format": "yyyy-mm-dd hh:mm", "align": "left"})
        self._numbers = {
            form: workbook.add_format({**font, **line, "num_format": form})
            for form in ("0", "#,##0", "#,##0.00", "#,##0.0###", "0.0%", "General")
        }

    def _report(self, text: str) -> None:
        self.problems.append(RenderProblem(page=self._number, kind="source", text=text))

    def add(self, sheet: RenderedSheet, number: int, problem: str) -> None:
        """Adds a sheet. `problem` says why its page is none."""
        self._number, self._sheet = number, sheet.name.lower()
        if problem:
            self._report(problem)
        worksheet = self._workbook.add_worksheet(self._sheet_name(sheet.name))
        formats = [self._column_format(sheet, index) for index in range(len(sheet.columns))]
        for index, column in enumerate(sheet.columns):
            side = {ColumnType.NUMBER: "right", ColumnType.FORMULA: "right", ColumnType.BOOL: "center"}
            worksheet.write_string(
                0, index, clean(column.name)[:_MAX_TEXT], self._head[side.get(column.type, "left")]
            )
            worksheet.set_column(index, index, _width(sheet, index))
        worksheet.set_row(0, 20)
        worksheet.freeze_panes(1, 0)
        worksheet.hide_gridlines(2)
        for row, cells in enumerate(sheet.rows[:MAX_ROWS], 1):
            for index, (column, cell) in enumerate(zip(sheet.columns, cells, strict=False)):
                self._write(worksheet, (row, index), column.type, cell, formats[index])
        if len(sheet.rows) > MAX_ROWS:
            self._report(f"Sheet {number} has {len(sheet.rows)} rows, and the file has the first {MAX_ROWS}.")
        if sheet.rows and sheet.columns:
            worksheet.autofilter(0, 0, min(len(sheet.rows), MAX_ROWS), len(sheet.columns) - 1)
        worksheet.set_landscape()
        worksheet.set_paper(9)
        worksheet.fit_to_pages(1, 0)
        worksheet.repeat_rows(0)

    def _sheet_name(self, name: str) -> str:
        base = _FORBIDDEN_IN_NAMES.sub(" ", clean(name)).replace("\n", " ").strip().strip("'")[:_MAX_NAME]
        base = base or f"Sheet {self._number}"
        if base.lower() == "history":
            base = "History "[:7] + "_"
        unique, count = base, 1
        while unique.lower() in self._names:
            count += 1
            unique = f"{base[: _MAX_NAME - len(str(count)) - 3]} ({count})"
        self._names.add(unique.lower())
        return unique

    def _column_format(self, sheet: RenderedSheet, index: int) -> Any:
        column = sheet.columns[index]
        match column.type:
            case ColumnType.TEXT:
                return self._text
            case ColumnType.BOOL:
                return self._bool
            case ColumnType.DATE:
                return self._date
            case ColumnType.NUMBER | ColumnType.FORMULA:
                return self._numbers[_number_format(column.name, _cells(sheet, index))]

    def _write(self, sheet: Any, place: tuple[int, int], kind: ColumnType, cell: object, style: Any) -> None:
        match kind, cell:
            case _, None | "":
                sheet.write_blank(*place, None, style)
            case ColumnType.FORMULA, str() if cell.startswith("="):
                if problem := formula_problem(cell):
                    self._report(f"The formula {cell[:80]} in row {place[0]} is written as text: {problem}.")
                    sheet.write_string(*place, clean(cell)[:_MAX_TEXT], self._text)
                else:
                    sheet.write_formula(*place, cell, style, self._cached(*place))
            case _, bool():
                sheet.write_boolean(*place, cell, self._bool)
            case ColumnType.TEXT, _:
                sheet.write_string(*place, clean(str(cell))[:_MAX_TEXT], style)
            case _, int() | float():
                sheet.write_number(*place, cell, style)
            case ColumnType.DATE, str() if (moment := _moment(cell)) is not None:
                sheet.write_datetime(*place, moment, self._time if isinstance(moment, datetime) else style)
            case _:
                self._report_wrong(kind, cell, place)
                sheet.write_string(*place, clean(str(cell))[:_MAX_TEXT], self._text)

    def _cached(self, row: int, column: int) -> float | str | bool:
        """The value of a formula; empty if it is unknown."""
        try:
            value = self._calculator.value(self._sheet, row, column)
        except (UnknownValue, RecursionError, IndexError, OverflowError):
            return ""
        if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
            return int(value)
        return "" if value is None else value

    def _report_wrong(self, kind: ColumnType, cell: object, place: tuple[int, int]) -> None:
        self._report(
            f"{str(cell)[:80]!r} in row {place[0]}, column {place[1] + 1} is no {kind}; it is a text."
        )


def _moment(text: str) -> date | datetime | None:
    match = _ISO_DATE.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(group) if group else 0 for group in match.groups())
    try:
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    if year < 1900:
        return None
    return moment if match[4] else moment.date()


def _cells(sheet: RenderedSheet, index: int) -> Iterator[object]:
    return (row[index] for row in sheet.rows[:_ROWS_MEASURED] if index < len(row))


def _number_format(name: str, cells: Iterator[object]) -> str:
    numbers = [cell for cell in cells if isinstance(cell, int | float) and not isinstance(cell, bool)]
    if not numbers:
        return "#,##0.0###" if "%" not in name else "0.0%"
    if all(number == int(number) for number in numbers if abs(number) < 1e15):
        are_years = all(1800 <= number <= 2200 for number in numbers)
        return "0" if are_years else "#,##0"
    if "%" in name and all(abs(number) <= 1 for number in numbers):
        return "0.0%"
    return "#,##0.00"


def _width(sheet: RenderedSheet, index: int) -> float:
    """The width of a column in characters; East Asian ones count twice."""
    texts = [sheet.columns[index].name + "  ", *(_shown(cell) for cell in _cells(sheet, index))]
    longest = max(
        (
            sum(2 if is_wide(character) else 1 for character in line)
            for text in texts
            for line in text.split("\n")
        ),
        default=0,
    )
    return min(_MOST_WIDTH, max(_LEAST_WIDTH, longest * 1.08 + 2))


def _shown(cell: object) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return "FALSE"
        case int() | float():
            return f"{cell:,.2f}" if cell != int(cell) else f"{int(cell):,}"
        case str() if cell.startswith("="):
            return "1,234.56"
        case _:
            return str(cell)[:200]
