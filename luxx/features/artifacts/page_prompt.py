"""What a model is asked that writes one page of an artifact anew, and the page in its answer. Pure."""

import re
from importlib.resources import files

import msgspec

from luxx.features.artifacts.rows import Version
from luxx.features.artifacts.source import MARKDOWN, SourcePage, as_one_page, pages_of_page
from luxx.infra.documents.code_fences import fence_after
from luxx.wire.artifacts import ArtifactType
from luxx.wire.message import fenced

MAX_NEIGHBOUR = 8_000
"""Characters of the page before and of the one after that the model reads."""

MAX_TITLE = 100
_WHOLE, *_SECTIONS = (
    files("luxx.features.artifacts").joinpath("regeneration.md").read_text("utf-8").split("\n## ")
)
_RULES = {name: text.strip() for name, _, text in (section.partition("\n") for section in _SECTIONS)}
_NAMES = {
    ArtifactType.PPT: "a deck of slides",
    ArtifactType.DOCUMENT: "a document",
    ArtifactType.REPORT: "a report",
    ArtifactType.SHEET: "a workbook",
    ArtifactType.CODE: "a program",
    ArtifactType.CHART: "a chart",
    ArtifactType.WEB: "a web page",
    ArtifactType.DIAGRAM: "a diagram",
}
_INFO = re.compile(r"[ `~]*([\w+-]*)")


def system_prompt(type_: ArtifactType) -> str:
    """The rules for a page of this type."""
    return f"{_WHOLE.strip().replace('{type}', _NAMES[type_])}\n\n{_RULES[type_.value]}"


def page_question(type_: ArtifactType, name: str, head: Version, index: int, instructions: str) -> str:
    """The message for the page at `index` (from 0): the titles of all pages, the ones beside it, the page,
    and what to change."""
    pages, number = head.pages, index + 1
    titles = [f"{place}. {_title(type_, page)}" for place, page in enumerate(pages, 1)]
    parts = [f"The pages of {name!r}:\n" + "\n".join(titles)] if len(pages) > 1 else [f"Its name: {name!r}"]
    if index > 0:
        parts.append(f"The page before:\n{fenced(pages[index - 1].text[:MAX_NEIGHBOUR], '')}")
    if number < len(pages):
        parts.append(f"The page after:\n{fenced(pages[number].text[:MAX_NEIGHBOUR], '')}")
    parts.append(f"Page {number}, which you write anew:\n{fenced(pages[index].text, '')}")
    parts.append(f"Instructions for page {number}:\n{instructions}")
    return "\n\n".join(parts)


def page_of_answer(type_: ArtifactType, answer: str, before: SourcePage) -> list[SourcePage]:
    """The page that replaces `before`. Raises InvalidInput for an empty answer, and for what is no page."""
    text = without_fence(type_, answer)
    if type_ == ArtifactType.CODE:
        return pages_of_page(type_, text, before.path)
    return as_one_page(type_, text, before.text)


def without_fence(type_: ArtifactType, answer: str) -> str:
    """The answer without one code fence around all of it. In Markdown, a fence with another name than
    Markdown's belongs to the page: it is a chart or a program."""
    lines = answer.strip().split("\n")
    open_fence, _ = fence_after("", lines[0])
    if not open_fence or len(lines) < 2:
        return answer
    info = _INFO.match(lines[0])
    if type_ in MARKDOWN and info is not None and info[1].lower() not in ("", "markdown", "md"):
        return answer
    for line in lines[1:-1]:
        open_fence, _ = fence_after(open_fence, line)
        if not open_fence:
            return answer
    open_fence, _ = fence_after(open_fence, lines[-1])
    return answer if open_fence else "\n".join(lines[1:-1]) + "\n"


def _title(type_: ArtifactType, page: SourcePage) -> str:
    if type_ == ArtifactType.CODE:
        return page.path[:MAX_TITLE]
    if type_ == ArtifactType.SHEET:
        return str(msgspec.json.decode(page.text)["name"])[:MAX_TITLE]
    line = next((line for line in page.text.split("\n") if line.strip("# \t")), "")
    return line.strip("# \t")[:MAX_TITLE]
