"""Ingestion: which messages become episodes, and the runs that extract their facts.

Each heartbeat of any process collects the messages of users who turned extraction on; the row of the scope is
locked meanwhile, so that a message is in one episode. A scope has one run at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import structlog
from sqlalchemy import (
    BindParameter,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User, UserSettings
from luxx.domain.agents.models import AgentRow
from luxx.domain.conversations.access import own_conversation
from luxx.domain.conversations.models import ConversationRow, ProjectRow
from luxx.errors import Conflict, LuxxError, Unavailable
from luxx.features.memory.extraction.answers import IDLE_SECONDS
from luxx.features.memory.extraction.episodes import (
    SOURCE_CONVERSATION,
    SOURCE_ROOM,
    CollectedSubject,
    Episode,
    EpisodeSource,
    collect_episodes,
    find_episode,
    list_episodes,
)
from luxx.features.memory.extraction.orchestration import MemoryRequest
from luxx.features.memory.models import EpisodeRow, MemoryScopeRow
from luxx.features.memory.scopes import USER_SCOPE, ScopeName, check_writable, stored_scope, visible_scopes
from luxx.features.rooms.models import ChatRoomRow
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.admission import Admission
from luxx.runs.models import RunRow, is_unended
from luxx.runs.turn.run_rows import RunOwner
from luxx.wire.memory import EpisodeStatus, ScopeKind
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import Run, RunKind

EPISODES_PER_RUN = 50
"""What waits after them is extracted by the next run."""

SUBJECTS_AT_ONCE = 50
"""Conversations and rooms of one user that are looked at in one transaction."""

CLOCK_MARGIN = timedelta(seconds=60)
"""By how much the clocks of several servers may differ."""

_users, _settings, _tenants = table_of(User), table_of(UserSettings), table_of(Tenant)
_conversations, _projects, _agents = table_of(ConversationRow), table_of(ProjectRow), table_of(AgentRow)
_rooms, _runs = table_of(ChatRoomRow), table_of(RunRow)
_scopes, _episodes = table_of(MemoryScopeRow), table_of(EpisodeRow)


def _is_on(*modes: Any) -> Any:
    """The condition that none of these modes restricts memory."""
    return and_(true(), *(or_(mode.is_(None), mode == MemoryMode.ON) for mode in modes))


_extracting = (
    select(_users.c.id)
    .join(_tenants, _tenants.c.id == _users.c.tenant_id)
    .outerjoin(_settings, _settings.c.user_id == _users.c.id)
    .where(
        _users.c.is_active,
        func.coalesce(_settings.c.extraction, _tenants.c.extraction) == true(),
        _is_on(_settings.c.memory),
    )
)
"""Users from whose conversations facts are extracted."""

_turned_off = select(_scopes.c.id, _scopes.c.user_id).where(
    _scopes.c.user_id.is_not(None), _scopes.c.extract_from.is_not(None), _scopes.c.user_id.not_in(_extracting)
)


def _conversations_of(user: Any, since: Any) -> Select[Any, Any, Any]:
    """The conversations of a user that changed since then and that may be looked at."""
    return (
        select(_conversations.c.id, _conversations.c.title, _conversations.c.updated_at)
        .outerjoin(_projects, _projects.c.id == _conversations.c.project_id)
        .outerjoin(_agents, _agents.c.id == _conversations.c.agent_id)
        .where(
            _conversations.c.user_id == user,
            _conversations.c.updated_at >= since,
            _conversations.c.import_id.is_(None),
            _conversations.c.run_id.is_(None),
            _is_on(_conversations.c.memory, _projects.c.memory, _agents.c.memory),
        )
    )


_room_changed = func.coalesce(_runs.c.finished_at, _rooms.c.updated_at)


def _rooms_of(user: Any, since: Any) -> Select[Any, Any, Any]:
    """The rooms of a user that changed since then and that may be looked at."""
    return (
        select(_rooms.c.id, _rooms.c.title, _room_changed.label("updated_at"))
        .outerjoin(_runs, _runs.c.id == _rooms.c.run_id)
        .where(
            _rooms.c.user_id == user,
            _room_changed >= since,
            or_(_runs.c.id.is_(None), _runs.c.finished_at.is_not(None)),
            _is_on(_rooms.c.memory),
        )
    )


_user: BindParameter[int] = bindparam("user")
_since: BindParameter[datetime] = bindparam("since")
_due_chats = _conversations_of(_user, _since).order_by(_conversations.c.updated_at).limit(SUBJECTS_AT_ONCE)
_due_rooms = _rooms_of(_user, _since).order_by(_room_changed).limit(SUBJECTS_AT_ONCE)
_due_users = (
    _extracting.outerjoin(_scopes, _scopes.c.user_id == _users.c.id)
    .where(
        or_(
            _scopes.c.extract_from.is_(None),
            *(
                query(_users.c.id, _scopes.c.checked_until).correlate(_users, _scopes).exists()
                for query in (_conversations_of, _rooms_of)
            ),
        )
    )
    .order_by(_users.c.id)
)
"""Users of whom there may be messages to collect, or who have turned extraction on just now."""

_has_run = (
    select(_runs.c.id)
    .where(_runs.c.kind == RunKind.MEMORY.value, _runs.c.id == _episodes.c.run_id, is_unended)
    .exists()
)
_waiting_scopes = (
    select(_episodes.c.scope_id, _episodes.c.user_id)
    .where(_episodes.c.status == EpisodeStatus.PENDING.value, ~_has_run)
    .group_by(_episodes.c.scope_id, _episodes.c.user_id)
    .limit(100)
)

logger = structlog.get_logger()


def subject_of(scope_id: int) -> str:
    """The `subject_id` of the runs of a scope."""
    return f"memory-{scope_id}"


@dataclass(slots=True, repr=False)
class Ingestion:
    """One per process."""

    admission: Admission

    async def start_due(self) -> None:
        """Collects new messages and starts the runs that are due; called at heartbeats."""
        store = self.admission.services.store
        user_ids = await store.read_rows(lambda connection: list(connection.scalars(_due_users)))
        if await store.read_rows(lambda connection: connection.execute(_turned_off.limit(1)).first()):
            await store.write_rows(_stop)
        for user_id in user_ids:
            await self._collect(user_id)
        for row in await store.read_rows(lambda connection: connection.execute(_waiting_scopes).all()):
            try:
                await self.start(row.user_id, row.scope_id)
            except Unavailable:
                return  # This server stops; another one, or its next start, goes on.
            except LuxxError as error:
                logger.info("extraction_waits", user_id=row.user_id, kind=error.kind)

    async def _collect(self, user_id: int) -> None:
        """Collects the messages of a user; what fails for one user stops no other."""
        store = self.admission.services.store
        try:
            await store.write(partial(_collect, user_id))
        except LuxxError as error:
            logger.info("messages_not_collected", user_id=user_id, kind=error.kind)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("messages_not_collected", user_id=user_id)

    async def extract(self, caller: Caller, conversation_id: str) -> Run | None:
        """Starts a run for all messages of a conversation that are in no episode, now; None if there are
        none, or if the scope has a run already, which another one follows.

        Raises NotFound, Conflict while an answer is made, and what `Admission.admit` raises; then nothing
        has changed.
        """

        def insert(session: Session) -> Run | None:
            connection = session.connection()
            conversation = own_conversation(session, caller, conversation_id, is_locked=True)
            if conversation.run_id is not None:
                raise Conflict("an answer is being made here; wait for its end", kind="run_active")
            own = stored_scope(connection, visible_scopes(connection, caller), USER_SCOPE)
            subject = _subject(conversation, SOURCE_CONVERSATION, caller)
            scope_id = _lock(connection, own.id)
            collect_episodes(connection, scope_id, subject, since=None, now=utc_now())
            return self._insert(caller, scope_id, session)

        return await self._admit(caller, insert)

    async def retry(self, caller: Caller, episode_id: str) -> Run | None:
        """Extracts the facts of an episode that was skipped or failed; None if the scope has a run, which
        another one follows. Raises NotFound, NotAllowed, Conflict for another episode, and what
        `Admission.admit` raises; then nothing has changed."""

        def insert(session: Session) -> Run | None:
            connection = session.connection()
            scopes = visible_scopes(connection, caller)
            row = find_episode(connection, scopes, episode_id)
            check_writable(scopes.by_id[row.scope_id])
            if row.status not in (EpisodeStatus.SKIPPED.value, EpisodeStatus.FAILED.value):
                raise Conflict(
                    f"only an episode that was skipped or failed can be retried; this one is {row.status}",
                    kind="episode_not_failed",
                )
            values = {"status": EpisodeStatus.PENDING.value, "reason": None, "user_id": caller.user_id}
            connection.execute(update(_episodes).where(_episodes.c.id == row.id).values(**values))
            return self._insert(caller, row.scope_id, session)

        return await self._admit(caller, insert)

    async def list_page(
        self,
        caller: Caller,
        *,
        status: EpisodeStatus | None,
        source: EpisodeSource | None,
        page: int,
        page_size: int,
    ) -> tuple[list[Episode], int]:
        """A page of the episodes of the scopes that the caller may read, newest first, and their number."""

        def work(connection: Connection) -> tuple[list[Episode], int]:
            return list_episodes(
                connection, visible_scopes(connection, caller),
                status=status, source=source, page=page, page_size=page_size,
            )  # fmt: skip

        return await self.admission.services.store.read_rows(work)

    async def start(self, user_id: int, scope_id: int) -> Run | None:
        """Starts the run of a scope for the episodes that this user pays for; None: it has one, or nothing
        waits. Raises what `Admission.admit` raises."""
        caller = await self.admission.services.store.read_rows(
            lambda connection: user_as_caller(connection, user_id)
        )
        return await self._admit(caller, partial(self._insert, caller, scope_id))

    async def _admit(self, caller: Caller, insert: Callable[[Session], Run | None]) -> Run | None:
        run = await self.admission.admit(caller, insert)
        if run is not None:
            await self.admission.begin(run)
        return run

    def _insert(self, caller: Caller, scope_id: int, session: Session) -> Run | None:
        connection = session.connection()
        _lock(connection, scope_id)
        is_busy = select(_runs.c.id).where(
            _runs.c.kind == RunKind.MEMORY.value, _runs.c.subject_id == subject_of(scope_id), is_unended
        )
        if connection.execute(is_busy.limit(1)).first() is not None:
            return None
        waiting = (
            select(_episodes.c.id, _episodes.c.uid)
            .where(
                _episodes.c.scope_id == scope_id,
                _episodes.c.user_id == caller.user_id,
                _episodes.c.status == EpisodeStatus.PENDING.value,
            )
            .order_by(_episodes.c.happened_at, _episodes.c.id)
            .limit(EPISODES_PER_RUN)
        )
        rows = connection.execute(waiting).all()
        if not rows:
            return None
        request = MemoryRequest(scope_id=scope_id, episodes=[row.uid for row in rows])
        run = self.admission.insert(
            session,
            RunOwner(caller.user_id, caller.tenant_id),
            RunKind.MEMORY,
            subject_of(scope_id),
            msgspec.json.encode(request).decode(),
        )
        ids = [row.id for row in rows]
        connection.execute(update(_episodes).where(_episodes.c.id.in_(ids)).values(run_id=run.id))
        return run


def _stop(connection: Connection) -> None:
    """Where extraction was turned off: nothing that waits is extracted, and what is written until it is
    turned on again is not collected."""
    rows = connection.execute(_turned_off).all()
    waits = and_(
        _episodes.c.user_id.in_([row.user_id for row in rows]),
        _episodes.c.status == EpisodeStatus.PENDING.value,
        ~_has_run,
    )
    skipped = {
        "status": EpisodeStatus.SKIPPED.value,
        "reason": "extraction was turned off before it was read",
    }
    connection.execute(update(_episodes).where(waits).values(**skipped))
    connection.execute(
        update(_scopes)
        .where(_scopes.c.id.in_([row.id for row in rows]))
        .values(extract_from=None, checked_until=None)
    )


def _collect(user_id: int, session: Session) -> None:
    """Makes episodes of the new messages of a user, and remembers until when it has looked."""
    connection = session.connection()
    caller = user_as_caller(connection, user_id)
    scopes = visible_scopes(connection, caller)
    own = stored_scope(connection, scopes, USER_SCOPE)
    now = utc_now()
    row = connection.execute(
        select(_scopes.c.extract_from, _scopes.c.checked_until)
        .where(_scopes.c.id == own.id)
        .with_for_update()
    ).one()
    since = row.extract_from
    if since is None:
        # A user's settings were saved when they turned it on, at most some seconds ago if a server was up.
        turned_on = select(_settings.c.updated_at).where(
            _settings.c.user_id == user_id, _settings.c.extraction == true()
        )
        since = connection.scalar(turned_on) or now
        _set_checked(connection, own.id, extract_from=since, checked_until=since)
    checked: datetime = row.checked_until or since
    values = {"user": user_id, "since": checked}
    conversations = connection.execute(_due_chats, values).all()
    rooms = connection.execute(_due_rooms, values).all()
    for found in conversations:
        subject = _subject(found, SOURCE_CONVERSATION, caller)
        collect_episodes(connection, _id_of(own.id), subject, since=since, now=now)
    for found in rooms:
        scope = stored_scope(connection, scopes, ScopeName(ScopeKind.ROOM, found.id))
        subject = _subject(found, SOURCE_ROOM, caller)
        collect_episodes(connection, _id_of(scope.id), subject, since=since, now=now)
    until = now - timedelta(seconds=IDLE_SECONDS) - CLOCK_MARGIN
    for found in (conversations, rooms):
        if len(found) == SUBJECTS_AT_ONCE:
            until = min(until, found[-1].updated_at)
    _set_checked(connection, own.id, checked_until=max(until, checked))


def _id_of(scope_id: int | None) -> int:
    assert scope_id is not None
    return scope_id


def _lock(connection: Connection, scope_id: int | None) -> int:
    """Locks a scope until the transaction ends, so that no other one makes its episodes or a run of it."""
    connection.execute(select(_scopes.c.id).where(_scopes.c.id == scope_id).with_for_update())
    return _id_of(scope_id)


def _set_checked(connection: Connection, scope_id: int | None, **values: datetime) -> None:
    connection.execute(update(_scopes).where(_scopes.c.id == scope_id).values(**values))


def _subject(row: Row[*tuple[Any, ...]] | ConversationRow, source: str, caller: Caller) -> CollectedSubject:
    return CollectedSubject(
        source=source, id=row.id, title=row.title, user_id=caller.user_id, username=caller.username,
        updated_at=row.updated_at,
    )  # fmt: skip
