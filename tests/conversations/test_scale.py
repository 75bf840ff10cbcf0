"""With a hundred thousand messages a user's requests cost as much as with a thousand."""

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from migrated_databases import make_ready
from msgspec.structs import replace
from sample_user import add_user
from seeding import TextGenerator, seed
from sqlalchemy import event, insert

from luxx.app.core_services import SUBJECT_READERS
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.agents.queries import AGENTS, default_agent_id
from luxx.domain.context.messages import read_path
from luxx.domain.conversations.lists import conversation_page, message_page, messages_before
from luxx.domain.conversations.search import Search, SearchSort, find
from luxx.domain.conversations.service import ConversationService
from luxx.features.rooms.models import ChatRoomRow
from luxx.features.rooms.service import index_room
from luxx.features.tasks.changes import add_task
from luxx.features.tasks.models import NewTask, NewTaskStep
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.search_words import SearchKind
from luxx.providers.models import ProviderRow
from luxx.runs.service import delete_runs, delete_runs_of
from luxx.wire.tool import CommandPermission

assert ProviderRow.__tablename__ == "llm_providers"  # conversations point at it

FEW, LONG, EACH = 1000, 1000, 50
"""Messages in the small database, in the long conversation of both, and in each other conversation."""

RARE_EVERY = 100
"""Only the long conversation has a rare word, so that a search for it finds the same number in both
databases."""

LISTED, DOOMED = 30, 6
TIMES_DEARER = 2.0
ROUNDS, CALLS = 12, 10
ANN = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id=""
)
BEN = replace(ANN, user_id=2, username="ben")
Look = Callable[[Any], Any]


