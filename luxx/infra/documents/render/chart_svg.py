"""Draws charts as SVG: for downloads, and for pictures of slides. Text and colours are escaped or fixed."""

import math
from collections.abc import Sequence

from luxx.infra.documents.render.chart_canvas import FAMILY, Canvas, number_text, shortened
from luxx.infra.documents.render.chart_spec import ChartSpec, ChartType
from luxx.infra.documents.render.fonts import text_width
from luxx.infra.documents.render.themes import Theme

_ROUND = (ChartType.PIE, ChartType.DOUGHNUT)
_HOLE = 0.58


def chart_svg(
    spec: ChartSpec,
    theme: Theme,
    *,
    width: float = 960,
    height: float = 540,
    title: str | None = None,
    font: float = 15,
    is_filled: bool = True,
) -> str:
    """The chart as SVG. `title` replaces its own title; `is_filled`: with a background."""
    canvas = Canvas(width, height, theme, font)
    if is_filled:
        canvas.rectangle(0, 0, width, height, theme.background)
        canvas.left, canvas.top, canvas.right, canvas.bottom = 32, 28, width - 32, height - 24
    shown = spec.title if title is None else title
    if shown:
        canvas.text(
            canvas.left, canvas.top + font * 1.2, shown, bold=True, size=font * 1.35, colour=theme.title
        )
        canvas.top += font * 2.6
    if spec.type in _ROUND:
        _draw_round(canvas, spec)
    else:
        _draw_legend(canvas, spec)
        _draw_plot(canvas, spec)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="{FAMILY}">{"".join(canvas.parts)}</svg>'
    )


def _draw_legend(canvas: Canvas, spec: ChartSpec) -> None:
    names = [series.name for series in spec.series]
    if len(names) < 2 or not any(names):
        return
    font, limit = canvas.font, canvas.right - canvas.left
    widths = [text_width(name, font) + 40 for name in names]
    rows: list[list[int]] = [[]]
    for index, width in enumerate(widths):
        if rows[-1] and sum(widths[i] for i in rows[-1]) + width > limit:
            rows.append([])
        rows[-1].append(index)
    top = canvas.bottom - len(rows) * font * 1.6
    for number, row in enumerate(rows):
        x = (canvas.left + canvas.right - sum(widths[i] for i in row) + 18) / 2
        y = top + (number + 1) * font * 1.6 - 2
        for index in row:
            canvas.rectangle(x, y - font * 0.72, font * 0.75, font * 0.75, canvas.colour(index))
            canvas.text(x + font * 1.15, y, shortened(names[index], font, limit - 40))
            x += widths[index]
    canvas.bottom = top - 6


def _draw_round(canvas: Canvas, spec: ChartSpec) -> None:
    font, values = canvas.font, [max(0.0, value or 0.0) for value in spec.series[0].values]
    total = sum(values) or 1.0
    legend = max((text_width(label, font) for label in spec.labels), default=0) + 40
    legend = min(legend, (canvas.right - canvas.left) * 0.42)
    radius = min((canvas.right - canvas.left - legend - 24) / 2, (canvas.bottom - canvas.top) * 0.46)
    spare = canvas.right - canvas.left - legend - 24 - 2 * radius
    x, y = canvas.left + spare / 2 + radius, (canvas.top + canvas.bottom) / 2
    hole = radius * _HOLE if spec.type is ChartType.DOUGHNUT else 0.0
    angle = -math.pi / 2
    for index, value in enumerate(values):
        turn = 2 * math.pi * value / total
        _draw_slice(
            canvas, (x, y), (hole, radius), (angle, min(turn, 2 * math.pi - 1e-4)), canvas.colour(index)
        )
        if value / total >= 0.025:
            middle, reach = angle + turn / 2, (radius + hole) / 2 if hole else radius * 0.68
            share = f"{round(100 * value / total)}%"
            colour = "FFFFFF" if canvas.theme.name != "night" else "0E1420"
            canvas.text(
                x + reach * math.cos(middle), y + reach * math.sin(middle) + font * 0.36, share,
                anchor="middle", bold=True, colour=colour,
            )  # fmt: skip
        angle += turn
    line = min(font * 1.9, (canvas.bottom - canvas.top) / max(1, len(spec.labels)))
    legend_x, legend_y = x + radius + 28, y - line * (len(spec.labels) - 1) / 2
    for index, label in enumerate(spec.labels):
        row = legend_y + index * line
        canvas.rectangle(legend_x, row - font * 0.38, font * 0.8, font * 0.8, canvas.colour(index))
        canvas.text(
            legend_x + font * 1.3, row + font * 0.36, shortened(label, font, canvas.right - legend_x - 20)
        )


