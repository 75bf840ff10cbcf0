"""The citations of a report, such as [S1] or [S1 "exact words"], checked against what was read. Pure.

A model writes only the numbers that the server gave to pages. The server writes the list of references, so an
address that nobody has read cannot get into a report.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from luxx.infra.documents.code_fences import fence_after
from luxx.wire.artifacts import ArtifactProblem

_CITATION = re.compile(
    r'\[S(?P<number>\d{1,6})(?:\s{1,3}(?:"(?P<straight>[^"\n]{0,2000})"|“(?P<curly>[^”\n]{0,2000})”))?\]'
)
_LINK_TARGET = re.compile(r"\]\([^()\s]{0,4000}(?:\([^()\s]{0,200}\)[^()\s]{0,200})?(?:\s\"[^\"\n]*\")?\)")
_CODE_SPAN = re.compile(r"(?<!`)(`{1,9})(?!`)[^\n]*?[^`\n]\1(?!`)")
_NO_LETTERS = re.compile(r"[\W_]+")
SHOWN_QUOTATION = 80
"""Characters of a quotation that a problem shows."""


class SourceCitation(msgspec.Struct, frozen=True, kw_only=True):
    """`page` from 1; `quotation`: the exact words that are cited, None without any. `start` and `end` are
    positions in the text of the page."""

    page: int
    number: int
    quotation: str | None
    start: int
    end: int


class CitedSource(msgspec.Struct, frozen=True, kw_only=True):
    """A page that the report cites, as the server numbered it when it was read."""

    number: int
    address: str
    title: str


def citations_in(pages: Sequence[str]) -> Iterator[SourceCitation]:
    """The citations of the pages in their order, without those in code."""
    for page, text in enumerate(pages, start=1):
        for found in _CITATION.finditer(_without_code(text)):
            quotation = found["straight"] if found["straight"] is not None else found["curly"]
            yield SourceCitation(
                page=page, number=int(found["number"]), quotation=quotation,
                start=found.start(), end=found.end(),
            )  # fmt: skip


def _without_code(text: str) -> str:
    """The text with spaces instead of code, as long as before."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        fence, is_code = fence_after(fence, line)
        blank = " " * len(line)
        lines.append(blank if is_code else _CODE_SPAN.sub(lambda span: " " * len(span[0]), line))
    return "\n".join(lines)


def numbers_to_read(pages: Sequence[str]) -> set[int]:
    """The numbers of the sources whose texts `problems_of` needs: of those that are quoted."""
    return {one.number for one in citations_in(pages) if one.quotation is not None}


def problems_of(
    pages: Sequence[str],
    known: Mapping[int, CitedSource],
    texts: Mapping[int, str],
    checked: frozenset[tuple[int, str]] = frozenset(),
) -> list[ArtifactProblem]:
    """What is wrong with the citations of a report, each once per page, with what to do.

    `known`: the sources that may be cited, by number. `texts`: of those that are still stored. `checked`:
    quotations with their numbers that an earlier version of the report had and whose words were found.
    """
    folded: dict[int, str] = {}
    problems: dict[tuple[int, int, str | None], ArtifactProblem] = {}
    for one in citations_in(pages):
        key = (one.page, one.number, one.quotation)
        if key in problems:
            continue
        if one.number not in known:
            text = (
                f"[S{one.number}] is no page that was read. Cite only the numbers that web_fetch and "
                "batch_fetch gave; a page that a search only listed has none."
            )
        elif one.quotation is None or (one.number, one.quotation) in checked:
            continue
        elif one.number not in texts:
            text = (
                f"Whether page S{one.number} has the words {_shown(one.quotation)} cannot be checked any "
                "more, because its text was deleted. Read the page again, or cite it without the words."
            )
        else:
            if one.number not in folded:
                folded[one.number] = folded_text(texts[one.number])
            wanted = folded_text(one.quotation)
            if wanted and wanted in folded[one.number]:
                continue
            text = (
                f"Page S{one.number} does not have the words {_shown(one.quotation)}. Quote them exactly, "
                "or cite the page without the words."
            )
        problems[key] = ArtifactProblem(page=one.page, kind="citation", text=text)
    return list(problems.values())


def folded_text(text: str) -> str:
    """The text as quotations are compared: its letters and digits without case, marks and spaces."""
    without_targets = _LINK_TARGET.sub("]", text)
    return _NO_LETTERS.sub("", unicodedata.normalize("NFKC", without_targets).casefold())


def cited_sources(pages: Sequence[str], known: Mapping[int, CitedSource]) -> list[CitedSource]:
    """The sources that the pages cite, in the order of their first citation."""
    numbers = dict.fromkeys(one.number for one in citations_in(pages))
    return [known[number] for number in numbers if number in known]


def checked_quotations(
    pages: Sequence[str], problems: Sequence[ArtifactProblem]
) -> frozenset[tuple[int, str]]:
    """The quotations of a version without the pages that have problems with citations."""
    wrong = {problem.page for problem in problems if problem.kind == "citation"}
    return frozenset(
        (one.number, one.quotation)
        for one in citations_in(pages)
        if one.quotation is not None and one.page not in wrong
    )


def with_references(pages: Sequence[str], sources: Sequence[CitedSource], heading: str) -> list[str]:
    """The pages as they are rendered: [1] instead of [S7], and a last page with the references.

    `sources` are numbered in their order. A citation of an unknown page stays as it is written.
    """
    if not sources:
        return list(pages)
    position = {source.number: index for index, source in enumerate(sources, start=1)}
    changed = list(pages)
    for one in reversed(list(citations_in(pages))):
        if (index := position.get(one.number)) is not None:
            text, target = changed[one.page - 1], _target(sources[index - 1].address)
            changed[one.page - 1] = f"{text[: one.start]}[\\[{index}\\]](<{target}>){text[one.end :]}"
    entries = [
        f"{index}. {_escaped(source.title or source.address)}. <{_target(source.address)}>"
        for index, source in enumerate(sources, start=1)
    ]
    return [*changed, f"# {heading}\n\n" + "\n".join(entries) + "\n"]


def _target(address: str) -> str:
    """An address inside `<>`, which ends at the first of these characters."""
    return address.translate({ord("<"): "%3C", ord(">"): "%3E", ord(" "): "%20", ord("\n"): "%0A"})


def _escaped(title: str) -> str:
    """A title as plain text in Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~!$])", r"\\\1", " ".join(title.split()))


def _shown(quotation: str) -> str:
    cut = quotation if len(quotation) <= SHOWN_QUOTATION else f"{quotation[: SHOWN_QUOTATION - 1]}…"
    return f"“{cut}”"
