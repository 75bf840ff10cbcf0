"""All statements of one read see one state, whatever is written in between, and it costs no question more."""

import tempfile
from typing import Any

from sqlalchemy import insert, select, text

from luxx.infra.store.engine import Store
from store.databases import notes, values


def add(store: Store, said: str) -> None:
    store.write_now(lambda session: session.execute(insert(notes).values(text=said)) and None)


def test_a_read_sees_nothing_of_what_is_written_while_it_reads(store: Store) -> None:
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


def test_on_postgresql_only_reads_are_so_and_they_ask_nothing_more_than_others(store: Store) -> None:
    if store.is_sqlite:
        return
    shown = text("SHOW transaction_isolation")

    def isolation(session: Any) -> str:
        return str(session.scalar(shown))

    for _ in range(2):  # The connections are the same: what a read sets must not stay with them.
        assert store.read_now(isolation) == "repeatable read"
        assert store.write_now(isolation) == "read committed"
    assert questions(store, reading=True) == questions(store, reading=False) == 2


def questions(store: Store, *, reading: bool) -> int:
    """Statements that the server is sent by the time a transaction's first one is answered."""

    def work(session: Any) -> int:
        connection = session.connection().connection.driver_connection
        with tempfile.TemporaryFile() as log:
            connection.pgconn.trace(log.fileno())
            session.execute(text("SELECT 1"))
            connection.pgconn.untrace()
            log.seek(0)
            return sum(line.split(b"\t")[1:2] == [b"F"] for line in log)

    return store.read_now(work) if reading else store.write_now(work)