def _draw_slice(
    canvas: Canvas,
    centre: tuple[float, float],
    radii: tuple[float, float],
    arc: tuple[float, float],
    colour: str,
) -> None:
    (x, y), (inner, outer), (start, turn) = centre, radii, arc
    if turn <= 0:
        return
    end, is_large = start + turn, int(turn > math.pi)

    def at(radius: float, angle: float) -> str:
        return f"{x + radius * math.cos(angle):.2f} {y + radius * math.sin(angle):.2f}"

    commands = f"M{at(outer, start)}A{outer:.2f} {outer:.2f} 0 {is_large} 1 {at(outer, end)}"
    if inner:
        commands += f"L{at(inner, end)}A{inner:.2f} {inner:.2f} 0 {is_large} 0 {at(inner, start)}Z"
    else:
        commands += f"L{x:.2f} {y:.2f}Z"
    canvas.parts.append(
        f'<path d="{commands}" fill="#{colour}" stroke="#{canvas.theme.background}" stroke-width="2"/>'
    )


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    span = (high - low) or abs(high) or 1.0
    raw = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, max(last, first + 1) + 1)]


def _bounds(spec: ChartSpec) -> tuple[float, float]:
    columns = zip(*(series.values for series in spec.series), strict=True)
    if spec.stacked and spec.type not in (ChartType.LINE, ChartType.SCATTER):
        sums = [(sum(v for v in c if v and v < 0), sum(v for v in c if v and v > 0)) for c in columns]
        low, high = min(low for low, _ in sums), max(high for _, high in sums)
    else:
        values = [value for series in spec.series for value in series.values if value is not None] or [0.0]
        low, high = min(values), max(values)
    if spec.type in (ChartType.LINE, ChartType.SCATTER) and low > 0 and (high - low) < 0.4 * high:
        return low, high
    return min(0.0, low), max(0.0, high)


class _Scale:
    """From values to positions along an axis."""

    def __init__(self, ticks: Sequence[float], start: float, end: float) -> None:
        self.ticks = ticks
        self._low, self._start = ticks[0], start
        self._factor = (end - start) / (ticks[-1] - ticks[0])

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) * self._factor


def _draw_plot(canvas: Canvas, spec: ChartSpec) -> None:
    font, theme = canvas.font, canvas.theme
    is_lying = spec.type is ChartType.BAR
    below, beside = (spec.y_label, spec.x_label) if is_lying else (spec.x_label, spec.y_label)
    low, high = _bounds(spec)
    ticks = _ticks(low, high, 5)
    if below:
        canvas.text(
            (canvas.left + canvas.right) / 2, canvas.bottom - 4, below, anchor="middle", colour=theme.muted,
            size=font * 0.92,
        )  # fmt: skip
        canvas.bottom -= font * 1.7
    if beside:
        canvas.text(
            canvas.left + font * 0.8, (canvas.top + canvas.bottom) / 2, beside, anchor="middle",
            colour=theme.muted, size=font * 0.92, turn=True,
        )  # fmt: skip
        canvas.left += font * 1.8
    names = spec.labels if is_lying else [number_text(tick) for tick in ticks]
    room = max(text_width(name, font) for name in names) + 10
    canvas.left += min(room, (canvas.right - canvas.left) * 0.38)
    canvas.bottom -= font * 1.7
    canvas.top += font * 0.6
    if is_lying:
        _draw_lying_bars(canvas, spec, ticks)
        return
    scale = _Scale(ticks, canvas.bottom, canvas.top)
    _draw_grid(canvas, scale)
    if spec.type is ChartType.SCATTER:
        _draw_points(canvas, spec, scale)
        return
    step = (canvas.right - canvas.left) / len(spec.labels)
    _draw_labels(canvas, spec.labels, step)
    if spec.type is ChartType.COLUMN:
        _draw_columns(canvas, spec, scale, step)
    else:
        _draw_lines(canvas, spec, scale, step)


def _draw_grid(canvas: Canvas, scale: _Scale) -> None:
    font, theme, ticks = canvas.font, canvas.theme, scale.ticks
    for tick in ticks:
        colour = theme.muted if tick == 0 or tick == ticks[0] else theme.line
        canvas.line(canvas.left, scale(tick), canvas.right, scale(tick), colour)
        canvas.text(
            canvas.left - 8, scale(tick) + font * 0.36, number_text(tick), anchor="end", colour=theme.muted
        )


def _draw_labels(canvas: Canvas, labels: Sequence[str], step: float) -> None:
    font = canvas.font
    widest = max(text_width(label, font) for label in labels)
    every = max(1, math.ceil(min(widest, 140) / max(step - 6, 1))) if widest > step - 6 else 1
    for index in range(0, len(labels), every):
        x = canvas.left + (index + 0.5) * step
        text = shortened(labels[index], font, step * every - 4)
        canvas.text(x, canvas.bottom + font * 1.4, text, anchor="middle", colour=canvas.theme.muted)


