"""Conversations of thousands of messages in one chain: read and deleted as a whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import func, insert, select, update

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.queries import AGENTS, default_agent_id
from luxx.domain.context.messages import read_path
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.service import ConversationService
from luxx.domain.conversations.views import ConversationChange
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.models import ProviderRow
from luxx.runs.service import delete_runs, delete_runs_of
from luxx.wire.tool import CommandPermission

LONG = 3000
assert ProviderRow.__tablename__ == "llm_providers"  # conversations point at it
ANN = Caller(
    user_id=1,
    tenant_id=1,
    username="ann",
    permission_level=CommandPermission.READ_ONLY,
    sign_in_id="",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(resolve_url("sqlite:///./t.db", tmp_path))
    make_ready(engine)
    store = Store(engine)
    store.write_now(add_user)
    yield store
    store.close()


async def nothing(*_ignored: object) -> None:
    """No provider is named and nothing runs in these conversations."""


def service(store: Store) -> ConversationService:
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


def chain(store: Store, conversation_id: str) -> list[str]:
    """Creates LONG messages, each the child of the one before; the last is the selected leaf. Returns their
    ids."""
    ids = [new_id() for _ in range(LONG)]
    rows = [
        {
            "id": id_, "user_id": 1, "conversation_id": conversation_id, "parent_id": parent, "role": "user",
            "content": '{"text":"hello"}', "created_at": utc_now(),
        }
        for id_, parent in zip(ids, [None, *ids], strict=False)
    ]  # fmt: skip

    def fill(session: Any) -> None:
        session.execute(insert(MessageRow), rows)
        session.execute(
            update(ConversationRow)
            .where(ConversationRow.id == conversation_id)
            .values(selected_leaf_id=ids[-1])
        )

    store.write_now(fill)
    return ids


def count(store: Store) -> int:
    return store.read_now(lambda session: session.scalar(select(func.count()).select_from(MessageRow))) or 0


async def test_deleting_an_early_message_deletes_thousands_that_follow_it(store: Store) -> None:
    conversations = service(store)
    conversation = await conversations.create(ANN, ConversationChange())
    ids = chain(store, conversation.id)
    await conversations.delete_message(ANN, ids[2])
    assert count(store) == 2
    assert (await conversations.get(ANN, conversation.id)).selected_leaf_id == ids[1]


async def test_deleting_a_conversation_deletes_thousands_of_messages(store: Store) -> None:
    conversations = service(store)
    conversation = await conversations.create(ANN, ConversationChange())
    chain(store, conversation.id)
    await conversations.delete(ANN, conversation.id)
    assert count(store) == 0


async def test_the_path_to_the_leaf_is_read_completely(store: Store) -> None:
    conversation = await service(store).create(ANN, ConversationChange())
    ids = chain(store, conversation.id)
    assert len(store.read_now(lambda session: read_path(session.connection(), ids[-1]))) == LONG
