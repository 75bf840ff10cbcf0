"""The elements of SVG of which charts consist. Text is escaped; colours and numbers come from Luxx."""

from html import escape

from luxx.infra.documents.render.fonts import text_width
from luxx.infra.documents.render.scripts import script_runs
from luxx.infra.documents.render.themes import Theme

FAMILY = "Arial, Arimo, sans-serif"
_EAST_ASIAN_FAMILY = "'Noto Sans CJK SC', 'Microsoft YaHei', 'PingFang SC', sans-serif"


class Canvas:
    """SVG elements, and the place that is left for the plot."""

    def __init__(self, width: float, height: float, theme: Theme, font: float) -> None:
        self.parts: list[str] = []
        self.theme = theme
        self.font = font
        self.left, self.top, self.right, self.bottom = 8.0, 8.0, width - 8.0, height - 8.0

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", colour: str = "", bold: bool = False,
        size: float = 0, turn: bool = False,
    ) -> None:  # fmt: skip
        weight = ' font-weight="700"' if bold else ""
        turned = f' transform="rotate(-90 {x:.2f} {y:.2f})"' if turn else ""
        self.parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" font-size="{size or self.font:.1f}"'
            f'{weight}{turned} fill="#{colour or self.theme.text}">{_runs(text)}</text>'
        )

    def rectangle(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(0.0, width):.2f}" height="{max(0.0, height):.2f}" '
            f'fill="#{colour}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0) -> None:
        self.parts.append(
            f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="#{colour}" '
            f'stroke-width="{width:g}"/>'
        )

    def path(self, commands: str, *, fill: str = "", stroke: str = "", opacity: float = 1.0) -> None:
        filled = f'fill="#{fill}" fill-opacity="{opacity:g}"' if fill else 'fill="none"'
        drawn = f' stroke="#{stroke}" stroke-width="2.5" stroke-linejoin="round"' if stroke else ""
        self.parts.append(f'<path d="{commands}" {filled}{drawn}/>')

    def dot(self, x: float, y: float, colour: str, radius: float = 4.0) -> None:
        self.parts.append(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:g}" fill="#{colour}"/>')

    def colour(self, index: int) -> str:
        return self.theme.series[index % len(self.theme.series)]


def _runs(text: str) -> str:
    """Escaped text, with the font of East Asian characters where they are."""
    return "".join(
        f'<tspan font-family="{_EAST_ASIAN_FAMILY}">{escape(piece)}</tspan>'
        if is_east_asian
        else escape(piece)
        for piece, is_east_asian in script_runs(text)
    )


def number_text(value: float) -> str:
    """A number as people write it: with separators, and at most two decimals."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    return f"{value:,.2f}".rstrip("0").rstrip(".").replace("-", "−")


def shortened(text: str, size: float, width: float) -> str:
    """The text, cut with an ellipsis if it is wider than `width`."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text + "…"
