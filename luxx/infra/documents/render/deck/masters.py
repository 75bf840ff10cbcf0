"""The 16:9 master of decks with its theme and layouts, as XML. Each layout has a title placeholder.

Positions are in points on a slide of 960 × 540.
"""

import msgspec

from luxx.infra.documents.render.themes import Theme

WIDTH, HEIGHT = 960.0, 540.0
MARGIN = 54.0
EMU = 12_700
BODY_TOP, BODY_BOTTOM = 124.0, 496.0
_NAMESPACES = (
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
)


class Box(msgspec.Struct, frozen=True):
    """A place on a slide, in points."""

    x: float
    y: float
    width: float
    height: float

    @property
    def emu(self) -> tuple[int, int, int, int]:
        return (round(self.x * EMU), round(self.y * EMU), round(self.width * EMU), round(self.height * EMU))


TITLE = Box(MARGIN, 32, WIDTH - 2 * MARGIN, 68)
BODY = Box(MARGIN, BODY_TOP, WIDTH - 2 * MARGIN, BODY_BOTTOM - BODY_TOP)
COVER_TITLE = Box(84, 150, 640, 150)
COVER_TEXT = Box(84, 322, 640, 120)
SECTION_TITLE = Box(84, 170, 760, 130)
SECTION_TEXT = Box(84, 322, 640, 110)
_GAP = 44.0
_HALF = (WIDTH - 2 * MARGIN - _GAP) / 2
LEFT = Box(MARGIN, BODY_TOP, _HALF, BODY_BOTTOM - BODY_TOP)
RIGHT = Box(MARGIN + _HALF + _GAP, BODY_TOP, _HALF, BODY_BOTTOM - BODY_TOP)
_NUMBER = Box(WIDTH - MARGIN - 80, 506, 80, 18)

LAYOUTS = ("cover", "section", "content", "two", "title")
"""The layouts of the master, in their order in the file."""


def theme_xml(theme: Theme, east_asian_font: str) -> str:
    """The part `theme1.xml`."""
    colours = dict(
        dk1=theme.text, lt1=theme.background, dk2=theme.title, lt2=theme.surface,
        **{f"accent{number}": colour for number, colour in enumerate(theme.series, 1)},
        hlink=theme.accent, folHlink=theme.muted,
    )  # fmt: skip
    scheme = "".join(f'<a:{name}><a:srgbClr val="{value}"/></a:{name}>' for name, value in colours.items())
    font = f'<a:latin typeface="Arial"/><a:ea typeface="{east_asian_font}"/><a:cs typeface="Arial"/>'
    fill = '<a:solidFill><a:schemeClr val="phClr"/></a:solidFill>'
    line = f'<a:ln w="9525" cap="flat" cmpd="sng" algn="ctr">{fill}<a:prstDash val="solid"/></a:ln>'
    effect = "<a:effectStyle><a:effectLst/></a:effectStyle>"
    return (
        f'<a:theme xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" name="{theme.name}">'
        f'<a:themeElements><a:clrScheme name="{theme.name}">{scheme}</a:clrScheme>'
        f'<a:fontScheme name="{theme.name}"><a:majorFont>{font}</a:majorFont>'
        f'<a:minorFont>{font}</a:minorFont></a:fontScheme><a:fmtScheme name="{theme.name}">'
        f"<a:fillStyleLst>{fill * 3}</a:fillStyleLst>"
        f"<a:lnStyleLst>{line * 3}</a:lnStyleLst><a:effectStyleLst>{effect * 3}</a:effectStyleLst>"
        f"<a:bgFillStyleLst>{fill * 3}</a:bgFillStyleLst></a:fmtScheme></a:themeElements></a:theme>"
    )


