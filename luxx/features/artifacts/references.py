"""Which pages the report of an artifact may cite, and what is wrong with its citations.

A version keeps the sources that its report cites or cited before, so that its references outlive the runs in
which the pages were read. The texts of the pages stay with the runs.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, select

from luxx.features.artifacts.citations import (
    CitedSource,
    checked_quotations,
    cited_sources,
    numbers_to_read,
    problems_of,
)
from luxx.features.artifacts.models import ArtifactVersionRow
from luxx.infra.store.tables import table_of
from luxx.runs.log.page_sources import page_text, read_sources, read_texts, roots_of
from luxx.wire.artifacts import ArtifactProblem

_versions = table_of(ArtifactVersionRow)


def sources_to_keep(
    connection: Connection,
    artifact_id: str,
    run_id: str | None,
    pages: Sequence[str],
    kept: Sequence[CitedSource],
) -> list[CitedSource]:
    """The sources of a new version: those that its pages cite, and `kept`, those of the version before.

    `run_id`: of the run that writes it, if one does. The numbers of its tree come before those of earlier
    runs that wrote in the artifact.
    """
    before = {source.number: source for source in kept}
    cited = cited_sources(pages, {**_read_in(connection, artifact_id, run_id), **before})
    return list({source.number: source for source in (*kept, *cited)}.values())


class CitationCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of the citations of a version needs of the database; `problems` needs no connection."""

    pages: list[str]
    sources: list[CitedSource]
    texts: dict[int, bytes]
    checked: frozenset[tuple[int, str]]

    def problems(self) -> list[ArtifactProblem]:
        """Takes about 30 ms for each long page that is quoted."""
        known = {source.number: source for source in self.sources}
        texts = {number: page_text(text) for number, text in self.texts.items()}
        return problems_of(self.pages, known, texts, self.checked)


def read_check(
    connection: Connection,
    artifact_id: str,
    run_id: str | None,
    pages: Sequence[str],
    sources: Sequence[CitedSource],
    before: tuple[Sequence[str], Sequence[ArtifactProblem]] = ((), ()),
) -> CitationCheck:
    """Reads what the check needs. `before`: the pages and problems of the version before."""
    numbers = numbers_to_read(pages)
    texts = (
        read_texts(connection, _roots(connection, artifact_id, run_id), sorted(numbers)) if numbers else {}
    )
    checked = checked_quotations(*before)
    return CitationCheck(pages=list(pages), sources=list(sources), texts=texts, checked=checked)


def _read_in(connection: Connection, artifact_id: str, run_id: str | None) -> dict[int, CitedSource]:
    found = read_sources(connection, _roots(connection, artifact_id, run_id))
    return {one.number: CitedSource(number=one.number, address=one.address, title=one.title) for one in found}


def _roots(connection: Connection, artifact_id: str, run_id: str | None) -> list[str]:
    """The runs at the top of the trees that wrote in the artifact."""
    query = select(_versions.c.run_id).where(
        _versions.c.artifact_id == artifact_id, _versions.c.run_id.is_not(None)
    )
    written = [str(one) for one in connection.scalars(query.distinct())]
    return roots_of(connection, [*written, *([] if run_id is None else [run_id])])
