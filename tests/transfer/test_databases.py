"""Imports on SQLite and PostgreSQL: hidden until they are complete, deleted if they never are."""

import asyncio
import base64
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from files.sample_files import GIF, JPEG
from sample_user import add_user
from sqlalchemy import func, insert, select
from store.conftest import ready_url

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.queries import AGENTS, default_agent_id
from luxx.domain.conversations.access import DELETE_ROWS, read_path_ids
from luxx.domain.conversations.branches import BranchService
from luxx.domain.conversations.images import MessageBlobRow, stored_size
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.service import ConversationService
from luxx.domain.transfer.service import STALE_SECONDS, TransferService, write_hidden
from luxx.errors import Conflict, InvalidInput
from luxx.infra.clock import id_at, new_id, utc_now
from luxx.infra.config.schema import FilesConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.models import ProviderRow
from luxx.runs.models import RunRow
from luxx.runs.service import RUNS_AT_ONCE, delete_runs, delete_runs_of
from luxx.wire.tool import CommandPermission
from transfer.imports import sample

assert ProviderRow.__tablename__ == "llm_providers"  # conversations point at it

__all__ = ["ready_url"]

ANN = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id="s"
)


@pytest.fixture
def store_and_service(ready_url: str, tmp_path: Path) -> Iterator[tuple[Store, TransferService]]:
    engine = open_engine(resolve_url(ready_url, tmp_path))
    store = Store(engine)
    store.write_now(add_user)
    yield store, TransferService(store, tmp_path, FilesConfig(), delete_runs=delete_runs)
    store.close()


def row_counts(store: Store) -> tuple[int, int, int]:
    """The numbers of visible conversations, hidden conversations and messages."""

    def work(session: Any) -> tuple[int, int, int]:
        rows = select(func.count()).select_from(ConversationRow)
        there = session.scalar(rows.where(ConversationRow.import_id.is_(None)))
        hidden = session.scalar(rows.where(ConversationRow.import_id.is_not(None)))
        return there, hidden, session.scalar(select(func.count()).select_from(MessageRow))

    return store.read_now(work)


def read_rows(store_and_service: tuple[Store, TransferService], content: bytes) -> IO[bytes]:
    """The rows that the reading process makes of a file."""
    rows = io.BytesIO()
    service = store_and_service[1]

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


def import_data(store_and_service: tuple[Store, TransferService], content: bytes) -> Any:
    async def run() -> Any:
        async with store_and_service[1].upload(ANN) as file:
            file.write(content)
            file.flush()
            return await store_and_service[1].import_file(ANN, file)

    return asyncio.run(run())


def export(store_and_service: tuple[Store, TransferService], conversation_id: str) -> Any:
    async def run() -> bytes:
        download = await store_and_service[1].export_json(ANN, conversation_id)
        data = download.file.read()
        download.close()
        return data

    return json.loads(asyncio.run(run()))


def with_images(document: Any, *images: bytes) -> bytes:
    """The document with each image at a message of its own, in turn."""
    user_messages = [message for message in document["messages"] if message["role"] == "user"]
    for position, message in enumerate(user_messages):
        data = base64.b64encode(images[position % len(images)]).decode()
        message["attachments"] = [{"name": "a.gif", "extension": "gif", "content": "", "data": data}]
    return json.dumps(document).encode()


def images_of(store: Store) -> list[bytes]:
    return sorted(store.read_now(lambda session: list(session.scalars(select(MessageBlobRow.data)))))


def test_an_import_is_visible_when_it_is_complete(store_and_service: tuple[Store, TransferService]) -> None:
    report = import_data(store_and_service, sample("chatgpt.json"))
    assert row_counts(store_and_service[0]) == (2, 0, 11)
    document = export(store_and_service, report.conversation_ids[0])
    assert len(document["messages"]) == 9
    assert import_data(store_and_service, json.dumps(document).encode()).messages == 9
    with pytest.raises(InvalidInput):
        import_data(store_and_service, sample("chatgpt.json")[:-9])
    assert row_counts(store_and_service[0]) == (3, 0, 20)


def test_images_are_imported_exported_and_counted(store_and_service: tuple[Store, TransferService]) -> None:
    store, _ = store_and_service
    (first, _) = import_data(store_and_service, sample("claude.json")).conversation_ids
    bare = store.read_now(lambda session: stored_size(session, 1))
    gif, jpeg = GIF + b"g" * 400_000, JPEG + b"j" * 500_000
    report = import_data(store_and_service, with_images(export(store_and_service, first), gif, jpeg))
    assert report.lost == []
    stored_images = images_of(store)
    assert set(stored_images) == {gif, jpeg}
    assert store.read_now(lambda session: stored_size(session, 1)) > bare + sum(map(len, stored_images))
    assert store.read_now(lambda session: stored_size(session, 2)) == 0
    again = export(store_and_service, report.conversation_ids[0])
    out = [file["data"] for message in again["messages"] for file in message["attachments"]]
    assert sorted(base64.b64decode(data) for data in out) == stored_images


def test_images_of_a_failed_import_are_deleted(store_and_service: tuple[Store, TransferService]) -> None:
    (first, _) = import_data(store_and_service, sample("claude.json")).conversation_ids
    rows = read_rows(store_and_service, with_images(export(store_and_service, first), GIF + b"g" * 400_000))
    with pytest.raises(Exception, match="required field"):
        store_and_service[1]._write(ANN, io.BytesIO(rows.read() + b'{"type":"message"}\n'))
    assert images_of(store_and_service[0]) == []
    assert row_counts(store_and_service[0]) == (2, 0, 8)


