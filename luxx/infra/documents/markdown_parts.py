"""Markdown as parts: one for the text below each heading. A heading is no heading within a code block."""

import re

from luxx.infra.documents.parts import HeadingPath, Part, PartWriter

_HEADING = re.compile(r"(#{1,6})[ \t]+(.{1,2000})")
_CLOSING = re.compile(r"[ \t]#{1,20}$")
_FENCE = re.compile(r" {0,3}(`{3,100}|~{3,100})")
_UNDERLINE = re.compile(r"(=|-){3,}[ \t]*")
_LEVELS = {"=": 1, "-": 2}
_LONGEST_UNDERLINE = 200


def add_markdown(text: str, writer: PartWriter, above: tuple[str, ...] = ()) -> str:
    """Adds the parts of a text, below the headings `above`. Returns its first heading; empty without one."""
    reader = _MarkdownReader(writer, above)
    for line in text.split("\n"):
        reader.read_line(line)
    reader.end_part()
    return reader.first_heading


class _MarkdownReader:
    def __init__(self, writer: PartWriter, above: tuple[str, ...]) -> None:
        self.first_heading = ""
        self._writer = writer
        self._headings = HeadingPath(above)
        self._lines: list[str] = []
        self._fence = ""
        self._has_new_heading = False

    def read_line(self, line: str) -> None:
        fence = _FENCE.match(line)
        if self._fence:
            self._lines.append(line)
            if fence is not None and fence[1].startswith(self._fence) and not line.strip().strip(fence[1][0]):
                self._fence = ""
            return
        if fence is not None:
            self._fence = fence[1]
            self._lines.append(line)
            return
        heading = _HEADING.fullmatch(line)
        if heading is not None:
            self._enter(len(heading[1]), _CLOSING.sub("", heading[2].rstrip()).strip())
        elif len(line) < _LONGEST_UNDERLINE and _UNDERLINE.fullmatch(line) and self._is_after_title():
            self._enter(_LEVELS[line[0]], self._lines.pop())
        else:
            self._lines.append(line)

    def _is_after_title(self) -> bool:
        """Whether the line before stands alone: an underlined title, no rule and no table."""
        if not self._lines or not self._lines[-1].strip() or len(self._lines[-1]) > _LONGEST_UNDERLINE:
            return False
        return len(self._lines) == 1 or not self._lines[-2].strip()

    def _enter(self, level: int, heading: str) -> None:
        self.end_part()
        if heading:
            self._headings.enter(level, heading)
            self._has_new_heading = True
            self.first_heading = self.first_heading or " ".join(heading.split())[:300]

    def end_part(self) -> None:
        """Adds what was read since the last heading."""
        text = "\n".join(self._lines).strip("\n")
        if text.strip() or self._has_new_heading:
            self._writer.add(Part(text=text, headings=self._headings.path))
        self._lines = []
        self._has_new_heading = False
