"""What is shown of a completion: its text up to a stop of the request, and beside it the web pages that it
cites and the images that the model generated.
"""

from collections.abc import Iterator, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from luxx.wire.source import Source, citable
from luxx.wire.turn import (
    CitationDelta,
    Delta,
    FinishDelta,
    FinishReason,
    ReplayDelta,
    Step,
    StepFile,
    StepType,
    TextDelta,
    UsageDelta,
    step_id,
)

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


class StopPhrases:
    """Ends a completion before the first stop in its text, also where the API takes no stops.

    Text that may begin a stop is held back until more follows. Of several stops the one that is complete
    first counts, so that the result does not depend on the fragments.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.is_stopped = False

    def read(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas up to a stop, with the end of the completion there."""
        out: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, TextDelta):
                out += self._read_text(delta.text)
            elif isinstance(delta, UsageDelta | CitationDelta | ReplayDelta):
                out.append(delta)
            else:
                # The text does not go on after a call, nor after thinking.
                out += [TextDelta(text=held)] if (held := self.take_held()) else []
                out.append(delta)
            if self.is_stopped:
                break
        return out

    def take_held(self) -> str:
        """The text that is held back, once nothing can follow it."""
        held, self._held = self._held, ""
        return held

    def _read_text(self, text: str) -> Iterator[Delta]:
        text = self.take_held() + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            shown = text[: min(found)[1]]
        else:
            self._held = max((beginning_at_end(text, stop) for stop in self._stops), key=len)
            shown = text.removesuffix(self._held)
        if shown:
            yield TextDelta(text=shown)
        if self.is_stopped:
            yield FinishDelta(reason=FinishReason.STOP, is_cut=True)


def beginning_at_end(text: str, phrase: str) -> str:
    """The longest beginning of a phrase, less than all of it, with which the text ends."""
    start = max(0, len(text) - len(phrase) + 1)
    while (start := text.find(phrase[0], start)) >= 0:
        if phrase.startswith(text[start:]):
            return text[start:]
        start += 1
    return ""
