"""Charts of slides as native charts, whose numbers people can edit."""

# The libraries of this module have no complete types.
# pyright: basic

from typing import Any

from pptx.chart.data import CategoryChartData, XyChartData
from pptx.enum.chart import XL_CHART_TYPE, XL_LABEL_POSITION, XL_LEGEND_POSITION, XL_TICK_LABEL_POSITION
from pptx.util import Emu, Pt

from luxx.infra.documents.render.chart_spec import ChartSpec, ChartType
from luxx.infra.documents.render.chart_svg import scatter_places
from luxx.infra.documents.render.deck.layout import single
from luxx.infra.documents.render.deck.masters import Box
from luxx.infra.documents.render.deck.shapes import Painter, rgb

_CHARTS = {
    (ChartType.COLUMN, False): XL_CHART_TYPE.COLUMN_CLUSTERED,
    (ChartType.COLUMN, True): XL_CHART_TYPE.COLUMN_STACKED,
    (ChartType.BAR, False): XL_CHART_TYPE.BAR_CLUSTERED,
    (ChartType.BAR, True): XL_CHART_TYPE.BAR_STACKED,
    (ChartType.LINE, False): XL_CHART_TYPE.LINE_MARKERS,
    (ChartType.LINE, True): XL_CHART_TYPE.LINE_MARKERS,
    (ChartType.AREA, False): XL_CHART_TYPE.AREA,
    (ChartType.AREA, True): XL_CHART_TYPE.AREA_STACKED,
    (ChartType.PIE, False): XL_CHART_TYPE.PIE,
    (ChartType.PIE, True): XL_CHART_TYPE.PIE,
    (ChartType.DOUGHNUT, False): XL_CHART_TYPE.DOUGHNUT,
    (ChartType.DOUGHNUT, True): XL_CHART_TYPE.DOUGHNUT,
}
_ROUND = (ChartType.PIE, ChartType.DOUGHNUT)
_BARS = (ChartType.COLUMN, ChartType.BAR)


def add_chart(painter: Painter, shapes: Any, spec: ChartSpec, box: Box, *, title: str) -> Any:
    """A native chart. Its own title is left out where it repeats the title of the page."""
    kind, data = _chart_data(spec)
    frame = shapes.add_chart(kind, *(Emu(number) for number in box.emu), data)
    frame.name = "Chart"
    frame._element.nvGraphicFramePr.cNvPr.set("descr", ", ".join(spec.texts)[:500])
    chart = frame.chart
    chart.font.size = Pt(13)
    chart.font.name = "Arial"
    chart.font.color.rgb = rgb(painter.theme.text)
    chart.has_title = bool(spec.title) and spec.title != title
    if chart.has_title:
        paragraph = chart.chart_title.text_frame.paragraphs[0]
        painter.write_runs(paragraph, single(spec.title), 15, colour=painter.theme.title, bold=True)
        chart.chart_title.include_in_layout = False
    has_names = any(series.name for series in spec.series)
    chart.has_legend = spec.type in _ROUND or (len(spec.series) > 1 and has_names)
    if chart.has_legend:
        is_beside = spec.type in _ROUND
        chart.legend.position = XL_LEGEND_POSITION.RIGHT if is_beside else XL_LEGEND_POSITION.BOTTOM
        chart.legend.include_in_layout = False
        chart.legend.font.size = Pt(13)
        chart.legend.font.color.rgb = rgb(painter.theme.text)
    if spec.type in _ROUND:
        _colour_slices(painter, chart, spec)
    else:
        _style_axes(painter, chart, spec)
        _colour_series(painter, chart, spec)
    return frame