class MessageDatabase:
    """A database with this many messages; half of those outside the long conversation belong to another
    user."""

    def __init__(self, folder: Path, messages: int) -> None:
        engine = open_engine(resolve_url("sqlite:///./t.db", folder))
        make_ready(engine)
        self.store = Store(engine)
        self.store.write_now(add_user)
        self.store.write_now(lambda session: session.execute(insert(User).values(_ben())) and None)
        many = (messages - FEW) // EACH // 2
        talk = TextGenerator()
        with engine.begin() as connection:
            seed(connection, talk, [EACH] * many, user_id=2)
            seed(connection, talk, [EACH] * many)
            (self.long,) = seed(connection, TextGenerator(rare_every=RARE_EVERY), [LONG])
            self.doomed = seed(connection, talk, [EACH] * DOOMED)
            seed(connection, talk, [0] * LISTED)
        for owner, count in ((ANN, LISTED), (BEN, many)):
            self.store.write_now(partial(_add_subjects, caller=owner, count=count))
        self.leaf = self.store.read_now(
            lambda session: (
                message_page(session.connection(), ANN, self.long, page=1, page_size=1).items[0].id
            )
        )

    def looks(self) -> dict[str, Look]:
        """The requests of a user, each as work of a session that returns something."""
        long, leaf = self.long, self.leaf

        def search(query: str, **more: Any) -> Look:
            wanted = Search(query=query, **more)
            return lambda session: find(session, ANN, wanted, SUBJECT_READERS, page=1, page_size=2).hits

        def page_of(size: int) -> Look:
            return lambda session: message_page(session.connection(), ANN, long, page=1, page_size=size).items

        def before(size: int) -> Look:
            return lambda session: (
                messages_before(session.connection(), ANN, long, limit=size, before=leaf).items
            )

        return {
            "conversations": lambda session: conversation_page(
                session.connection(), ANN, page=1, page_size=20
            )[0],
            "messages": page_of(20),
            "messages before": before(100),
            "path": lambda session: read_path(session.connection(), leaf),
            "a common word": search("common"),
            "a rare word": search("rare"),
            "two characters": search("学习"),
            "one character": search("学"),
            "a phrase": search('"common rare"'),
            "a beginning": search("rar*"),
            "two words in messages": search("common rare", kind=SearchKind.MESSAGE),
            "a common word in a conversation": search("common", conversation_id=long),
            "a word that is nowhere": search("nowhere"),
            "the newest": search("common rare", sort=SearchSort.NEWEST),
            "a room": search("common", kind=SearchKind.ROOM),
            "a task": search("common", kind=SearchKind.TASK),
        }

    def cost(self, look: Look) -> float:
        """CPU seconds of one request, measured over a few in a row."""
        begin = time.thread_time()
        for _ in range(CALLS):
            self.store.read_now(look)
        return (time.thread_time() - begin) / CALLS

    def cost_of_deleting(self) -> float:
        """CPU seconds of deleting a conversation of EACH messages, in all threads together."""
        conversations = ConversationService(
            self.store,
            check_provider=_nothing,
            stop_run=_nothing,
            delete_runs=delete_runs,
            delete_runs_of=delete_runs_of,
            temporary_minutes=60,
            use_agent=AGENTS.visible,
            default_agent=default_agent_id,
        )
        begin = time.process_time()
        asyncio.run(conversations.delete(ANN, self.doomed.pop()))
        return time.process_time() - begin

    def plans(self) -> dict[str, list[str]]:
        """SQLite's query plan for each statement of each request."""
        asked: list[tuple[str, Any]] = []

        def listen(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
            if statement.startswith(("SELECT", "WITH")):
                asked.append((statement, parameters))

        event.listen(self.store.reading, "before_cursor_execute", listen)
        plans: dict[str, list[str]] = {}
        for name, look in self.looks().items():
            asked.clear()
            self.store.read_now(look)
            plans[name] = [line for each in list(asked) for line in self._plan(*each)]
        event.remove(self.store.reading, "before_cursor_execute", listen)
        return plans

    def _plan(self, statement: str, parameters: Any) -> list[str]:
        with self.store.engine.connect() as connection:
            explained = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            return [row.detail for row in explained]


def _add_subjects(session: Any, *, caller: Caller, count: int) -> None:
    """Rooms and tasks."""
    now = utc_now()
    for number in range(count):
        new = NewTask(name=f"common {number}", goal="g", steps=[NewTaskStep(id="a", name="A")])
        add_task(session, caller, new)
        room = ChatRoomRow(
            id=new_id(), user_id=caller.user_id, tenant_id=1, title="common", task="t", max_rounds=1,
            policy="{}", created_at=now, updated_at=now,
        )  # fmt: skip
        session.add(room)
        session.flush()
        index_room(session, room)


def _ben() -> dict[str, Any]:
    names = {"username": "ben", "username_key": "ben", "password_hash": "x", "workspace_path": ""}
    rest = {"role": "user", "must_change_password": False, "permission_level": 1, "is_active": True}
    return {"id": 2, "tenant_id": 1, "created_at": utc_now(), **names, **rest}


async def _nothing(*_ignored: object) -> None:
    """No provider is named and nothing runs in these conversations."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[MessageDatabase]:
    database = MessageDatabase(tmp_path / "small", FEW)
    yield database
    database.store.close()


@pytest.fixture
def large(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageDatabase]:
    database = MessageDatabase(tmp_path / "large", request.param)
    yield database
    database.store.close()


SIZES = [pytest.param(10_000, id="short"), pytest.param(100_000, id="whole")]


@pytest.mark.long
@pytest.mark.parametrize("large", SIZES, indirect=True)
def test_requests_among_many_messages_cost_at_most_twice_as_much_as_among_few(
    small: MessageDatabase, large: MessageDatabase
) -> None:
    looks = {name: (look, large.looks()[name]) for name, look in small.looks().items()}
    for name, (few, many) in looks.items():
        assert bool(small.store.read_now(few)) == bool(large.store.read_now(many)), name
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):  # Alternately, so that a busy moment affects both; the minimum counts.
        for name, (few, many) in looks.items():
            before = best.get(name, (1e9, 1e9))
            best[name] = min(before[0], small.cost(few)), min(before[1], large.cost(many))
    best["deleting"] = tuple(  # type: ignore[assignment]
        min(database.cost_of_deleting() for _ in range(DOOMED)) for database in (small, large)
    )
    for name, (few, many) in best.items():
        print(f"{name}: {few * 1e6:.0f} µs among few, {many * 1e6:.0f} µs among many")
    assert {name: many / few for name, (few, many) in best.items() if many > few * TIMES_DEARER} == {}


def test_no_request_reads_a_whole_table(small: MessageDatabase) -> None:
    plans = small.plans()
    assert plans.keys() == small.looks().keys()
    for name, lines in plans.items():
        assert lines, name
        scans = [line for line in lines if line.startswith("SCAN") and "VIRTUAL TABLE" not in line]
        assert set(scans) <= {"SCAN path", "SCAN anon_1", "SCAN CONSTANT ROW", "SCAN found"}, (name, lines)
        assert not [line for line in lines if "AUTOMATIC" in line], (name, lines)
