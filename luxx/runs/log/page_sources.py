"""The numbers of the web pages that a run and its subagents read, with the texts: reports cite them as [S1].

The server numbers what `web_fetch` and `batch_fetch` returned, so that no model has to write an address. Only
runs that may write artifacts number pages.
"""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, ForeignKey, Index, LargeBinary, String, Text, func, insert, select, update
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Base, table_of
from luxx.runs.models import RunRow
from luxx.tools.builtin.web import pages_of
from luxx.wire.source import MAX_TITLE, MAX_URL
from luxx.wire.tool import ToolResult

MOST_SOURCES = 1000
"""Numbered pages of a run; later ones get no number."""
MAX_CHARACTERS = 200_000
"""Characters of a page that are kept, in which quotations are looked for."""


class RunSourceRow(Base):
    """A page that was read in the tree of `run_id`, a run without a run above it.

    `number` is unique in all runs of the subject that do not run at once, because an artifact may be written
    by several of them. `text`: the page as the tool returned it, compressed with zlib.
    """

    __tablename__ = "run_sources"
    __table_args__ = (Index("ix_run_sources_subject_id_number", "subject_id", "number"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    subject_id: Mapped[str] = mapped_column(String(36))
    address: Mapped[str] = mapped_column(Text)
    title: Mapped[str] = mapped_column(String(MAX_TITLE))
    text: Mapped[bytes] = mapped_column(LargeBinary)


class PageRead(msgspec.Struct, frozen=True, kw_only=True):
    """A page as a tool returned it: its address after redirects, at most MAX_URL characters, and its text."""

    address: str
    title: str
    text: str


class NumberedSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a report; `text` is read only where a quotation has to be found in it."""

    number: int
    address: str
    title: str


_runs, _sources = table_of(RunRow), table_of(RunSourceRow)


async def numbered(store: Store, run_id: str, result: ToolResult) -> ToolResult:
    """A result of `web_fetch` or `batch_fetch` with `source` in each page, any other one as it is.

    `run_id`: the run at the top of the tree.
    """
    found = pages_of(result)
    if not found:
        return result
    read = [PageRead(address=page.url, title=page.title, text=page.content) for page in found]
    stored = await asyncio.to_thread(_compressed, read)
    numbers = await store.write_rows(lambda connection: number_pages(connection, run_id, stored))
    return ToolResult.ok(_with_sources(result.data, numbers))


def _with_sources(data: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """A copy, because the cache keeps the data."""
    if "results" not in data:
        return _with_source(data, numbers)
    results = [
        {**entry, "data": _with_source(entry["data"], numbers)} if entry.get("data") else entry
        for entry in data["results"]
    ]
    return {**data, "results": results}


def _with_source(page: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """`source` comes first, because a long page is cut at its end."""
    number = numbers.get(page["url"])
    return page if number is None else {"source": f"S{number}", **page}


def _compressed(pages: Sequence[PageRead]) -> list[tuple[PageRead, bytes]]:
    """The pages with what is stored of their texts."""
    return [
        (page, zlib.compress(page.text[:MAX_CHARACTERS].encode("utf-8", "replace"), 1))
        for page in pages
        if 0 < len(page.address) <= MAX_URL
    ]


def number_pages(
    connection: Connection, run_id: str, pages: Sequence[tuple[PageRead, bytes]]
) -> dict[str, int]:
    """The number of each page's address; stores those that the run has not read before.

    `run_id`: the run at the top of the tree. Empty if it was deleted meanwhile.
    """
    # Runs of the tree may be driven by several processes, which give one number after the other.
    locked = select(_runs.c.subject_id).where(_runs.c.id == run_id).with_for_update()
    subject_id = connection.scalar(locked)
    if subject_id is None:
        return {}
    rows = connection.execute(
        select(_sources.c.address, _sources.c.number).where(_sources.c.run_id == run_id)
    )
    known = {row.address: row.number for row in rows}
    of_subject = select(func.max(_sources.c.number)).where(_sources.c.subject_id == subject_id)
    last = int(connection.scalar(of_subject) or 0)
    new: list[tuple[dict[str, object], int]] = []
    for page, text in pages:
        if page.address in known or len(known) >= MOST_SOURCES:
            continue
        known[page.address] = last = last + 1
        row: dict[str, object] = {
            "run_id": run_id, "number": last, "subject_id": subject_id, "address": page.address,
            "title": page.title[:MAX_TITLE].replace("\0", "\ufffd"), "text": text,
        }  # fmt: skip
        new.append((row, len(text)))
    if new:
        connection.execute(insert(_sources), [row for row, _ in new])
        size = sum(size for _, size in new)
        grown = update(_runs).where(_runs.c.id == run_id)
        connection.execute(grown.values(stored_bytes=_runs.c.stored_bytes + size))
    return {page.address: known[page.address] for page, _ in pages if page.address in known}


def roots_of(connection: Connection, run_ids: Sequence[str]) -> list[str]:
    """The runs at the top of the trees of these runs, without those that were deleted."""
    above = select(_runs.c.id, _runs.c.parent_run_id).where(_runs.c.id.in_(run_ids)).cte(recursive=True)
    parents = _runs.alias()
    tree = above.union(
        select(parents.c.id, parents.c.parent_run_id).join(above, parents.c.id == above.c.parent_run_id)
    )
    return list(connection.scalars(select(tree.c.id).where(tree.c.parent_run_id.is_(None))))


def read_sources(connection: Connection, run_ids: Sequence[str]) -> list[NumberedSource]:
    """The sources of these runs, each at the top of its tree, by number."""
    query = select(_sources.c.number, _sources.c.address, _sources.c.title)
    rows = connection.execute(query.where(_sources.c.run_id.in_(run_ids)).order_by(_sources.c.number))
    return [NumberedSource(number=row.number, address=row.address, title=row.title) for row in rows]


def read_texts(connection: Connection, run_ids: Sequence[str], numbers: Sequence[int]) -> dict[int, bytes]:
    """What is stored of the texts of these sources, by number; `page_text` reads one."""
    query = select(_sources.c.number, _sources.c.text)
    rows = connection.execute(query.where(_sources.c.run_id.in_(run_ids), _sources.c.number.in_(numbers)))
    return {row.number: row.text for row in rows}


def page_text(stored: bytes) -> str:
    """The text of a page as `read_texts` returns it."""
    return zlib.decompress(stored).decode("utf-8", "replace")
