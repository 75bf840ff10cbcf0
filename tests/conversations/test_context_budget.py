"""The size of a user's messages for the quota: text, replay notes and images, of this user only."""

from pathlib import Path

from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import insert
from sqlalchemy.orm import Session

from luxx.domain.accounts.models import User
from luxx.domain.conversations.images import MessageBlobRow, message_sizes, stored_size
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.models import ProviderRow

# Importing these declares the tables that the foreign keys of conversations name.
assert ProviderRow.__tablename__ == "llm_providers"
assert User.__tablename__ == "users"


def test_replay_and_images_count(tmp_path: Path) -> None:
    engine = open_engine(resolve_url("sqlite:///./t.db", tmp_path))
    make_ready(engine)
    store = Store(engine)
    store.write_now(add_user)
    conversation, first, second = new_id(), new_id(), new_id()
    now = utc_now()

    def add_conversation(session: Session) -> None:
        session.execute(
            insert(ConversationRow).values(
                id=conversation, user_id=1, title="t", created_at=now, updated_at=now
            )
        )
        for id_, role, replay in ((first, "user", None), (second, "assistant", "[" + " " * 998 + "]")):
            session.execute(
                insert(MessageRow).values(
                    id=id_, user_id=1, conversation_id=conversation, role=role, content="x" * 100,
                    replay=replay, created_at=now,
                )
            )  # fmt: skip
        for _ in range(2):
            session.execute(
                insert(MessageBlobRow).values(
                    id=new_id(), message_id=first, media_type="image/png", data=b"\0" * 5000
                )
            )

    store.write_now(add_conversation)
    # Two texts of 100, a replay note of 1000 and two images of 5000 bytes.
    assert store.read_now(lambda session: stored_size(session, 1)) == 200 + 1000 + 10_000
    assert store.read_now(lambda session: stored_size(session, 2)) == 0
    sizes = store.read_now(lambda session: message_sizes(session, [first, second]))
    assert sizes == {first: 10_100, second: 1_100}
    store.close()
