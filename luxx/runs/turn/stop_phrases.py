"""The stops of a request: texts that end a completion, also where the API of its model takes none."""

from collections.abc import Iterator, Sequence

from luxx.wire.turn import CitationDelta, Delta, FinishDelta, FinishReason, ReplayDelta, TextDelta, UsageDelta


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
