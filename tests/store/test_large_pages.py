"""Pages of large messages stay within the size of an answer, and report how many messages they leave out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sample_user import add_user
from sqlalchemy import insert

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.lists import MAX_PAGE_MIB, Messages, message_page, messages_before
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.errors import NotFound, TooLarge
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.models import ProviderRow
from luxx.wire.message import UserContent
from luxx.wire.tool import CommandPermission

assert ProviderRow.__tablename__ == "llm_providers"  # conversations point at it

ANN = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id=""
)
MIB = 1024 * 1024


class ConversationDatabase:
    """Creates conversations whose messages have these sizes in MiB, oldest first."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.write_now(add_user)

    def conversation(self, *sizes: float) -> str:
        conversation_id, now = new_id(), utc_now()

        def work(session: Any) -> None:
            row = {"id": conversation_id, "user_id": 1, "title": "t", "created_at": now, "updated_at": now}
            session.execute(insert(ConversationRow).values(**row))
            for size in sizes:
                content = msgspec.json.encode(UserContent(text="x" * int(size * MIB))).decode()
                session.execute(
                    insert(MessageRow).values(
                        id=new_id(), user_id=1, conversation_id=conversation_id, role="user", content=content,
                        created_at=now,
                    )
                )  # fmt: skip

        self.store.write_now(work)
        return conversation_id

    def page(self, conversation: str, page: int, page_size: int) -> Messages:
        return self.store.read_now(
            lambda session: message_page(
                session.connection(), ANN, conversation, page=page, page_size=page_size
            )
        )

    def before(self, conversation: str, limit: int, before: str | None = None) -> Messages:
        return self.store.read_now(
            lambda session: messages_before(
                session.connection(), ANN, conversation, limit=limit, before=before
            )
        )

    def walk(self, conversation: str, limit: int) -> list[list[str]]:
        """The ids of all messages, read by a client that continues after the last message of each list."""
        lists: list[list[str]] = []
        before: str | None = None
        while not lists or before is not None:
            listed = self.before(conversation, limit, before)
            lists.append([message.id for message in listed.items])
            before = lists[-1][-1] if listed.has_more else None
        return lists


@pytest.fixture
def database(ready_url: str, tmp_path: Path) -> Iterator[ConversationDatabase]:
    engine = open_engine(resolve_url(ready_url, tmp_path))
    store = Store(engine)
    yield ConversationDatabase(store)
    store.close()


def test_a_list_before_a_message_ends_early_and_skips_nothing(
    database: ConversationDatabase,
) -> None:
    conversation = database.conversation(0.001, *[5] * 13, 0.001)
    lists = database.walk(conversation, 100)
    assert [len(ids) for ids in lists] == [7, 6, 2]  # 32 MiB have space for six of them and the small ones
    listed = [id_ for ids in lists for id_ in ids]
    assert listed == sorted(set(listed), reverse=True)
    assert database.before(conversation, 100).total == 15


def test_a_page_is_complete_or_refused(database: ConversationDatabase) -> None:
    conversation = database.conversation(*[5] * 13)
    with pytest.raises(TooLarge, match=f"{MAX_PAGE_MIB} MiB") as refused:
        database.page(conversation, 1, 7)
    assert refused.value.kind == "page_too_large"
    pages = [database.page(conversation, page, 6) for page in (1, 2, 3)]
    assert [(len(page.items), page.total, page.has_more) for page in pages] == [
        (6, 13, True), (6, 13, True), (1, 13, False),
    ]  # fmt: skip


def test_a_message_larger_than_the_limit_is_a_list_of_its_own(database: ConversationDatabase) -> None:
    conversation = database.conversation(1, MAX_PAGE_MIB + 1, 1)
    assert [len(ids) for ids in database.walk(conversation, 10)] == [1, 1, 1]
    assert len(database.page(conversation, 2, 1).items) == 1


def test_small_messages_are_listed_by_page_size(database: ConversationDatabase) -> None:
    conversation = database.conversation(*[0.001] * 5)
    assert [len(ids) for ids in database.walk(conversation, 2)] == [2, 2, 1]
    assert [len(ids) for ids in database.walk(conversation, 5)] == [5]
    assert [len(database.page(conversation, page, 2).items) for page in (1, 2, 3, 4)] == [2, 2, 1, 0]
    assert [database.page(conversation, page, 2).has_more for page in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]
    assert database.before(database.conversation(), 5) == Messages(items=[], total=0, has_more=False)
    oldest = database.walk(conversation, 5)[0][-1]
    assert database.before(conversation, 5, oldest) == Messages(items=[], total=5, has_more=False)
    with pytest.raises(NotFound):
        database.before(new_id(), 5)
