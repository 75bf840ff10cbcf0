"""Workbooks and charts."""

import hashlib
import json
from datetime import date
from io import BytesIO
from zipfile import ZipFile

import pytest
from PIL import Image
from python_calamine import CalamineWorkbook

from luxx.infra.documents.render.chart_spec import ChartType, WrongChart, read_chart
from luxx.infra.documents.render.files import UnknownFormat
from luxx.infra.documents.render.sheet_source import formula_problem
from luxx.wire.artifacts import ArtifactType
from render.conftest import example, example_source, pages_of, render

SHEET, CHART = ArtifactType.SHEET, ArtifactType.CHART


def sheet_xml(data: bytes, number: int = 1) -> str:
    with ZipFile(BytesIO(data)) as archive:
        return archive.read(f"xl/worksheets/sheet{number}.xml").decode()


def test_cells_have_the_types_of_their_columns() -> None:
    made = example(SHEET, "en", "xlsx")
    assert made.problems == ()
    workbook = CalamineWorkbook.from_filelike(BytesIO(made.data))
    assert workbook.sheet_names == ["Lines", "Totals"]
    header, first, *_ = workbook.get_sheet_by_name("Lines").to_python()
    assert header == ["Line", "Opened", "Journeys 2024", "Journeys 2025", "Change", "Night service"]
    assert first == ["1 Harbour – Airport", date(1968, 5, 12), 91200000, 96400000, 5200000, True]


def test_formulas_are_live_and_have_cached_values() -> None:
    data = example(SHEET, "en", "xlsx").data
    assert "<f>D2-C2</f><v>5200000</v>" in sheet_xml(data)
    assert "<f>ROUND(952.1/412, 2)</f><v>2.31</v>" in sheet_xml(data, 2)


def test_only_columns_of_type_formula_have_formulas() -> None:
    sheet = {
        "name": "S",
        "columns": [
            {"name": "a", "type": "text"},
            {"name": "b", "type": "number"},
            {"name": "c", "type": "formula"},
        ],
        "rows": [["=1+1", 2, "=A2"], ["@SUM(1)", "=2", '=HYPERLINK("http://a")'], ["+1", 3, "no formula"]],
    }
    made = render(pages_of(SHEET, json.dumps(sheet)), "xlsx")
    xml = sheet_xml(made.data)
    assert xml.count("<f>") == 1
    rows = CalamineWorkbook.from_filelike(BytesIO(made.data)).get_sheet_by_index(0).to_python()
    assert [row[0] for row in rows] == ["a", "=1+1", "@SUM(1)", "+1"]
    assert rows[2][2] == '=HYPERLINK("http://a")'
    assert [problem.kind for problem in made.problems] == ["source"] * 3
    assert "HYPERLINK" in made.problems[1].text


@pytest.mark.parametrize(
    "formula",
    [
        '=HYPERLINK("http://a","x")', '=WEBSERVICE("http://a")', "=cmd|'/C calc'!A0", "='[other.xlsx]S'!A1",
        "=IMPORTDATA(1)", "=INDIRECT(A1)", "=FILTERXML(1)", "=CALL(1)", "=1+hyperlink (2)",
        "=_xlfn.WEBSERVICE(1)",
        "=RTD(1)", "no formula", "=" + "1" * 3000, "=\\\\host\\x",
    ],
)  # fmt: skip
def test_formulas_that_reach_out_are_refused(formula: str) -> None:
    assert formula_problem(formula)


@pytest.mark.parametrize(
    "formula",
    ["=A1+B2", "=SUM(A1:A9)", '=IF(A1>2,"yes","no (x)")', "=Lines!A1*2", "='My sheet'!A1", "=ROUND(A1, 2)"],
)
def test_usual_formulas_are_allowed(formula: str) -> None:
    assert formula_problem(formula) is None


def test_names_of_sheets_are_allowed_and_unique() -> None:
    names = ["a/b:c", "A/B:C", "x" * 60, "", "History"]
    made = render(pages_of(SHEET, *[json.dumps({"name": name, "columns": []}) for name in names]), "xlsx")
    found = CalamineWorkbook.from_filelike(BytesIO(made.data)).sheet_names
    assert len({name.lower() for name in found}) == 5
    assert all(0 < len(name) <= 31 for name in found)


def test_the_same_sheet_gives_the_same_bytes() -> None:
    again = render(example_source(SHEET, "en"), "xlsx").data
    assert hashlib.sha256(again).digest() == hashlib.sha256(example(SHEET, "en", "xlsx").data).digest()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_chart_is_drawn_as_png_and_svg(language: str) -> None:
    png, svg = example(CHART, language, "png"), example(CHART, language, "svg")
    image = Image.open(BytesIO(png.data))
    assert image.size == (1280, 720)
    assert svg.data.startswith(b"<svg ")
    spec = read_chart(example_source(CHART, language).pages[0])
    assert all(text in svg.data.decode() for text in spec.texts)
    assert png.problems == svg.problems == ()


@pytest.mark.parametrize("kind", list(ChartType))
def test_every_type_of_chart_is_drawn_in_files(kind: ChartType) -> None:
    series = [{"name": "x", "values": [1, -2.5, None]}, {"name": "y", "values": [0, 0, 1e9]}]
    if kind in (ChartType.PIE, ChartType.DOUGHNUT):
        del series[1]
    text = json.dumps({"type": kind, "labels": ["a", "b", "c"], "stacked": True, "series": series})
    assert render(pages_of(CHART, text), "svg").data.count(b"<") > 10
    made = render(pages_of(ArtifactType.PPT, f"# Chart\n\n```chart\n{text}\n```"), "pptx", pictures=None)
    assert made.problems == ()


def test_text_of_a_chart_is_escaped() -> None:
    chart = {"labels": ["</text><script>alert(1)</script>"], "series": [{"name": '"><x', "values": [1]}]}
    svg = render(pages_of(CHART, json.dumps(chart)), "svg").data
    assert b"<script" not in svg
    assert b"<x" not in svg


def test_the_form_of_chart_js_is_understood() -> None:
    chart = {"type": "bar", "data": {"labels": ["a"], "datasets": [{"label": "n", "data": [1]}]}}
    spec = read_chart(json.dumps(chart))
    assert (spec.type, spec.series[0].name, spec.series[0].values) == (ChartType.COLUMN, "n", (1.0,))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"series": [1]}', '{"series": [{"values": ["a"]}]}', '{"series": [{"values": [true]}]}',
     '{"type": "3d", "series": [{"values": [1]}]}', '{"labels": ["a"], "series": [{"values": [1, 2]}]}',
     '{"series": [{"values": [1e300]}]}', '{"labels": [{}], "series": [{"values": [1]}]}'],
)  # fmt: skip
def test_what_is_no_chart_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(WrongChart):
        read_chart(text)
    with pytest.raises(UnknownFormat, match="cannot be drawn"):
        render(pages_of(CHART, text), "png")