def master_xml(theme: Theme, layout_ids: str) -> str:
    """The part `slideMaster1.xml`; `layout_ids` is its list of layouts."""
    bullet = f'<a:buClr><a:srgbClr val="{theme.accent}"/></a:buClr><a:buFont typeface="Arial"/>'
    levels = "".join(
        f'<a:lvl{level}pPr marL="{(22 + 24 * (level - 1)) * EMU}" indent="-{20 * EMU}" algn="l" '
        f'defTabSz="914400" rtl="0" eaLnBrk="1" latinLnBrk="0" hangingPunct="1"><a:lnSpc>'
        f'<a:spcPct val="100000"/></a:lnSpc>'
        f'<a:spcBef><a:spcPts val="0"/></a:spcBef><a:spcAft><a:spcPts val="{900 if level == 1 else 500}"/>'
        f'</a:spcAft>{bullet}<a:buChar char="{"•" if level % 2 else "–"}"/>'
        f'<a:defRPr sz="2000">{_fill("tx1")}<a:latin typeface="+mn-lt"/><a:ea typeface="+mn-ea"/></a:defRPr>'
        f"</a:lvl{level}pPr>"
        for level in range(1, 6)
    )
    other = "".join(
        f'<a:lvl{level}pPr marL="0" algn="l"><a:defRPr sz="1600">{_fill("tx1")}<a:latin typeface="+mn-lt"/>'
        f'<a:ea typeface="+mn-ea"/></a:defRPr></a:lvl{level}pPr>'
        for level in range(1, 6)
    )
    shapes = (
        _bar(theme) + _placeholder(2, "title", TITLE, anchor="b") + _placeholder(3, "body", BODY, index=1)
    )
    return (
        f"<p:sldMaster {_NAMESPACES}><p:cSld><p:bg><p:bgPr>{_fill('bg1')}"
        f"<a:effectLst/></p:bgPr></p:bg>{_tree(shapes + _number(theme.muted))}</p:cSld>"
        '<p:clrMap bg1="lt1" tx1="dk1" bg2="lt2" tx2="dk2" accent1="accent1" accent2="accent2" '
        'accent3="accent3" accent4="accent4" accent5="accent5" accent6="accent6" hlink="hlink" '
        f'folHlink="folHlink"/>{layout_ids}<p:txStyles><p:titleStyle><a:lvl1pPr algn="l"><a:lnSpc>'
        '<a:spcPct val="100000"/></a:lnSpc><a:spcBef><a:spcPts val="0"/></a:spcBef><a:buNone/>'
        f'<a:defRPr sz="2800" b="1">{_fill("tx2")}<a:latin typeface="+mj-lt"/><a:ea typeface="+mj-ea"/>'
        f"</a:defRPr></a:lvl1pPr></p:titleStyle><p:bodyStyle>{levels}</p:bodyStyle><p:otherStyle>{other}</p:otherStyle>"
        "</p:txStyles></p:sldMaster>"
    )


def layout_xml(name: str, theme: Theme) -> str:
    """The part of a layout of LAYOUTS."""
    background, shows_master, kind = "", 'showMasterSp="1"', ""
    match name:
        case "cover":
            kind, shows_master, background = "title", 'showMasterSp="0"', _background(theme.cover)
            shapes = _cover_shapes(theme) + _placeholder(
                2, "ctrTitle", COVER_TITLE, anchor="b", size=4000, colour=theme.cover_text
            )
            shapes += _placeholder(3, "subTitle", COVER_TEXT, index=1, size=2000, colour=theme.cover_muted)
        case "section":
            kind, shows_master, background = "secHead", 'showMasterSp="0"', _background(theme.cover)
            shapes = _section_shapes(theme) + _placeholder(
                2, "title", SECTION_TITLE, anchor="b", size=3600, colour=theme.cover_text
            )
            shapes += _placeholder(3, "body", SECTION_TEXT, index=1, size=2000, colour=theme.cover_muted)
        case "two":
            kind = "twoObj"
            shapes = _placeholder(2, "title") + _placeholder(3, "body", LEFT, index=1)
            shapes += _placeholder(4, "body", RIGHT, index=2) + _number(theme.muted)
        case "content":
            kind = "obj"
            shapes = _placeholder(2, "title") + _placeholder(3, "body", BODY, index=1) + _number(theme.muted)
        case _:
            kind = "titleOnly"
            shapes = _placeholder(2, "title") + _number(theme.muted)
    return (
        f'<p:sldLayout {_NAMESPACES} type="{kind}" preserve="1" {shows_master}><p:cSld name="{name.title()}">'
        f"{background}{_tree(shapes)}</p:cSld><p:clrMapOvr><a:masterClrMapping/></p:clrMapOvr></p:sldLayout>"
    )


def _tree(shapes: str) -> str:
    return (
        '<p:spTree><p:nvGrpSpPr><p:cNvPr id="1" name=""/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr><p:grpSpPr>'
        '<a:xfrm><a:off x="0" y="0"/><a:ext cx="0" cy="0"/><a:chOff x="0" y="0"/><a:chExt cx="0" cy="0"/>'
        f"</a:xfrm></p:grpSpPr>{shapes}</p:spTree>"
    )