def test_hidden_conversations_of_old_imports_are_deleted_at_start_up(
    store_and_service: tuple[Store, TransferService],
) -> None:
    store, service = store_and_service
    import_data(store_and_service, sample("claude.json"))
    long_ago = id_at(int((time.time() - 2 * STALE_SECONDS) * 1000), 0)
    write_hidden(store, 1, long_ago, read_rows(store_and_service, sample("chatgpt.json")))
    write_hidden(store, 1, new_id(), read_rows(store_and_service, sample("chatgpt.json")))
    assert row_counts(store) == (2, 4, 8 + 22)
    asyncio.run(service.open())
    # A server that shares its database cannot tell another's import in progress from a dead one.
    assert row_counts(store) == ((2, 0, 8) if store.is_sqlite else (2, 2, 8 + 11))


def test_an_import_that_fails_during_its_writes_is_deleted(
    store_and_service: tuple[Store, TransferService],
) -> None:
    import_data(store_and_service, sample("claude.json"))
    rows = read_rows(store_and_service, sample("chatgpt.json"))
    content = rows.read() + b'{"type":"message"}\n'
    with pytest.raises(Exception, match="required field"):
        store_and_service[1]._write(ANN, io.BytesIO(content))
    assert row_counts(store_and_service[0]) == (2, 0, 8)


def conversation_with_runs(store: Store, runs: int, *, import_id: str | None = None, **last: Any) -> str:
    """A conversation with this many ended runs; `last` are other columns of the last run."""
    id_, now = new_id(), utc_now()

    def work(session: Any) -> None:
        session.add(
            ConversationRow(id=id_, user_id=1, title="t", import_id=import_id, created_at=now, updated_at=now)
        )
        for number in range(runs):
            given = {"status": "completed"} | (last if number == runs - 1 else {})
            session.add(
                RunRow(
                    id=new_id(), user_id=1, tenant_id=1, kind="chat", subject_id=id_, request="{}",
                    created_at=now, **given,
                )
            )  # fmt: skip

    store.write_now(work)
    return id_


def runs_of(store: Store, conversation_id: str) -> int:
    runs = select(func.count()).select_from(RunRow).where(RunRow.subject_id == conversation_id)
    return int(store.read_now(lambda session: session.scalar(runs)) or 0)


def test_runs_are_deleted_in_small_batches(store_and_service: tuple[Store, TransferService]) -> None:
    store = store_and_service[0]
    id_ = conversation_with_runs(store, 2 * RUNS_AT_ONCE + 1)
    left: list[tuple[bool, int]] = []
    for _ in range(3):
        may_be_more = store.write_now(lambda session: delete_runs(session, id_))
        left.append((may_be_more, runs_of(store, id_)))
    assert left == [(True, RUNS_AT_ONCE + 1), (True, 1), (False, 0)]


def test_no_run_is_deleted_while_one_has_not_ended(store_and_service: tuple[Store, TransferService]) -> None:
    store = store_and_service[0]
    for status in ("queued", "running", "waiting", "paused"):
        id_ = conversation_with_runs(store, RUNS_AT_ONCE + 5, status=status)
        with pytest.raises(Conflict):
            store.write_now(lambda session, id_=id_: delete_runs(session, id_))
        assert runs_of(store, id_) == RUNS_AT_ONCE + 5


async def test_an_interrupted_deletion_is_finished_at_start_up(
    store_and_service: tuple[Store, TransferService],
) -> None:
    store, service = store_and_service
    long_ago = id_at(int((time.time() - 2 * STALE_SECONDS) * 1000), 0)
    other_conversation = conversation_with_runs(store, 3)
    doomed = conversation_with_runs(store, RUNS_AT_ONCE + 5, import_id=long_ago)
    await service.open()
    assert (runs_of(store, other_conversation), runs_of(store, doomed)) == (3, 0)
    assert row_counts(store) == (1, 0, 0)


def store_chain(store: Store, conversation_id: str, ids: list[str]) -> None:
    """A chain of messages under these ids, in this order."""
    rows = [
        {
            "id": id_, "user_id": 1, "conversation_id": conversation_id, "parent_id": parent, "role": "user",
            "content": '{"text":"x"}', "created_at": utc_now(),
        }
        for id_, parent in zip(ids, [None, *ids], strict=False)
    ]  # fmt: skip
    store.write_now(lambda session: session.execute(insert(MessageRow), rows) and None)


def long_service(store: Store) -> ConversationService:
    async def nothing(*_: Any) -> None:
        return None

    return ConversationService(
        store,
        check_provider=nothing,
        stop_run=nothing,
        delete_runs=delete_runs,
        delete_runs_of=delete_runs_of,
        temporary_minutes=60,
        use_agent=AGENTS.visible,
        default_agent=default_agent_id,
    )


async def test_long_conversations_are_forked_and_deleted(
    store_and_service: tuple[Store, TransferService],
) -> None:
    store = store_and_service[0]
    # The clock was set back once: the second half has lower ids than its predecessors.
    ids = [id_at(2_000_000 + number, 0) for number in range(DELETE_ROWS)]
    ids += [id_at(1_000_000 + number, 0) for number in range(DELETE_ROWS)]
    source = conversation_with_runs(store, RUNS_AT_ONCE + 1)
    store_chain(store, source, ids)
    branches = BranchService(store, quota_mb=1, delete_runs=delete_runs)
    forked = await branches.fork(ANN, source, ids[-1])
    assert row_counts(store) == (2, 0, 4 * DELETE_ROWS)
    path = store.read_now(lambda session: read_path_ids(session.connection(), forked.selected_leaf_id or ""))
    assert len(path) == 2 * DELETE_ROWS
    await long_service(store).delete(ANN, source)
    assert row_counts(store) == (1, 0, 2 * DELETE_ROWS)
    assert runs_of(store, source) == 0