def _draw_columns(canvas: Canvas, spec: ChartSpec, scale: _Scale, step: float) -> None:
    side_by_side = 1 if spec.stacked else len(spec.series)
    width = step * (0.62 if side_by_side == 1 else 0.72) / side_by_side
    width = min(width, 90.0)
    shows_values = len(spec.series) == 1 and len(spec.labels) <= 12
    for column in range(len(spec.labels)):
        x = canvas.left + (column + 0.5) * step - width * side_by_side / 2
        ends = [0.0, 0.0]
        for index, series in enumerate(spec.series):
            value = series.values[column]
            if value is None:
                continue
            start = ends[value > 0] if spec.stacked else 0.0
            ends[value > 0] += value
            top, bottom = sorted((scale(start), scale(start + value)))
            place = x if spec.stacked else x + index * width
            canvas.rectangle(
                place,
                top,
                width - (0 if spec.stacked or side_by_side == 1 else 2),
                bottom - top,
                canvas.colour(index),
            )
            if shows_values:
                y = top - 6 if value >= 0 else bottom + canvas.font
                canvas.text(place + width / 2, y, number_text(value), anchor="middle", bold=True)


def _draw_lying_bars(canvas: Canvas, spec: ChartSpec, ticks: Sequence[float]) -> None:
    font, theme = canvas.font, canvas.theme
    shows_values = len(spec.series) == 1 and len(spec.labels) <= 12
    scale = _Scale(ticks, canvas.left, canvas.right - (40 if shows_values else 8))
    for tick in ticks:
        canvas.line(
            scale(tick), canvas.top, scale(tick), canvas.bottom, theme.muted if tick == 0 else theme.line
        )
        canvas.text(
            scale(tick), canvas.bottom + font * 1.4, number_text(tick), anchor="middle", colour=theme.muted
        )
    step = (canvas.bottom - canvas.top) / len(spec.labels)
    side_by_side = 1 if spec.stacked else len(spec.series)
    height = min(step * 0.66 / side_by_side, 46.0)
    for row, label in enumerate(spec.labels):
        middle = canvas.top + (row + 0.5) * step
        if step >= font:
            canvas.text(
                canvas.left - 10,
                middle + font * 0.36,
                shortened(label, font, canvas.left - 12),
                anchor="end",
            )
        ends = [0.0, 0.0]
        for index, series in enumerate(spec.series):
            value = series.values[row]
            if value is None:
                continue
            start = ends[value > 0] if spec.stacked else 0.0
            ends[value > 0] += value
            left, right = sorted((scale(start), scale(start + value)))
            y = middle - height * side_by_side / 2 + (0 if spec.stacked else index * height)
            canvas.rectangle(
                left, y, right - left, height - (2 if side_by_side > 1 else 0), canvas.colour(index)
            )
            if shows_values:
                x, anchor = (right + 6, "start") if value >= 0 else (left - 6, "end")
                canvas.text(x, y + height / 2 + font * 0.36, number_text(value), anchor=anchor, bold=True)


def _draw_lines(canvas: Canvas, spec: ChartSpec, scale: _Scale, step: float) -> None:
    is_area = spec.type is ChartType.AREA
    sums = [0.0] * len(spec.labels)
    shapes: list[tuple[int, list[tuple[float, float]], list[tuple[float, float]]]] = []
    for index, series in enumerate(spec.series):
        top: list[tuple[float, float]] = []
        base: list[tuple[float, float]] = []
        for column, value in enumerate(series.values):
            if value is None and not is_area:
                _draw_line(canvas, index, top)
                top = []
                continue
            x, start = canvas.left + (column + 0.5) * step, sums[column] if spec.stacked and is_area else 0.0
            top.append((x, scale(start + (value or 0.0))))
            base.append((x, scale(start)))
            sums[column] = start + (value or 0.0)
        if is_area:
            shapes.append((index, top, base))
        else:
            _draw_line(canvas, index, top)
    for index, top, base in reversed(shapes) if spec.stacked else shapes:
        points = " L".join(f"{x:.2f} {y:.2f}" for x, y in [*top, *reversed(base)])
        opacity = 1.0 if spec.stacked or len(shapes) == 1 else 0.75
        canvas.path(f"M{points}Z", fill=canvas.colour(index), opacity=opacity)


def _draw_line(canvas: Canvas, index: int, points: Sequence[tuple[float, float]]) -> None:
    colour = canvas.colour(index)
    if len(points) > 1:
        canvas.path("M" + " L".join(f"{x:.2f} {y:.2f}" for x, y in points), stroke=colour)
    if len(points) <= 40:
        for x, y in points:
            canvas.dot(x, y, colour)


def _draw_points(canvas: Canvas, spec: ChartSpec, scale: _Scale) -> None:
    places = scatter_places(spec.labels)
    ticks = _ticks(min(places), max(places), 6)
    across = _Scale(ticks, canvas.left + 8, canvas.right - 8)
    for tick in ticks:
        canvas.text(
            across(tick), canvas.bottom + canvas.font * 1.4, number_text(tick), anchor="middle",
            colour=canvas.theme.muted,
        )  # fmt: skip
    for index, series in enumerate(spec.series):
        for place, value in zip(places, series.values, strict=True):
            if value is not None:
                canvas.dot(across(place), scale(value), canvas.colour(index), 5)


def scatter_places(labels: Sequence[str]) -> list[float]:
    """The labels as x values; a label that is no number counts as its position."""
    places: list[float] = []
    for index, label in enumerate(labels):
        try:
            number = float(label)
        except ValueError:
            number = float(index + 1)
        places.append(number if math.isfinite(number) else float(index + 1))
    return places
