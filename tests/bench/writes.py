"""How many messages a second eight threads store on SQLite, in a process of its own; prints JSON.

A transaction stores a user message and moves its conversation to the top of the list. The second figure
includes the search index, as for a message that a user sends. The garbage collector runs as rarely as in a
server.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from sqlalchemy import Connection, bindparam, insert

from luxx.app.startup import tune_gc
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search_index import index_message
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.migrate import migrate
from luxx.infra.store.tables import table_of
from luxx.wire.message import UserContent
from tests.bench.processes import server_core
from tests.sample_user import add_user
from tests.seeding import TextGenerator, seed

THREADS = 8
EACH = 1500

_messages, _conversations = table_of(MessageRow), table_of(ConversationRow)
_insert = insert(_messages)
_touch = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"))
    .values(updated_at=bindparam("now"), selected_leaf_id=bindparam("leaf"))
)
_encode = msgspec.json.Encoder().encode


def main() -> None:
    core = server_core()
    if core is not None:
        os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory(prefix="luxx-bench-writes-") as folder:
        engine = open_engine(resolve_url("sqlite:///writes.db", Path(folder)))
        migrate(engine)
        store = Store(engine)
        store.write_now(add_user)
        with engine.begin() as connection:
            conversations = seed(connection, TextGenerator(), [1] * THREADS)
        tune_gc()
        bare, bare_latencies = _measure(store, conversations, _nothing)
        per_second, latencies = _measure(store, conversations, index_message)
        store.close()
        engine.dispose()
    measured = {
        "bare_per_second": bare,
        "bare_p99_ms": _p99(bare_latencies),
        "per_second": per_second,
        "p99_ms": _p99(latencies),
    }
    print(json.dumps(measured))


def _p99(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98] * 1e3


def _nothing(_connection: Connection, _message: dict[str, object]) -> None:
    return


def _measure(
    store: Store, conversations: list[str], index: Callable[[Connection, dict[str, object]], None]
) -> tuple[float, list[float]]:
    """Transactions a second, and the seconds of each. Each thread waits for its own ones."""
    latencies: list[float] = []
    talk = TextGenerator()
    said = [_encode(UserContent(text=talk.words(12))).decode() for _ in range(EACH)]

    def work(conversation_id: str) -> None:
        for content in said:
            begin = time.perf_counter()
            message = {
                "id": new_id(), "user_id": 1, "conversation_id": conversation_id, "role": "user",
                "content": content, "created_at": utc_now(),
            }  # fmt: skip

            def write(connection: Connection, message: dict[str, object] = message) -> None:
                connection.execute(_insert, message)
                index(connection, message)
                connection.execute(
                    _touch, {"b_id": conversation_id, "now": message["created_at"], "leaf": message["id"]}
                )

            store.write_rows_now(write)
            latencies.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=work, args=(each,)) for each in conversations]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return THREADS * EACH / (time.perf_counter() - begin), latencies


if __name__ == "__main__":
    sys.exit(main())
