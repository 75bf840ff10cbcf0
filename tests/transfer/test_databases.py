"""An import on SQLite and on PostgreSQL: hidden until it is whole, forgotten where it never becomes so."""

import asyncio
import base64
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from rows import add_user
from sqlalchemy import func, select
from store.conftest import database_url, postgresql

from luxx.accounts.caller import Caller
from luxx.clock import id_at, new_id
from luxx.config import FilesConfig
from luxx.conversations.images import MessageBlobRow
from luxx.conversations.models import ConversationRow, MessageRow
from luxx.errors import InvalidInput
from luxx.runs.admission import forget_runs
from luxx.store.engine import Store, open_engine, resolve_url
from luxx.store.migrate import migrate
from luxx.transfer.service import STALE_SECONDS, TransferService
from luxx.transfer.writing import stored_size, write_hidden
from luxx.wire.tool import CommandPermission
from transfer.files import sample

__all__ = ["database_url", "postgresql"]

ANN = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id="s"
)


@pytest.fixture
def house(database_url: str, tmp_path: Path) -> Iterator[tuple[Store, TransferService]]:
    engine = open_engine(resolve_url(database_url, tmp_path))
    migrate(engine)
    store = Store(engine)
    store.write_now(add_user)
    yield store, TransferService(store, tmp_path, FilesConfig(), forget_runs=forget_runs)
    store.close()


def counted(store: Store) -> tuple[int, int, int]:
    """Conversations that are there, those that are hidden, and messages."""

    def work(session: Any) -> tuple[int, int, int]:
        rows = select(func.count()).select_from(ConversationRow)
        there = session.scalar(rows.where(ConversationRow.import_id.is_(None)))
        hidden = session.scalar(rows.where(ConversationRow.import_id.is_not(None)))
        return there, hidden, session.scalar(select(func.count()).select_from(MessageRow))

    return store.read_now(work)


def ready(house: tuple[Store, TransferService], content: bytes) -> IO[bytes]:
    """The rows that the reading process makes of a file."""
    rows = io.BytesIO()
    service = house[1]

    async def read() -> None:
        with service._new_file() as file, service._new_file() as made:
            file.write(content)
            file.flush()
            await service._read(file, made)
            made.seek(0)
            rows.write(made.read())

    asyncio.run(read())
    rows.seek(0)
    return rows


def bring(house: tuple[Store, TransferService], content: bytes) -> Any:
    async def run() -> Any:
        async with house[1].upload(ANN) as file:
            file.write(content)
            file.flush()
            return await house[1].import_file(ANN, file)

    return asyncio.run(run())


def export(house: tuple[Store, TransferService], conversation_id: str) -> Any:
    async def run() -> bytes:
        download = await house[1].export_json(ANN, conversation_id)
        with download.file as file:
            return file.read()

    return json.loads(asyncio.run(run()))


def with_images(document: Any, *images: bytes) -> bytes:
    """The document with each of the images at a message of its own, in a circle."""
    asked = [message for message in document["messages"] if message["role"] == "user"]
    for place, message in enumerate(asked):
        data = base64.b64encode(images[place % len(images)]).decode()
        message["attachments"] = [{"name": "a.gif", "extension": "gif", "content": "", "data": data}]
    return json.dumps(document).encode()


def images_of(store: Store) -> list[bytes]:
    return sorted(store.read_now(lambda session: list(session.scalars(select(MessageBlobRow.data)))))


def test_an_import_is_there_when_it_is_whole(house: tuple[Store, TransferService]) -> None:
    report = bring(house, sample("chatgpt.json"))
    assert counted(house[0]) == (2, 0, 11)
    document = export(house, report.conversation_ids[0])
    assert len(document["messages"]) == 9
    assert bring(house, json.dumps(document).encode()).messages == 9
    with pytest.raises(InvalidInput):
        bring(house, sample("chatgpt.json")[:-9])
    assert counted(house[0]) == (3, 0, 20)


def test_images_come_in_go_out_and_count(house: tuple[Store, TransferService]) -> None:
    store, _ = house
    (first, _) = bring(house, sample("claude.json")).conversation_ids
    bare = store.read_now(lambda session: stored_size(session, 1))
    gif, jpeg = b"GIF89a" + b"g" * 400_000, b"\xff\xd8\xff" + b"j" * 500_000
    report = bring(house, with_images(export(house, first), gif, jpeg))
    assert report.lost == []
    held = images_of(store)
    assert set(held) == {gif, jpeg}
    assert store.read_now(lambda session: stored_size(session, 1)) > bare + sum(map(len, held))
    assert store.read_now(lambda session: stored_size(session, 2)) == 0
    again = export(house, report.conversation_ids[0])
    out = [file["data"] for message in again["messages"] for file in message["attachments"]]
    assert sorted(base64.b64decode(data) for data in out) == held


def test_images_of_an_import_that_fails_are_taken_back(house: tuple[Store, TransferService]) -> None:
    (first, _) = bring(house, sample("claude.json")).conversation_ids
    rows = ready(house, with_images(export(house, first), b"GIF89a" + b"g" * 400_000))
    with pytest.raises(Exception, match="required field"):
        house[1]._write(ANN, io.BytesIO(rows.read() + b'{"type":"message"}\n'))
    assert images_of(house[0]) == []
    assert counted(house[0]) == (2, 0, 8)


def test_what_was_never_revealed_is_deleted_at_the_start(house: tuple[Store, TransferService]) -> None:
    store, service = house
    bring(house, sample("claude.json"))
    long_ago = id_at(int((time.time() - 2 * STALE_SECONDS) * 1000), 0)
    write_hidden(store, 1, long_ago, ready(house, sample("chatgpt.json")))
    write_hidden(store, 1, new_id(), ready(house, sample("chatgpt.json")))
    assert counted(store) == (2, 4, 8 + 22)
    asyncio.run(service.open())
    # A server that shares its database cannot tell another's import in progress from a dead one.
    assert counted(store) == ((2, 0, 8) if store.is_sqlite else (2, 2, 8 + 11))


def test_an_import_that_fails_while_it_is_written_is_taken_back(
    house: tuple[Store, TransferService],
) -> None:
    bring(house, sample("claude.json"))
    rows = ready(house, sample("chatgpt.json"))
    content = rows.read() + b'{"type":"message"}\n'
    with pytest.raises(Exception, match="required field"):
        house[1]._write(ANN, io.BytesIO(content))
    assert counted(house[0]) == (2, 0, 8)
