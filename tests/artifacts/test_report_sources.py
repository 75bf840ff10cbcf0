"""Which sources the versions of a report keep: those of the runs that wrote in it, as long as it exists."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from migrated_databases import make_ready
from msgspec.structs import replace
from sample_user import add_user
from sqlalchemy import delete, insert
from sqlalchemy.orm import Session
from store.conftest import database_url

from luxx.features.artifacts.reports import read_check
from luxx.features.artifacts.rows import NewVersion, add_artifact, add_version, read_version
from luxx.features.artifacts.source import SourcePage
from luxx.features.artifacts.views import ArtifactSettings, AuthorKind, VersionAuthorRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.log.page_sources import numbered
from luxx.runs.models import RunRow
from luxx.wire.artifacts import ArtifactType
from luxx.wire.tool import ToolResult

__all__ = ["database_url"]


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(resolve_url(database_url, tmp_path))
    make_ready(engine)
    store = Store(engine)
    store.write_now(add_user)
    yield store
    store.close()


def add_run(store: Store, parent: str | None = None) -> str:
    run_id = new_id()

    def work(session: Session) -> None:
        session.execute(insert(RunRow).values(
            id=run_id, user_id=1, tenant_id=1, kind="chat", subject_id="s", parent_run_id=parent,
            request="{}", last_seq=0, fence=1, status="running", created_at=utc_now(),
        ))  # fmt: skip

    store.write_now(work)
    return run_id


async def read_pages(store: Store, run_id: str, *names: str) -> None:
    for name in names:
        url = f"https://{name}.example/"
        page = {
            "url": url, "title": name, "format": "text", "content_type": "text/html",
            "content": f"The page {name} says: bread rises.", "sources": [{"url": url}],
        }  # fmt: skip
        await numbered(store, run_id, ToolResult.ok(page))


def version(
    text: str, *, base: int, run_id: str | None = None, settings: ArtifactSettings | None = None
) -> NewVersion:
    return NewVersion(
        base=base,
        pages=[SourcePage(text)],
        settings=settings or ArtifactSettings(),
        author=VersionAuthorRow(kind=AuthorKind.MODEL, name="m", run_id=run_id, call_id=new_id()),
    )


def write(
    store: Store, artifact_id: str, new: NewVersion, type_: ArtifactType = ArtifactType.REPORT
) -> list[int]:
    """Writes a version and returns the numbers of the sources that it keeps."""

    def work(session: Session) -> list[int]:
        connection = session.connection()
        if new.base == 0:
            columns = {"id": artifact_id, "tenant_id": 1, "user_id": 1, "type": type_.value, "name": "r"}
            number = add_artifact(connection, columns, new)
        else:
            number = add_version(connection, artifact_id, type_, new, most=50)
        return [one.number for one in read_version(connection, artifact_id, number).settings.sources]

    return store.write_now(work)


async def test_a_report_keeps_the_sources_that_it_cites_when_the_run_is_deleted(store: Store) -> None:
    run_id, artifact_id = add_run(store), new_id()
    child = add_run(store, parent=run_id)
    await read_pages(store, run_id, "a", "b", "c")
    assert write(store, artifact_id, version("# R\n[S1] [S9]", base=0, run_id=child)) == [1]
    # A person may cite any page that was read for the report.
    assert write(store, artifact_id, version("# R\n[S3]", base=1)) == [1, 3]
    store.write_now(lambda session: session.execute(delete(RunRow)) and None)
    assert write(store, artifact_id, version("# R\n[S1] [S2] [S3]", base=2)) == [1, 3]


async def test_a_later_run_cites_its_own_pages_beside_those_of_the_report(store: Store) -> None:
    first, artifact_id = add_run(store), new_id()
    await read_pages(store, first, "a")
    assert write(store, artifact_id, version("# R\n[S1]", base=0, run_id=first)) == [1]
    later, stranger = add_run(store), add_run(store)
    await read_pages(store, later, "b")
    await read_pages(store, stranger, "c")
    assert write(store, artifact_id, version("# R\n[S1] [S2] [S3]", base=1, run_id=later)) == [1, 2]


async def test_other_types_keep_no_sources(store: Store) -> None:
    run_id, artifact_id = add_run(store), new_id()
    await read_pages(store, run_id, "a")
    new = version("# R\n[S1]", base=0, run_id=run_id)
    assert write(store, artifact_id, new, ArtifactType.DOCUMENT) == []


async def test_quotations_are_looked_for_in_the_pages_that_the_tree_read(store: Store) -> None:
    run_id, artifact_id = add_run(store), new_id()
    await read_pages(store, run_id, "a")
    right, wrong = '# R\n[S1 "bread rises"]', '# R\n[S1 "bread falls"] [S2]'
    write(store, artifact_id, version(right, base=0, run_id=run_id))

    def problems(text: str) -> list[str]:
        def work(session: Session) -> list[str]:
            connection = session.connection()
            stored = read_version(connection, artifact_id, 1)
            changed = replace(stored, number=2, pages=[SourcePage(text)])
            return [one.text for one in read_check(connection, changed).problems()]

        return store.read_now(work)

    assert problems(right) == []
    assert [text.split(" ", 2)[:2] for text in problems(wrong)] == [["Page", "S1"], ["[S2]", "is"]]
    store.write_now(lambda session: session.execute(delete(RunRow)) and None)
    assert problems(right) == []
    assert ["was deleted" in text for text in problems('# R\n[S1 "the page a says"]')] == [True]
