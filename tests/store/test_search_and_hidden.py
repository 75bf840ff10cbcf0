"""Search while conversations are hidden, as during an import: hidden ones take no place in the results."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_user import add_user
from sqlalchemy import event, insert, update

from luxx.app.container import Services
from luxx.app.core_services import SUBJECT_READERS
from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search import MAX_HITS, Search, SearchResults, SearchService
from luxx.domain.conversations.search_index import index_messages, index_title
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.wire.tool import CommandPermission

assert Services  # Importing `Services` imports every table.

ANN = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id="s"
)


@pytest.fixture
def store(ready_url: str, tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(resolve_url(ready_url, tmp_path))
    store = Store(engine)
    store.write_now(add_user)
    yield store
    store.close()


def put(store: Store, titles: int, messages: int, *, import_id: str | None = None) -> None:
    """Conversations with the title tiger, and messages with that word in the last of them."""
    now = utc_now()

    def work(session: Any) -> None:
        connection = session.connection()
        for _ in range(titles):
            id_ = new_id()
            row = {"id": id_, "user_id": 1, "title": "tiger", "created_at": now, "updated_at": now}
            session.execute(insert(ConversationRow).values(row | {"tags": "[]", "import_id": import_id}))
            index_title(connection, user_id=1, conversation_id=id_, title="tiger")
        said = [
            {"id": new_id(), "user_id": 1, "conversation_id": id_, "created_at": now, "role": "user",
             "content": '{"text":"a tiger"}'}
            for _ in range(messages)
        ]  # fmt: skip
        session.execute(insert(MessageRow), said)
        index_messages(connection, said)

    store.write_now(work)


def find(store: Store) -> SearchResults:
    return asyncio.run(
        SearchService(store, SUBJECT_READERS).find(ANN, Search(query="tiger"), page=1, page_size=100)
    )


def test_hidden_conversations_are_neither_counted_nor_take_the_place_of_hits(store: Store) -> None:
    put(store, titles=2, messages=3)
    put(store, titles=3, messages=MAX_HITS + 500, import_id=new_id())
    put(store, titles=1, messages=1)
    results = find(store)
    assert (results.total, len(results.hits), results.has_more) == (3 + 4, 3 + 4, False)
    assert [hit.rank for hit in results.hits] == [1, 2, 3, 4, 5, 6, 7]
    store.write_now(lambda session: session.execute(update(ConversationRow).values(import_id=None)) and None)
    results = find(store)
    assert (results.total, results.has_more) == (MAX_HITS, True)


def test_hidden_conversations_are_read_from_an_index_and_hits_are_not_checked_if_there_are_none(
    store: Store,
) -> None:
    asked: list[tuple[str, Any]] = []

    def listen(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
        asked.append((statement, parameters))

    put(store, titles=1, messages=5)
    event.listen(store.reading, "before_cursor_execute", listen)
    assert find(store).total == 6
    assert not [statement for statement, _ in asked if "NOT EXISTS" in statement]
    asked.clear()
    event.remove(store.reading, "before_cursor_execute", listen)
    put(store, titles=1, messages=5, import_id=new_id())
    event.listen(store.reading, "before_cursor_execute", listen)
    assert find(store).total == 6
    event.remove(store.reading, "before_cursor_execute", listen)
    assert [statement for statement, _ in asked if "NOT EXISTS" in statement]
    if store.is_sqlite:
        scans = {line for line in plans(store, asked) if line.startswith("SCAN") and "VIRTUAL" not in line}
        assert scans <= {"SCAN CONSTANT ROW", "SCAN found"}


def plans(store: Store, asked: list[tuple[str, Any]]) -> list[str]:
    with store.engine.connect() as connection:
        return [
            row.detail
            for statement, parameters in list(asked)
            if statement.startswith("SELECT")
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
