"""What the text of a completion shows beside it: the web pages that it cites and the images that the model
generated.
"""

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from luxx.wire.turn import Source, Step, StepFile, StepType, citable, step_id

MAX_SOURCES = 100
"""Of one completion."""

NOT_SHOWN = "An image that the model generated is not shown: {why}."


class ShownParts:
    """The sources and images of one completion. `not_shown`: notices on images that could not be stored."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._images: list[StepFile] = []
        self.not_shown: list[str] = []

    def add_source(self, source: Source) -> None:
        """Keeps a web page once, with the first title and the first snippet that are given."""
        known = self._sources.get(source.url)
        if known is not None:
            self._sources[source.url] = replace(
                known, title=known.title or source.title, snippet=known.snippet or source.snippet
            )
        elif citable(source) and len(self._sources) < MAX_SOURCES:
            self._sources[source.url] = source

    def add_images(self, stored: Sequence[StepFile | str]) -> None:
        """Adds stored images; of one that cannot be shown a notice, given why."""
        self.not_shown += [NOT_SHOWN.format(why=one) for one in stored if isinstance(one, str)]
        self._images += [one for one in stored if not isinstance(one, str)]

    def beside(self, steps: list[Step], last_text: Step | None, next_index: int) -> list[Step]:
        """The closing steps with what the last text shows. A text that is logged already is logged again, at
        its place; images without any text get a step of this index."""
        if not (self._sources or self._images):
            return steps
        sources, images = list(self._sources.values()) or UNSET, self._images or UNSET
        at = next((at for at in reversed(range(len(steps))) if steps[at].type == StepType.TEXT), None)
        if at is not None:
            return [*steps[:at], replace(steps[at], sources=sources, files=images), *steps[at + 1 :]]
        if last_text is not None:
            return [replace(last_text, sources=sources, files=images), *steps]
        if not self._images:
            return steps
        step = Step(id=step_id(next_index), index=next_index, type=StepType.TEXT)
        return [*steps, replace(step, sources=sources, files=images)]
