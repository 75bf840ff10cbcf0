"""The JSON of a chart, which decks (a fence ```chart), charts and the web UI share. Pure.

`{type, title?, labels, series: [{name, values}], x_label?, y_label?, stacked?}`; the form of Chart.js,
`{type, data: {labels, datasets: [{label, data}]}}`, is understood too.
"""

from enum import StrEnum
from typing import Any, cast

import msgspec

MAX_SERIES = 12
MAX_LABELS = 200
MAX_TEXT = 200


class ChartType(StrEnum):
    """`column` has upright bars, `bar` lying ones. In `scatter` the labels are the x values."""

    COLUMN = "column"
    BAR = "bar"
    LINE = "line"
    AREA = "area"
    PIE = "pie"
    DOUGHNUT = "doughnut"
    SCATTER = "scatter"


class ChartSeriesSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    values: tuple[float | None, ...]


class ChartSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All series have as many values as there are labels; None is a gap."""

    type: ChartType
    labels: tuple[str, ...]
    series: tuple[ChartSeriesSpec, ...]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    stacked: bool = False

    @property
    def texts(self) -> list[str]:
        """All words of the chart, in the order in which they are read."""
        names = [series.name for series in self.series]
        labels = self.labels if self.type is not ChartType.SCATTER else ()
        return [text for text in (self.title, *labels, *names, self.x_label, self.y_label) if text]


class WrongChart(ValueError):
    """The text is no chart; the message says why."""


def read_chart(text: str) -> ChartSpec:
    """The chart of a JSON text. Raises WrongChart."""
    try:
        given: Any = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise WrongChart(f"a chart is JSON, and this is none: {error}") from error
    if not isinstance(given, dict):
        raise WrongChart("a chart is a JSON object with type, labels and series")
    return _chart(cast("dict[str, Any]", given))


def _chart(given: dict[str, Any]) -> ChartSpec:
    data = cast("dict[str, Any]", given["data"]) if isinstance(given.get("data"), dict) else given
    datasets = _list(data.get("series", data.get("datasets")))
    labels = _list(data.get("labels", data.get("categories")))
    if not datasets:
        raise WrongChart("a chart needs series: [{name, values}]")
    if len(datasets) > MAX_SERIES:
        raise WrongChart(f"a chart has at most {MAX_SERIES} series, and this one has {len(datasets)}")
    series = tuple(_series(entry) for entry in datasets)
    most = max(len(entry.values) for entry in series)
    if not labels:
        labels = [str(number) for number in range(1, most + 1)]
    if max(most, len(labels)) > MAX_LABELS:
        raise WrongChart(f"a chart has at most {MAX_LABELS} labels")
    if most > len(labels):
        raise WrongChart(f"a series has {most} values, and there are {len(labels)} labels")
    kind = str(given.get("type", "column")).lower()
    is_lying = kind == "bar" and data is not given
    options: Any = given.get("options")
    if is_lying and not (isinstance(options, dict) and cast("Any", options).get("indexAxis") == "y"):
        kind = "column"  # Chart.js calls upright bars so.
    if kind not in tuple(ChartType):
        raise WrongChart(f"{kind[:40]} is no type of a chart; there are {', '.join(ChartType)}")
    if kind in (ChartType.PIE, ChartType.DOUGHNUT) and len(series) > 1:
        raise WrongChart(f"a {kind} has one series, and this one has {len(series)}")
    return ChartSpec(
        type=ChartType(kind),
        labels=tuple(_text(label) for label in labels),
        series=tuple(
            ChartSeriesSpec(
                name=entry.name, values=(*entry.values, *[None] * (len(labels) - len(entry.values)))
            )
            for entry in series
        ),
        title=_text(given.get("title", "")),
        x_label=_text(given.get("x_label", "")),
        y_label=_text(given.get("y_label", "")),
        stacked=given.get("stacked") is True,
    )


def _series(entry: object) -> ChartSeriesSpec:
    if not isinstance(entry, dict):
        raise WrongChart("each series of a chart is {name, values}")
    given = cast("dict[str, Any]", entry)
    values = _list(given.get("values", given.get("data")))
    if not values:
        raise WrongChart("each series of a chart needs values, a list of numbers")
    return ChartSeriesSpec(
        name=_text(given.get("name", given.get("label", ""))),
        values=tuple(_number(value) for value in values),
    )


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        raise WrongChart(f"values of a chart are numbers, and {str(value)[:40]!r} is none")
    return float(value)


def _text(value: object) -> str:
    if isinstance(value, dict | list):
        raise WrongChart("titles, names and labels of a chart are texts")
    return "" if value is None else " ".join(str(value).split())[:MAX_TEXT]