def _fill(colour: str) -> str:
    kind = "srgbClr" if len(colour) == 6 else "schemeClr"
    return f'<a:solidFill><a:{kind} val="{colour}"/></a:solidFill>'


def _background(colour: str) -> str:
    return f"<p:bg><p:bgPr>{_fill(colour)}<a:effectLst/></p:bgPr></p:bg>"


def _geometry(box: Box, form: str = "rect") -> str:
    x, y, width, height = box.emu
    return (
        f'<a:xfrm><a:off x="{x}" y="{y}"/><a:ext cx="{width}" cy="{height}"/></a:xfrm>'
        f'<a:prstGeom prst="{form}"><a:avLst/></a:prstGeom>'
    )


def _shape(shape_id: int, box: Box, colour: str, form: str = "rect") -> str:
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="{shape_id}" name="Decoration {shape_id}"/><p:cNvSpPr/>'
        f'<p:nvPr userDrawn="1"/></p:nvSpPr><p:spPr>{_geometry(box, form)}{_fill(colour)}'
        "<a:ln><a:noFill/></a:ln></p:spPr><p:txBody><a:bodyPr/><a:lstStyle/><a:p><a:endParaRPr/></a:p></p:txBody></p:sp>"
    )


def _bar(theme: Theme) -> str:
    return _shape(10, Box(0, 0, WIDTH, 6), theme.accent)


def _cover_shapes(theme: Theme) -> str:
    return (
        _shape(10, Box(700, -140, 460, 460), theme.cover_shape, "ellipse")
        + _shape(11, Box(812, 300, 300, 300), theme.accent, "ellipse")
        + _shape(12, Box(84, 308, 72, 5), theme.accent)
    )


def _section_shapes(theme: Theme) -> str:
    return _shape(10, Box(0, 0, 18, HEIGHT), theme.accent) + _shape(12, Box(84, 308, 72, 5), theme.accent)


def _placeholder(
    shape_id: int,
    kind: str,
    box: Box | None = None,
    *,
    index: int = 0,
    anchor: str = "t",
    size: int = 0,
    colour: str = "",
) -> str:
    where = "" if box is None else _geometry(box)
    body = (
        "<a:bodyPr/>"
        if box is None
        else f'<a:bodyPr vert="horz" wrap="square" lIns="0" tIns="0" rIns="0" bIns="0" anchor="{anchor}">'
        "<a:noAutofit/></a:bodyPr>"
    )
    style = ""
    if size:
        bold = ' b="1"' if kind in ("title", "ctrTitle") else ""
        style = (
            f'<a:lvl1pPr marL="0" indent="0" algn="l"><a:buNone/><a:defRPr sz="{size}"{bold}>{_fill(colour)}'
            "</a:defRPr></a:lvl1pPr>"
        )
    at = f' idx="{index}"' if index else ""
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="{shape_id}" name="{kind} {shape_id}"/><p:cNvSpPr>'
        f'<a:spLocks noGrp="1"/></p:cNvSpPr><p:nvPr><p:ph type="{kind}"{at}/></p:nvPr></p:nvSpPr>'
        f"<p:spPr>{where}</p:spPr><p:txBody>"
        f'{body}<a:lstStyle>{style}</a:lstStyle><a:p><a:endParaRPr lang="en-US"/></a:p></p:txBody></p:sp>'
    )


def _number(colour: str) -> str:
    return (
        '<p:sp><p:nvSpPr><p:cNvPr id="9" name="Slide number"/><p:cNvSpPr><a:spLocks noGrp="1"/></p:cNvSpPr>'
        f'<p:nvPr><p:ph type="sldNum" sz="quarter" idx="12"/></p:nvPr></p:nvSpPr><p:spPr>{_geometry(_NUMBER)}'
        '</p:spPr><p:txBody><a:bodyPr lIns="0" tIns="0" rIns="0" bIns="0" anchor="ctr"/><a:lstStyle>'
        f'<a:lvl1pPr algn="r"><a:defRPr sz="1000">{_fill(colour)}</a:defRPr></a:lvl1pPr></a:lstStyle><a:p>'
        "<a:fld "
        'id="{B6F15528-21DE-4FAA-801E-634DDDAF4B2B}" type="slidenum"><a:rPr lang="en-US"/><a:t>‹#›</a:t>'
        "</a:fld></a:p></p:txBody></p:sp>"
    )
