"""All statements of one read see one state of the database, at no extra query."""

import tempfile
from typing import Any

from sqlalchemy import insert, select, text

from luxx.infra.store.engine import Store
from store.databases import notes, values


def add(store: Store, said: str) -> None:
    store.write_now(lambda session: session.execute(insert(notes).values(text=said)) and None)


def test_a_read_does_not_see_writes_that_happen_during_it(store: Store) -> None:
    add(store, "before")

    def read(session: Any) -> list[list[str]]:
        first = values(session.execute(select(notes.c.text)))
        add(store, "meanwhile")
        return [first, values(session.execute(select(notes.c.text)))]

    assert store.read_now(read) == [["before"], ["before"]]
    assert store.read_now(lambda session: values(session.execute(select(notes.c.text)))) == [
        "before",
        "meanwhile",
    ]


def test_only_reads_are_repeatable_on_postgresql_and_send_no_extra_statement(store: Store) -> None:
    if store.is_sqlite:
        return
    shown = text("SHOW transaction_isolation")

    def isolation(session: Any) -> str:
        return str(session.scalar(shown))

    for _ in range(2):  # The connections are reused: what a read sets must not stay with them.
        assert store.read_now(isolation) == "repeatable read"
        assert store.write_now(isolation) == "read committed"
    assert count_statements(store, reading=True) == count_statements(store, reading=False) == 2


def count_statements(store: Store, *, reading: bool) -> int:
    """The number of statements that the server receives until the first one of a transaction is answered."""

    def work(session: Any) -> int:
        connection = session.connection().connection.driver_connection
        with tempfile.TemporaryFile() as log:
            connection.pgconn.trace(log.fileno())
            session.execute(text("SELECT 1"))
            connection.pgconn.untrace()
            log.seek(0)
            return sum(line.split(b"\t")[1:2] == [b"F"] for line in log)

    return store.read_now(work) if reading else store.write_now(work)