def _colour_slices(painter: Painter, chart: Any, spec: ChartSpec) -> None:
    plot = chart.plots[0]
    plot.vary_by_categories = True
    for index in range(len(spec.labels)):
        fill = plot.series[0].points[index].format
        fill.fill.solid()
        fill.fill.fore_color.rgb = rgb(painter.theme.series[index % 6])
        fill.line.color.rgb = rgb(painter.theme.background)
    plot.has_data_labels = True
    labels = plot.data_labels
    labels.show_value, labels.show_percentage = False, True
    labels.number_format, labels.number_format_is_linked = "0%", False
    labels.font.size, labels.font.bold = Pt(13), True
    labels.font.color.rgb = rgb("FFFFFF" if painter.theme.name != "night" else "0E1420")


def _colour_series(painter: Painter, chart: Any, spec: ChartSpec) -> None:
    for index, series in enumerate(chart.plots[0].series):
        colour = rgb(painter.theme.series[index % 6])
        if spec.type in (ChartType.LINE, ChartType.SCATTER):
            series.marker.format.fill.solid()
            series.marker.format.fill.fore_color.rgb = colour
            series.marker.format.line.color.rgb = colour
            series.marker.size = 7
            if spec.type is ChartType.LINE:
                series.smooth = False
                series.format.line.color.rgb = colour
                series.format.line.width = Pt(2.5)
            else:
                series.format.line.fill.background()
        else:
            series.format.fill.solid()
            series.format.fill.fore_color.rgb = colour
            if spec.type in _BARS:
                series.invert_if_negative = False
    plot = chart.plots[0]
    if spec.type in _BARS:
        plot.gap_width, plot.overlap = 55, 100 if spec.stacked else -8
        if len(spec.series) == 1 and len(spec.labels) <= 12:
            plot.has_data_labels = True
            plot.data_labels.number_format, plot.data_labels.number_format_is_linked = "#,##0.##", False
            if all(value is None or value == int(value) for value in spec.series[0].values):
                plot.data_labels.number_format = "#,##0"
            plot.data_labels.position = XL_LABEL_POSITION.OUTSIDE_END
            plot.data_labels.font.size, plot.data_labels.font.bold = Pt(13), True
            plot.data_labels.font.color.rgb = rgb(painter.theme.text)


def _style_axes(painter: Painter, chart: Any, spec: ChartSpec) -> None:
    for axis, label in ((chart.category_axis, spec.x_label), (chart.value_axis, spec.y_label)):
        axis.format.line.color.rgb = rgb(painter.theme.line)
        axis.tick_labels.font.size = Pt(13)
        axis.tick_labels.font.color.rgb = rgb(painter.theme.muted)
        axis.has_title = bool(label)
        if label:
            paragraph = axis.axis_title.text_frame.paragraphs[0]
            painter.write_runs(paragraph, single(label), 12, colour=painter.theme.muted)
    chart.category_axis.has_major_gridlines = False
    chart.category_axis.tick_label_position = XL_TICK_LABEL_POSITION.LOW
    value_axis = chart.value_axis
    value_axis.has_major_gridlines = True
    value_axis.major_gridlines.format.line.color.rgb = rgb(painter.theme.line)
    value_axis.major_gridlines.format.line.width = Pt(0.75)
    value_axis.format.line.fill.background()
    value_axis.tick_labels.number_format = "General"
    value_axis.tick_labels.number_format_is_linked = False
    if spec.type is ChartType.BAR:
        chart.category_axis.reverse_order = True
        value_axis.tick_label_position = XL_TICK_LABEL_POSITION.HIGH


def _chart_data(spec: ChartSpec) -> tuple[Any, Any]:
    if spec.type is ChartType.SCATTER:
        data = XyChartData()
        places = scatter_places(spec.labels)
        for series in spec.series:
            points = data.add_series(series.name)
            for place, value in zip(places, series.values, strict=True):
                if value is not None:
                    points.add_data_point(place, value)
        return XL_CHART_TYPE.XY_SCATTER, data
    data = CategoryChartData()
    data.categories = list(spec.labels)
    for series in spec.series if spec.type not in _ROUND else spec.series[:1]:
        data.add_series(series.name, list(series.values))
    return _CHARTS[spec.type, spec.stacked], data
