"""Decks: the written file, its pictures, and what is reported about the source."""

import hashlib
import re
from io import BytesIO
from zipfile import ZipFile

import pytest
import rpptx
from PIL import Image
from pptx import Presentation

from luxx.infra.documents.render.blocks import read_page
from luxx.infra.documents.render.checks import archive_problems, missing_text, page_texts
from luxx.infra.documents.render.paging import pdf_texts
from luxx.infra.documents.render.request import Rendered
from luxx.infra.documents.render.sizes import MAX_SLIDE_CHARACTERS, TooLong
from luxx.infra.documents.render.themes import THEMES
from luxx.wire.artifacts import ArtifactType
from render.conftest import deck, example, example_source, render

LANGUAGES = ["en", "zh"]


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return request.param


def rendered_deck(language: str) -> Rendered:
    return example(ArtifactType.PPT, language, "pptx")


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def parts(data: bytes) -> dict[str, bytes]:
    with ZipFile(BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_deck_of_ten_pages_reopens_with_titles_and_nothing_to_repair(language: str) -> None:
    deck = rendered_deck(language)
    assert deck.problems == ()
    presentation = Presentation(BytesIO(deck.data))
    assert len(presentation.slides) == 10
    assert presentation.slide_width * 9 == presentation.slide_height * 16
    assert all(slide.shapes.title is not None and slide.shapes.title.text for slide in presentation.slides)
    assert rpptx.Presentation.from_bytes(deck.data).validate() == ()
    assert list(archive_problems(deck.data)) == []


def test_a_slide_has_all_text_of_its_page_and_nothing_else(language: str) -> None:
    deck = rendered_deck(language)
    for page, made in zip(example_source(ArtifactType.PPT, language).pages, deck.pages, strict=True):
        wanted = "".join(page_texts(read_page(page)))
        assert missing_text(wanted, made.text) == 0
        assert missing_text(made.text, wanted) == 0, made.text


def test_pictures_are_of_the_written_pages(language: str) -> None:
    deck = rendered_deck(language)
    assert (
        [page.index for page in deck.pages] == [page.source_page for page in deck.pages] == list(range(1, 11))
    )
    for page in deck.pages:
        image = Image.open(BytesIO(page.picture))
        assert image.format == "PNG"
        assert image.width == 1280
        assert abs(image.height - 720) <= 1
        assert len(page.picture) <= 150_000
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 1


def test_the_pdf_has_the_text_of_the_slides() -> None:
    made = example(ArtifactType.PPT, "zh", "pdf")
    texts = pdf_texts(made.data)
    # The labels of charts are in pictures there.
    for page in (1, 2, 5, 6, 10):
        assert missing_text(made.pages[page - 1].text, texts[page - 1]) == 0
    # Nothing is in it twice, for those who copy it.
    assert texts[1].count("4.12") == 1
    assert made.data == render(example_source(ArtifactType.PPT, "zh"), "pdf").data


def test_the_same_source_gives_the_same_bytes() -> None:
    source = example_source(ArtifactType.PPT, "en")
    assert sha(render(source, "pptx").data) == sha(rendered_deck("en").data)


def test_a_change_of_one_page_changes_no_other_slide_and_no_other_picture() -> None:
    source = example_source(ArtifactType.PPT, "en")
    chart = '```chart\n{"type": "bar", "labels": ["a", "b"], "series": [{"values": [1, 2]}]}\n```'
    pages = (*source.pages[:2], f"# Another page\n\n- with a chart\n\n{chart}", *source.pages[3:])
    changed = render(deck(*pages), "pptx", pictures=None)
    before, after = parts(rendered_deck("en").data), parts(changed.data)
    different = {name for name in before if before[name] != after.get(name)} - {"docProps/core.xml"}
    assert different == {"ppt/slides/slide3.xml", "ppt/slides/_rels/slide3.xml.rels", "[Content_Types].xml"}
    assert set(after) - set(before) == {"ppt/charts/chart300.xml", "ppt/charts/_rels/chart300.xml.rels",
                                        "ppt/embeddings/Microsoft_Excel_Sheet300.xlsx"}  # fmt: skip
    old = [sha(page.picture) for page in rendered_deck("en").pages]
    new = [sha(page.picture) for page in changed.pages]
    assert [number for number in range(10) if old[number] != new[number]] == [2]


def test_a_slide_of_4000_words_is_a_problem_with_its_excess_and_a_whole_file() -> None:
    made = render(deck("# First\n\n- one", "# Long\n\n" + "many words of text " * 1000), "pptx")
    (problem,) = made.problems
    assert (problem.page, problem.kind) == (2, "overflow")
    excess = re.search(r"needs (\d+) % more space", problem.text)
    assert excess is not None
    assert int(excess[1]) > 100
    assert made.pages[1].text.count("words") == 1000


def test_text_takes_the_largest_size_that_fits() -> None:
    sizes: list[float] = []
    for words in (10, 100, 200, 300):
        made = render(deck("# First", "# Title\n\n" + "word " * words), "pptx")
        body = Presentation(BytesIO(made.data)).slides[1].placeholders[1]
        sizes.append(body.text_frame.paragraphs[0].runs[0].font.size.pt)
        assert made.problems == ()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 24
    assert len(set(sizes)) >= 3


@pytest.mark.parametrize(
    ("page", "layout"),
    [
        ("# Only a title", "Section"),
        ("# Title\n\n- a\n- b", "Content"),
        ("# Title\n\n## A\n\n- a\n\n## B\n\n- b", "Two"),
        ("# Title\n\n| a | b |\n| --- | --- |\n| 1 | 2 |", "Title"),
        ("# Title\n\n```flow\nA -> B -> C\n```", "Title"),
        ("# Title\n\n> 42 %\n>\n> of all", "Content"),
        ("<!-- layout: section -->\n# Title\n\nSome words.", "Section"),
        ("<!-- layout: title -->\n# Title\n\nSome words.", "Cover"),
        ("<!-- layout: bullets -->\n# Title\n\n## A\n\n- a\n\n## B\n\n- b", "Content"),
    ],
)
def test_the_layout_follows_from_the_content_or_from_a_comment(page: str, layout: str) -> None:
    made = render(deck("# First", page), "pptx")
    assert Presentation(BytesIO(made.data)).slides[1].slide_layout.name == layout
    assert made.problems == ()


def test_a_layout_that_does_not_suit_is_a_problem() -> None:
    made = render(deck("# First", "<!-- layout: two -->\n# Title\n\nOne column."), "pptx")
    assert [(problem.page, problem.kind) for problem in made.problems] == [(2, "source")]


def test_charts_are_native_with_the_numbers_of_the_source() -> None:
    slide = Presentation(BytesIO(rendered_deck("en").data)).slides[3]
    (chart,) = [shape.chart for shape in slide.shapes if shape.has_chart]
    assert {series.name: tuple(series.values) for series in chart.plots[0].series} == {
        "Bus": (38, 40, 41, 44),
        "Tram": (31, 33, 36, 39),
        "Train": (24, 27, 28, 31),
    }
    assert list(chart.plots[0].categories) == ["Q1 2025", "Q2 2025", "Q3 2025", "Q4 2025"]


def test_a_wrong_chart_is_a_problem_and_stays_readable() -> None:
    made = render(deck("# First", '# Chart\n\n```chart\n{"type": "column", "series": "no"}\n```'), "pptx")
    assert [(problem.page, problem.kind) for problem in made.problems] == [(2, "source")]
    assert "series" in made.pages[1].text


def test_runs_are_split_by_script() -> None:
    made = render(deck("# Mixed 中文 text"), "pptx")
    runs = Presentation(BytesIO(made.data)).slides[0].shapes.title.text_frame.paragraphs[0].runs
    assert [(run.text, run._r.rPr.get("lang")) for run in runs] == [
        ("Mixed ", "en-US"),
        ("中文", "zh-CN"),
        (" text", "en-US"),
    ]


def test_cells_beyond_the_header_and_breaks_in_cells_are_on_the_slide() -> None:
    made = render(deck("# First", "# T\n\n| a | b |\n| - | - |\n| one<br>two | x | y |"), "pptx")
    assert made.problems == ()
    text = made.pages[1].text
    assert "<br>" not in text
    assert ("one\ntwo" in text.replace("\v", "\n"), "x | y" in text) == (True, True)


def test_characters_without_a_font_name_their_page() -> None:
    made = render(deck("# First", "# Rocket 🚀"), "pptx")
    assert [(problem.page, problem.kind) for problem in made.problems] == [(2, "glyph")]
    assert "🚀" in made.problems[0].text


def test_hostile_text_stays_text() -> None:
    hostile = '# <script>alert(1)</script> #read("/etc/passwd") ]]> &amp; \x00\x07\x1b \ud800 x'
    made = render(deck(hostile), "pptx", pictures=None)
    assert made.pages[0].text.startswith('<script>alert(1)</script> #read("/etc/passwd") ]]> &')
    assert "root:" not in made.pages[0].text


def test_links_lead_to_web_pages_only() -> None:
    page = "# T\n\n- [a](https://example.com/x) [b](javascript:alert(1)) [c](file:///etc/passwd)"
    made = render(deck("# First", page), "pptx")
    relations = parts(made.data)["ppt/slides/_rels/slide2.xml.rels"].decode()
    assert re.findall(r'Target="([^"]*)" TargetMode="External"', relations) == ["https://example.com/x"]


@pytest.mark.parametrize("theme", sorted(THEMES))
def test_each_theme_has_its_own_colours(theme: str) -> None:
    made = render(deck("# First", "# Second\n\n- a", theme=theme), "pptx", pictures=(2,))
    picture = Image.open(BytesIO(made.pages[1].picture)).convert("RGB")
    pixel = picture.getpixel((40, 600))
    assert isinstance(pixel, tuple)
    assert bytes(pixel).hex().upper() == THEMES[theme].background
    assert made.pages[0].picture == b""


def test_comments_without_end_are_text_and_take_time_that_grows_with_their_number() -> None:
    page = read_page("# Title\n\n<!-- a -->Words<!-- layout: two -->\n\n```\n<!-- code -->\n```\n\n<!-- b")
    text = " ".join(page_texts(page))
    assert page.layout == "two"
    assert "Words" in text
    assert "<!-- code -->" in text
    assert "<!-- b" in text
    # With a pattern that searches each end again this takes minutes.
    assert "<!--" in "".join(page_texts(read_page("<!--\n\n" * 20_000)))


def test_a_slide_that_no_screen_can_show_is_refused_at_once() -> None:
    with pytest.raises(TooLong, match="Slide 2 has 40,007 characters"):
        render(deck("# First", "# Long\n" + "w" * MAX_SLIDE_CHARACTERS), "pptx")
