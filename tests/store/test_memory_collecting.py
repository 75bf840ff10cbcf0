"""Which messages become episodes, on both databases: those of users who turned extraction on, but for what
was written where memory was off."""

from functools import partial
from pathlib import Path

from provider_service.services import ANN
from sqlalchemy import Connection, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.models import UserSettings
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.features.memory.extraction import ingestion
from luxx.features.memory.extraction.episodes import SOURCE_CONVERSATION, CollectedSubject, collect_episodes
from luxx.features.memory.models import EpisodeMessageRow
from luxx.features.memory.scopes import USER_SCOPE, stored_scope, visible_scopes
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.wire.model_settings import Extraction, MemoryMode
from store.test_memory import fill

CONVERSATION = new_id()


def add_message(
    session: Session, message_id: str, memory: MemoryMode | None, role: str, parent: str | None
) -> None:
    """Adds a message while the conversation has this mode of memory."""
    session.execute(update(ConversationRow).where(ConversationRow.id == CONVERSATION).values(memory=memory))
    session.add(
        MessageRow(
            id=message_id, user_id=ANN.user_id, conversation_id=CONVERSATION, role=role, parent_id=parent,
            content='{"text":"I live."}' if role == "user" else '{"steps":[]}', created_at=utc_now(),
        )
    )  # fmt: skip


def collect(connection: Connection) -> list[str]:
    """The messages that become episodes now."""
    scope = stored_scope(connection, visible_scopes(connection, ANN), USER_SCOPE)
    assert scope.id is not None
    subject = CollectedSubject(
        source=SOURCE_CONVERSATION, id=CONVERSATION, title="c", user_id=ANN.user_id, username="ann",
        updated_at=utc_now(),
    )  # fmt: skip
    collect_episodes(connection, scope.id, subject, since=None, now=utc_now())
    return list(connection.scalars(select(EpisodeMessageRow.message_id)))


def test_what_was_written_while_memory_was_off_is_in_no_episode(ready_url: str, tmp_path: Path) -> None:
    now, (off, answer, asked, on) = utc_now(), (new_id() for _ in range(4))
    store = Store(open_engine(resolve_url(ready_url, tmp_path)))
    due = partial(store.read_rows_now, lambda connection: list(connection.scalars(ingestion._due_users)))

    def begin(session: Session) -> None:
        fill(session)
        session.add(
            ConversationRow(id=CONVERSATION, user_id=ANN.user_id, title="c", created_at=now, updated_at=now)
        )

    store.write_now(begin)
    assert due() == []
    store.write_now(
        lambda session: session.add(
            UserSettings(user_id=ANN.user_id, extraction=Extraction.ON, created_at=now, updated_at=now)
        )
    )
    assert due() == [ANN.user_id]
    for written in (
        (off, MemoryMode.OFF, "user", None), (answer, None, "assistant", off),
        (asked, MemoryMode.ASK, "user", answer), (on, MemoryMode.ON, "user", answer),
    ):  # fmt: skip
        store.write_now(lambda session, written=written: add_message(session, *written))
    assert store.write_rows_now(collect) == [on]
    store.close()
