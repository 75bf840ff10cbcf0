"""The empty presentation with Luxx's own master, and the parts of slides that python-pptx does not name."""

# The libraries of this module have no complete types.
# pyright: basic

from typing import Any

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]
from pptx import Presentation
from pptx.opc.packuri import PackURI
from pptx.oxml import parse_xml
from pptx.oxml.ns import qn
from pptx.util import Emu

from luxx.infra.documents.render.deck.masters import (
    EMU,
    HEIGHT,
    LAYOUTS,
    WIDTH,
    layout_xml,
    master_xml,
    theme_xml,
)
from luxx.infra.documents.render.scripts import Language
from luxx.infra.documents.render.themes import Theme


def empty_presentation(theme: Theme, language: Language, name: str) -> Any:
    """A presentation without slides, with the layouts of LAYOUTS in their order."""
    presentation = Presentation()
    presentation.slide_width, presentation.slide_height = Emu(round(WIDTH * EMU)), Emu(round(HEIGHT * EMU))
    size = presentation.element.find(qn("p:sldSz"))
    if size is not None and "type" in size.attrib:
        del size.attrib["type"]
    layouts = list(presentation.slide_layouts)
    for layout in layouts[len(LAYOUTS) :]:
        presentation.slide_layouts.remove(layout)
    for layout, layout_name in zip(layouts, LAYOUTS, strict=False):
        _replace(layout.element, layout_xml(layout_name, theme))
    master = presentation.slide_master
    ids = etree.tostring(master.element.find(qn("p:sldLayoutIdLst")), encoding="unicode")
    _replace(master.element, master_xml(theme, ids))
    for relation in presentation.part.rels.values():
        if relation.reltype.endswith("/theme"):
            relation.target_part._blob = _declared(theme_xml(theme, language.font))
    for relation_id, relation in list(presentation.part.rels.items()):
        if relation.reltype.endswith("/printerSettings"):
            presentation.part.drop_rel(relation_id)
    properties = presentation.core_properties
    properties.title, properties.author, properties.last_modified_by = name[:255], "", ""
    properties.language, properties.revision = language.tag, 1
    return presentation


def _replace(element: Any, xml: str) -> None:
    """Puts the content of `xml` into an element that python-pptx keeps."""
    new = parse_xml(xml)
    element[:] = []
    element.attrib.clear()
    element.attrib.update(new.attrib)
    element.extend(list(new))


def _declared(xml: str) -> bytes:
    return b'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n' + xml.encode()


def add_number(slide: Any, layout: Any) -> None:
    """The page number, a placeholder that python-pptx does not take over from the layout."""
    for shape in layout.placeholders:
        if shape.placeholder_format.idx == 12:
            element = parse_xml(etree.tostring(shape._element))
            element.find(qn("p:nvSpPr")).find(qn("p:cNvPr")).set("id", "900")
            properties = element.find(qn("p:spPr"))
            properties[:] = []
            slide.shapes._spTree.append(element)


def name_chart(part: Any, page: int, index: int) -> None:
    """Names the parts of a chart after its page, so that no change of another page renames them."""
    number = 100 * page + index
    part.partname = PackURI(f"/ppt/charts/chart{number}.xml")
    part.chart_workbook.xlsx_part.partname = PackURI(f"/ppt/embeddings/Microsoft_Excel_Sheet{number}.xlsx")
