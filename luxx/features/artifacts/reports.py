"""Reports as files, with numbered citations and a list of references, and the check of their citations."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from luxx.errors import NotFound, ToolFailed
from luxx.features.artifacts.citations import (
    CitedSource,
    checked_quotations,
    citations_in,
    cited_sources,
    numbers_to_read,
    problems_of,
    with_references,
)
from luxx.features.artifacts.references import roots_that_wrote, sources_to_keep
from luxx.features.artifacts.rows import Version, read_version
from luxx.features.artifacts.source import SourcePage
from luxx.infra.documents.render.scripts import Language
from luxx.infra.store.engine import Store
from luxx.runs.log.page_sources import page_text, read_texts
from luxx.wire.artifacts import ArtifactProblem, ArtifactType

_HEADINGS = {
    "zh-CN": "参考资料",
    "zh-TW": "參考資料",
    "ja-JP": "参考文献",
    "ko-KR": "참고 자료",
    "de": "Quellen",
    "fr": "Sources",
}


class CitationCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What the check needs of the database; `problems` needs no connection.

    `sources`: those that it may cite. `texts`: of the quoted pages, compressed. `checked`: quotations that
    were found for the version before.
    """

    pages: list[str]
    sources: list[CitedSource]
    texts: dict[int, bytes]
    checked: frozenset[tuple[int, str]]

    def problems(self) -> list[ArtifactProblem]:
        """What is wrong with the citations. Takes about 30 ms for each long page that is quoted."""
        known = {source.number: source for source in self.sources}
        texts = {number: page_text(text) for number, text in self.texts.items()}
        return problems_of(self.pages, known, texts, self.checked)


def read_check(connection: Connection, version: Version) -> CitationCheck:
    """Reads what the check of a version of a report needs; the version may not be stored yet."""
    artifact_id, run_id = version.artifact_id, version.run_id
    pages = [page.text for page in version.pages]
    numbers = sorted(numbers_to_read(pages))
    return CitationCheck(
        pages=pages,
        sources=sources_to_keep(connection, artifact_id, run_id, pages, version.settings.sources),
        texts=read_texts(connection, roots_that_wrote(connection, artifact_id, run_id), numbers)
        if numbers
        else {},
        checked=_checked_before(connection, version),
    )


async def require_sources(store: Store, draft: Version, run_id: str | None) -> None:
    """Raises ToolFailed for a new report that cites pages although this run has read none."""
    draft = msgspec.structs.replace(draft, run_id=run_id)
    check = await store.read_rows(lambda connection: read_check(connection, draft))
    if not check.sources and next(citations_in(check.pages), None) is not None:
        raise ToolFailed(
            "the report was not made: it cites pages, but no page was read with web_fetch or batch_fetch. "
            "Read pages first; if nothing was found, say so instead of writing a report"
        )


def _checked_before(connection: Connection, version: Version) -> frozenset[tuple[int, str]]:
    try:
        before = read_version(connection, version.artifact_id, version.number - 1)
    except NotFound:
        return frozenset()
    return checked_quotations([page.text for page in before.pages], before.problems)


def pages_of_files(type_: ArtifactType, version: Version) -> list[SourcePage]:
    """The pages as files have them: of a report with numbered citations, and the references after them."""
    if type_ != ArtifactType.REPORT:
        return version.pages
    texts = [page.text for page in version.pages]
    sources = cited_sources(texts, {source.number: source for source in version.settings.sources})
    return [SourcePage(text) for text in with_references(texts, sources, _heading(version, texts))]


def _heading(version: Version, texts: Sequence[str]) -> str:
    tag = Language(version.settings.language, "\n".join(texts)[:5000]).tag
    return _HEADINGS.get(tag) or _HEADINGS.get(tag[:2]) or "References"
