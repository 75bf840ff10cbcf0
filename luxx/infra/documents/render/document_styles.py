"""Styles, numbering and page of docx files. Fonts, colours and distances come from here alone."""

# The libraries of this module have no complete types.
# pyright: basic

from typing import Any

from docx.enum.style import WD_STYLE_TYPE
from docx.enum.text import WD_ALIGN_PARAGRAPH
from docx.oxml import OxmlElement, parse_xml
from docx.oxml.ns import nsdecls, qn
from docx.shared import Cm, Pt, RGBColor

from luxx.infra.documents.render.scripts import CODE_FONT, LATIN_FONT, Language
from luxx.infra.documents.render.themes import THEMES, Theme

BULLETS = 1001
"""The id of the numbering of lists with bullets."""
_NUMBERS = 1002
_HEADINGS = {
    1: (20, 26, 10),
    2: (14, 18, 6),
    3: (12, 14, 4),
    4: (10.5, 12, 4),
    5: (10.5, 10, 4),
    6: (10.5, 10, 4),
}
"""Size, space before and space after by level, in points."""
_MARKS = "•–•–"


def style_document(document: Any, theme: Theme, language: Language) -> None:
    """Sets page, styles, numbering and the page number."""
    if theme.name == "night":
        # Paper is white.
        theme = THEMES["clear"]
    section = document.sections[0]
    section.page_width, section.page_height = Cm(21), Cm(29.7)
    section.left_margin = section.right_margin = Cm(2.5)
    section.top_margin, section.bottom_margin = Cm(2.4), Cm(2.2)
    _set_default_fonts(document, language)
    normal = document.styles["Normal"]
    normal.font.size = Pt(10.5)
    normal.font.color.rgb = RGBColor.from_string(theme.text)
    _set_fonts(normal, language)
    normal.paragraph_format.space_after = Pt(8)
    normal.paragraph_format.line_spacing = 1.25
    for level, (size, before, after) in _HEADINGS.items():
        style = document.styles[f"Heading {level}"]
        _set_fonts(style, language)
        style.font.size, style.font.bold, style.font.italic = Pt(size), True, False
        colour = theme.title if level != 2 else theme.accent
        style.font.color.rgb = RGBColor.from_string(colour)
        style.paragraph_format.space_before, style.paragraph_format.space_after = Pt(before), Pt(after)
        style.paragraph_format.line_spacing = 1.15
        style.paragraph_format.keep_with_next = True
    _style_special(document, theme, language)
    _add_lists(document, theme)
    _add_page_number(section, theme)


def _style_special(document: Any, theme: Theme, language: Language) -> None:
    subtitle = document.styles["Subtitle"]
    _set_fonts(subtitle, language)
    for spacing in list(subtitle.element.rPr.iter(qn("w:spacing"))):
        subtitle.element.rPr.remove(spacing)
    subtitle.font.size, subtitle.font.italic, subtitle.font.bold = Pt(13), False, False
    subtitle.font.color.rgb = RGBColor.from_string(theme.muted)
    subtitle.paragraph_format.space_after = Pt(6)
    quote = document.styles["Quote"]
    quote.font.italic = False
    quote.font.color.rgb = RGBColor.from_string(theme.muted)
    quote.paragraph_format.left_indent = Pt(14)
    quote._element.get_or_add_pPr().append(parse_xml(_side_border("left", theme.accent, 18, 10)))
    code = _paragraph_style(document, "Code", "Normal")
    code.font.name, code.font.size = CODE_FONT, Pt(9)
    code.paragraph_format.line_spacing = 1.15
    code.paragraph_format.space_before, code.paragraph_format.space_after = Pt(4), Pt(10)
    shading = f'<w:shd {nsdecls("w")} w:val="clear" w:color="auto" w:fill="{theme.surface}"/>'
    code.paragraph_format.left_indent = code.paragraph_format.right_indent = Pt(6)
    code._element.get_or_add_pPr().append(parse_xml(_box(theme.surface)))
    code._element.get_or_add_pPr().append(parse_xml(shading))
    table = _paragraph_style(document, "Table Text", "Normal")
    table.font.size = Pt(9.5)
    table.paragraph_format.space_after, table.paragraph_format.line_spacing = Pt(0), 1.15
    after = _paragraph_style(document, "After Table", "Normal")
    after.font.size = Pt(4)
    after.paragraph_format.space_after = Pt(4)
    items = document.styles["List Paragraph"]
    items.paragraph_format.space_after = Pt(4)
    contents = _paragraph_style(document, "Contents Heading", "Normal")
    contents.font.size, contents.font.bold = Pt(14), True
    contents.font.color.rgb = RGBColor.from_string(theme.title)
    contents.paragraph_format.space_before, contents.paragraph_format.space_after = Pt(24), Pt(10)
    for level in (1, 2):
        style = _paragraph_style(document, f"Contents {level}", "Normal")
        style.font.bold = level == 1
        style.paragraph_format.left_indent = Pt(14 * (level - 1))
        style.paragraph_format.space_after = Pt(4)
        style.paragraph_format.space_before = Pt(6 if level == 1 else 0)


