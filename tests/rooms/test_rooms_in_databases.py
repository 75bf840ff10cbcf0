"""Rooms on both databases: lists with members, seats, messages, copies, and what deletions leave."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from migrated_databases import prepare_at
from sample_user import add_user
from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session
from store.databases import new_database

from luxx.app.container import Services
from luxx.app.core_services import SUBJECT_READERS
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.agents.models import AgentRow
from luxx.domain.conversations.models import MessageRow, SearchTextRow
from luxx.domain.conversations.search import Search, SearchService
from luxx.features.rooms.forking import RoomForks
from luxx.features.rooms.members import MemberService
from luxx.features.rooms.messages import NewRoomMessage, add_message
from luxx.features.rooms.models import ChatRoomRow, NewMember, NewRoom, NewSeat, RoomAgentRow
from luxx.features.rooms.queries import read_seats
from luxx.features.rooms.seats import SeatService, copy_agent_to_seats
from luxx.features.rooms.service import RoomService
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.models import SubjectMemberRow
from luxx.runs.service import delete_runs
from luxx.runs.streams.sessions import SubjectHint
from luxx.wire.message import UserContent
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import MemberRight
from luxx.wire.tool import CommandPermission

assert Services  # Importing `Services` imports every table.
numbers = itertools.count()


def caller(user_id: int) -> Caller:
    return Caller(
        user_id=user_id, tenant_id=1, username="x", permission_level=CommandPermission.WRITE, sign_in_id="s"
    )


ANN, BEN = caller(1), caller(2)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path}/t.db"
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("postgresql"), f"rows{next(numbers)}")
    store = Store(open_engine(resolve_url(prepare_at(url), tmp_path)))

    def fill(session: Session) -> None:
        add_user(session)
        ann = {column.key: getattr(session.get_one(User, 1), column.key) for column in User.__table__.columns}
        session.execute(insert(User).values(ann | {"id": 2, "username": "ben", "username_key": "ben"}))

    store.write_now(fill)
    yield store
    store.close()


def all_known(*_: Any) -> dict[str, str]:
    return {}


def nothing_open(_user_id: int, _subject_id: str) -> None: ...


def ignored(_hint: SubjectHint) -> None: ...


async def no_run(_run_id: str) -> None:
    raise AssertionError("no room of these tests runs")


@pytest.fixture
def rooms(store: Store) -> RoomService:
    async def stop_run(_caller: Caller, _run_id: str) -> None:
        raise AssertionError("no room of these tests runs")

    seats = SeatService(store, unknown_names=all_known)
    return RoomService(store, seats, stop_run=stop_run, delete_runs=delete_runs, cancel_run=no_run)


def count(store: Store, row: Any) -> int:
    return store.read_now(lambda session: session.scalar(select(func.count()).select_from(row)) or 0)


@pytest.mark.anyio
async def test_a_room_lives_and_is_deleted_with_its_owner(store: Store, rooms: RoomService) -> None:
    new = NewRoom(title="t", task="t", agents=[NewSeat(name="A"), NewSeat(name="B")])
    room = await rooms.create(ANN, new)
    members = MemberService(store, on_ended=[nothing_open], cancel_run=no_run, notify=ignored)
    await members.add(ANN, room.id, NewMember(user_id=2, right=MemberRight.STEER))
    for person in (ANN, BEN):
        listed, total = await rooms.list_page(person, page=1, page_size=20)
        assert ([one.id for one in listed], total) == ([room.id], 1)
    for number in range(3):
        message = NewRoomMessage(content=UserContent(text=str(number)), sender_name="ann", seat_id=None)
        store.write_now(lambda session, m=message: add_message(session.connection(), room.id, 1, m))
    copy = await RoomForks(store, quota_mb=1).fork(ANN, room.id, None)
    found = await rooms.messages(ANN, copy.id, page=1, page_size=2, before=None, by_cursor=False)
    assert ([one.text for one in found.items], found.total) == (["2", "1"], 3)
    searches = SearchService(store, SUBJECT_READERS)
    hits = (await searches.find(ANN, Search(query='"2"'), page=1, page_size=9)).hits
    assert [(hit.room_id, hit.room_title) for hit in hits] == [(copy.id, "t"), (room.id, "t")]
    assert (await searches.find(BEN, Search(query='"2"'), page=1, page_size=9)).hits == []
    within = Search(query='"2"', room_id=room.id)
    assert (await searches.find(ANN, within, page=1, page_size=9)).total == 1
    assert (await rooms.reset(BEN, room.id)).current_round == 0
    assert count(store, MessageRow) == 3
    store.write_now(lambda session: session.execute(delete(User).where(User.id == 1)))
    tables = (ChatRoomRow, RoomAgentRow, MessageRow, SubjectMemberRow, SearchTextRow)
    assert [count(store, table) for table in tables] == [0, 0, 0, 0, 0]


@pytest.mark.anyio
async def test_seats_keep_the_values_of_an_agent_that_they_lose(store: Store, rooms: RoomService) -> None:
    now = utc_now()
    values = {"id": 5, "user_id": 1, "tenant_id": 1, "name": "G", "role": "leads", "color": "#000000",
              "memory": MemoryMode.OFF}  # fmt: skip
    store.write_now(
        lambda session: session.execute(insert(AgentRow).values(**values, created_at=now, updated_at=now))
    )
    room = await rooms.create(ANN, NewRoom(title="t", task="t", agents=[NewSeat(agent_id=5)]))

    def lose(session: Session) -> None:
        agent = session.get_one(AgentRow, 5)
        copy_agent_to_seats(session, agent, True)
        session.delete(agent)

    store.write_now(lose)
    (seat,) = (await rooms.get(ANN, room.id)).agents
    assert (seat.agent_id, seat.name, seat.role) == (None, "G", "leads")
    (read,) = store.read_now(lambda session: read_seats(session, session.get_one(ChatRoomRow, room.id)))
    assert read.settings.memory == MemoryMode.OFF
