"""The numbers of the web pages that a run reads: one per address, whoever of the tree reads it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session
from store.conftest import database_url

from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.log.page_sources import (
    MAX_CHARACTERS,
    MOST_SOURCES,
    RunSourceRow,
    numbered,
    page_text,
    read_sources,
    read_texts,
)
from luxx.runs.models import RunRow
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


def add_run(store: Store, subject: str = "s") -> str:
    run_id = new_id()

    def work(session: Session) -> None:
        session.execute(insert(RunRow).values(
            id=run_id, user_id=1, tenant_id=1, kind="chat", subject_id=subject, request="{}", last_seq=0,
            fence=1, status="running", created_at=utc_now(),
        ))  # fmt: skip

    store.write_now(work)
    return run_id


def page(url: str, content: str = "Bread rises.") -> dict[str, Any]:
    return {
        "url": url, "title": "Bread", "format": "markdown", "content_type": "text/html", "content": content,
        "sources": [{"url": url, "title": "Bread", "domain": "bread.example", "snippet": content[:20]}],
    }  # fmt: skip


def batch(*urls: str) -> ToolResult:
    pages = [page(url) for url in urls]
    entries = [{"url": one["url"], "success": True, "data": {**one, "sources": []}} for one in pages]
    sources = [source for one in pages for source in one["sources"]]
    failed = {"url": "https://c.example/", "success": False, "error": "not found"}
    return ToolResult.ok({"results": [*entries, failed], "sources": sources})


async def test_pages_get_numbers_in_the_order_in_which_they_are_read_and_keep_them(store: Store) -> None:
    run_id = add_run(store)
    first = await numbered(store, run_id, ToolResult.ok(page("https://a.example/")))
    assert next(iter(first.data.items())) == ("source", "S1")
    both = await numbered(store, run_id, batch("https://b.example/", "https://a.example/"))
    assert [entry.get("data", {}).get("source") for entry in both.data["results"]] == ["S2", "S1", None]
    again = await numbered(store, run_id, ToolResult.ok(page("https://b.example/", "Another text.")))
    assert again.data["source"] == "S2"
    sources = await store.read_rows(lambda connection: read_sources(connection, [run_id]))
    assert [(one.number, one.address, one.title) for one in sources] == [
        (1, "https://a.example/", "Bread"), (2, "https://b.example/", "Bread"),
    ]  # fmt: skip
    texts = await store.read_rows(lambda connection: read_texts(connection, [run_id], [2]))
    assert {number: page_text(text) for number, text in texts.items()} == {2: "Bread rises."}


async def test_a_later_run_of_the_subject_goes_on_and_another_subject_begins_at_one(store: Store) -> None:
    first, later, other = add_run(store), add_run(store), add_run(store, "t")
    names = [
        (await numbered(store, run_id, ToolResult.ok(page("https://a.example/")))).data["source"]
        for run_id in (first, later, other)
    ]
    assert names == ["S1", "S2", "S1"]


async def test_subagents_that_read_at_the_same_time_get_different_numbers(store: Store) -> None:
    run_id = add_run(store)
    results = await asyncio.gather(
        *(
            numbered(store, run_id, batch(f"https://{index}.example/", "https://same.example/"))
            for index in range(8)
        )
    )
    names = [[entry["data"]["source"] for entry in one.data["results"][:2]] for one in results]
    assert sorted(int(own[1:]) for own, _ in names) != [1] * 8
    assert len({same for _, same in names}) == 1
    assert len({own for own, _ in names}) == 8


@pytest.mark.parametrize(
    "result",
    [
        ToolResult.ok(
            {"results": [{"url": "https://a.example/", "title": "listed by a search"}], "sources": []}
        ),
        ToolResult.ok("withheld by a hook"),
        ToolResult.ok({**page("https://a.example/"), "sources": []}),
        ToolResult.fail("no page"),
    ],
    ids=["search", "hook", "not citable", "failed"],
)
async def test_what_was_not_read_gets_no_number(store: Store, result: ToolResult) -> None:
    run_id = add_run(store)
    assert await numbered(store, run_id, result) == result
    assert await store.read_rows(lambda connection: read_sources(connection, [run_id])) == []


async def test_long_texts_are_cut_and_count_as_storage_of_the_run(store: Store) -> None:
    run_id = add_run(store)
    await numbered(store, run_id, ToolResult.ok(page("https://a.example/", "麦" * (MAX_CHARACTERS + 5))))

    def work(session: Session) -> tuple[int, int, int]:
        text = session.scalar(select(RunSourceRow.text).where(RunSourceRow.run_id == run_id)) or b""
        size = session.scalar(select(RunRow.stored_bytes).where(RunRow.id == run_id)) or 0
        return len(page_text(text)), len(text), size

    characters, size, counted = await store.read(work)
    assert characters == MAX_CHARACTERS
    assert counted == size > 0


async def test_a_run_numbers_a_bounded_number_of_pages(store: Store) -> None:
    run_id = add_run(store)
    rows = [
        {"run_id": run_id, "number": number, "subject_id": "s", "address": f"https://{number}.example/",
         "title": "", "text": b""}
        for number in range(1, MOST_SOURCES + 1)
    ]  # fmt: skip
    await store.write(lambda session: session.execute(insert(RunSourceRow), rows) and None)
    result = await numbered(store, run_id, ToolResult.ok(page("https://new.example/")))
    assert "source" not in result.data
    known = await numbered(store, run_id, ToolResult.ok(page("https://7.example/")))
    assert known.data["source"] == "S7"


async def test_the_sources_of_a_deleted_run_are_deleted(store: Store) -> None:
    run_id = add_run(store)
    await numbered(store, run_id, ToolResult.ok(page("https://a.example/")))
    await store.write(lambda session: session.execute(delete(RunRow).where(RunRow.id == run_id)) and None)
    count = select(func.count()).select_from(RunSourceRow)
    assert await store.read(lambda session: session.scalar(count)) == 0
    result = ToolResult.ok(page("https://a.example/"))
    assert await numbered(store, run_id, result) == result
