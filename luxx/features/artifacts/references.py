"""Which pages a report may cite: those that the runs read which write in it.

A version keeps the sources that its report cites or cited before, so that its references outlive the runs in
which the pages were read. The texts of the pages stay with the runs.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from luxx.features.artifacts.citations import (
    CitedSource,
    cited_sources,
)
from luxx.features.artifacts.models import ArtifactVersionRow
from luxx.infra.store.tables import table_of
from luxx.runs.log.page_sources import read_sources, roots_of

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


def _read_in(connection: Connection, artifact_id: str, run_id: str | None) -> dict[int, CitedSource]:
    found = read_sources(connection, roots_that_wrote(connection, artifact_id, run_id))
    return {one.number: CitedSource(number=one.number, address=one.address, title=one.title) for one in found}


def roots_that_wrote(connection: Connection, artifact_id: str, run_id: str | None) -> list[str]:
    """The runs at the top of the trees that wrote in the artifact."""
    query = select(_versions.c.run_id).where(
        _versions.c.artifact_id == artifact_id, _versions.c.run_id.is_not(None)
    )
    written = [str(one) for one in connection.scalars(query.distinct())]
    return roots_of(connection, [*written, *([] if run_id is None else [run_id])])
