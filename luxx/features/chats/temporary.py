"""The end of temporary chats: what they leave, and those that nobody has used for some time.

`domain/conversations/service.py` creates and keeps them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, Row, select
from sqlalchemy.exc import NoResultFound

from luxx.domain.accounts.authentication import USER_QUERY, caller_without_sign_in
from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ConversationRow
from luxx.domain.conversations.service import MOST_RUNS, ConversationService, StopRun
from luxx.errors import LuxxError
from luxx.features.artifacts.service import ArtifactService
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import deletion_time, table_of
from luxx.runs.models import RunRow
from luxx.wire.run import RunStatus

LOOK_SECONDS = 60.0
"""The interval between deletions of unused chats. The first one is at the start."""

CHATS_AT_ONCE = 200

AnyRow = Row[*tuple[Any, ...]]

_chats, _runs = table_of(ConversationRow), table_of(RunRow)
_works = (RunStatus.QUEUED.value, RunStatus.RUNNING.value)
_temporary = (
    select(_chats.c.id, _chats.c.user_id, _chats.c.updated_at, _chats.c.temporary_minutes)
    .outerjoin(_runs, _runs.c.id == _chats.c.run_id)
    .where(
        _chats.c.temporary_minutes.is_not(None),
        _chats.c.import_id.is_(None),
        _runs.c.id.is_(None) | _runs.c.status.not_in(_works),
    )
    .order_by(_chats.c.updated_at)
    .limit(CHATS_AT_ONCE)
)
"""Those whose answer is not being written, the longest unused first."""

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TemporaryChats:
    """One per process."""

    store: Store
    conversations: ConversationService
    artifacts: ArtifactService
    stop_run: StopRun

    async def end(self, caller: Caller, conversation_id: str) -> None:
        """Deletes a conversation with its messages, runs and artifacts. Raises NotFound.

        The conversation is deleted last: after a crash it is still there to be deleted.
        """
        for _ in range(MOST_RUNS):
            conversation = await self.conversations.get(caller, conversation_id)
            if conversation.run_id is None:
                break
            await self.stop_run(caller, conversation.run_id)
        made = await self.artifacts.ids_of_conversation(caller, conversation_id)
        if made:
            await self.artifacts.delete_all(caller, made)
        await self.conversations.delete(caller, conversation_id)

    async def delete_unused(self) -> None:
        """Deletes the chats that were not used for their minutes, now or, after a failure, the next time."""
        now = await self.store.read(deletion_time)
        if now is None:
            return
        for row in _unused(await self.store.read_rows(lambda one: one.execute(_temporary).all()), now):
            try:
                owner = await self.store.read_rows(partial(_owner, user_id=row.user_id))
                await self.end(owner, row.id)
            except (LuxxError, NoResultFound) as error:
                logger.info("temporary_chat_not_deleted", conversation_id=row.id, problem=str(error))


def _unused(rows: Sequence[AnyRow], now: datetime) -> list[AnyRow]:
    return [row for row in rows if row.updated_at + timedelta(minutes=row.temporary_minutes) <= now]


def _owner(connection: Connection, user_id: int) -> Caller:
    """A disabled user's chats are deleted too."""
    return caller_without_sign_in(connection.execute(USER_QUERY, {"user_id": user_id}).one())