def _paragraph_style(document: Any, name: str, parent: str) -> Any:
    style = document.styles.add_style(name, WD_STYLE_TYPE.PARAGRAPH)
    style.base_style = document.styles[parent]
    return style


def _set_default_fonts(document: Any, language: Language) -> None:
    defaults = document.styles.element.find(qn("w:docDefaults"))
    for fonts in defaults.iter(qn("w:rFonts")):
        fonts.attrib.clear()
        for name in ("ascii", "hAnsi", "cs"):
            fonts.set(qn(f"w:{name}"), LATIN_FONT)
        fonts.set(qn("w:eastAsia"), language.font)
    for element in defaults.iter(qn("w:lang")):
        element.set(qn("w:val"), "en-US" if language.is_east_asian else language.tag)
        element.set(qn("w:eastAsia"), language.east_asian)


def _set_fonts(style: Any, language: Language) -> None:
    fonts = style.element.get_or_add_rPr().get_or_add_rFonts()
    fonts.attrib.clear()
    for name in ("ascii", "hAnsi", "cs"):
        fonts.set(qn(f"w:{name}"), LATIN_FONT)
    fonts.set(qn("w:eastAsia"), language.font)


def _side_border(side: str, colour: str, size: int, space: int) -> str:
    return (
        f'<w:pBdr {nsdecls("w")}><w:{side} w:val="single" w:sz="{size}" w:space="{space}" '
        f'w:color="{colour}"/></w:pBdr>'
    )


def _box(colour: str) -> str:
    sides = "".join(
        f'<w:{side} w:val="single" w:sz="48" w:space="0" w:color="{colour}"/>'
        for side in ("top", "left", "bottom", "right")
    )
    return f"<w:pBdr {nsdecls('w')}>{sides}</w:pBdr>"


def _add_lists(document: Any, theme: Theme) -> None:
    """Two definitions of lists of four levels: with bullets, and with numbers."""
    numbering = document.part.numbering_part.element
    for identifier, is_numbered in ((BULLETS, False), (_NUMBERS, True)):
        levels = "".join(
            f'<w:lvl w:ilvl="{level}"><w:start w:val="1"/>'
            f'<w:numFmt w:val="{"decimal" if is_numbered else "bullet"}"/>'
            f'<w:lvlText w:val="{f"%{level + 1}." if is_numbered else _MARKS[level]}"/>'
            f'<w:lvlJc w:val="left"/>'
            f'<w:pPr><w:ind w:left="{400 + 400 * level}" w:hanging="400"/></w:pPr>'
            f'<w:rPr><w:rFonts w:ascii="Arial" w:hAnsi="Arial" w:hint="default"/>'
            f'<w:color w:val="{theme.accent}"/></w:rPr></w:lvl>'
            for level in range(4)
        )
        abstract = (
            f'<w:abstractNum {nsdecls("w")} w:abstractNumId="{identifier}">'
            f'<w:multiLevelType w:val="hybridMultilevel"/>{levels}</w:abstractNum>'
        )
        numbering.insert(0, parse_xml(abstract))
    numbering.append(parse_xml(_number_xml(BULLETS, BULLETS, "")))


def _number_xml(identifier: int, abstract: int, override: str) -> str:
    reference = f'<w:abstractNumId w:val="{abstract}"/>'
    return f'<w:num {nsdecls("w")} w:numId="{identifier}">{reference}{override}</w:num>'


def add_numbering(document: Any, level: int, start: int) -> int:
    """The id of a new numbered list, whose numbers begin at `start` on a level."""
    numbering = document.part.numbering_part.element
    identifier = _NUMBERS + sum(1 for _ in numbering.iter(qn("w:num")))
    override = f'<w:lvlOverride w:ilvl="{level}"><w:startOverride w:val="{start}"/></w:lvlOverride>'
    numbering.append(parse_xml(_number_xml(identifier, _NUMBERS, override)))
    return identifier


def _add_page_number(section: Any, theme: Theme) -> None:
    paragraph = section.footer.paragraphs[0]
    paragraph.alignment = WD_ALIGN_PARAGRAPH.RIGHT
    for kind in ("begin", None, "end"):
        run = paragraph.add_run()
        run.font.size = Pt(9)
        run.font.color.rgb = RGBColor.from_string(theme.muted)
        if kind is None:
            instruction = OxmlElement("w:instrText")
            instruction.text = "PAGE"
            run._r.append(instruction)
            continue
        mark = OxmlElement("w:fldChar")
        mark.set(qn("w:fldCharType"), kind)
        run._r.append(mark)
