"""The queue of a conversation: messages that a person writes while an answer is made.

They are rows until they are sent or have steered the answer (`runs/turn/steering.py`). The transaction that
sends one deletes its row, under a lock on the conversation. So each is sent once, whichever process does it:
the end of an answer leaves a `run_ended` row, which the next heartbeat of any process finds.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import structlog
from sqlalchemy import bindparam, delete, null, select, update
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import own_conversation, user_content
from luxx.domain.conversations.comparing import check_chosen
from luxx.domain.conversations.models import TODOS_MODE, ConversationRow, QueuedMessageRow
from luxx.domain.files.attachments import MessageAttachments
from luxx.errors import Conflict, InvalidInput, LuxxError, NotFound, Unavailable
from luxx.features.chats.service import ChatService
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.log.endings import QUEUE, RunEndedRow
from luxx.runs.options import AnswerOptions, NewMessage
from luxx.runs.streams.notices import NotifySubject
from luxx.runs.streams.sessions import SubjectHint
from luxx.runs.turn.turn import INTERNAL_ERROR
from luxx.wire.message import PromptImage, UserContent
from luxx.wire.model_settings import PlanningMode
from luxx.wire.queue import Queue, QueuedMessage, QueueItem, WhenBusy
from luxx.wire.run import Run

MAX_QUEUED = 20
"""Messages that wait in one conversation."""

MAX_TRIES = 5
"""How often a message is sent or queued while answers end and begin between the two."""

_conversations, _ended = table_of(ConversationRow), table_of(RunEndedRow)
_due = select(_ended.c.subject_id, _ended.c.user_id).where(_ended.c.reader == QUEUE).distinct().limit(100)
_forget_ending = delete(_ended).where(
    _ended.c.reader == QUEUE, _ended.c.subject_id == bindparam("conversation")
)
_pause = (
    update(_conversations)
    .where(_conversations.c.id == bindparam("b_id"))
    .values(queue_paused=True, queue_problem=bindparam("b_problem"))
)
_go_on = (
    update(_conversations)
    .where(_conversations.c.id == bindparam("b_id"))
    .values(queue_paused=False, queue_problem=null())
)
_encode = msgspec.json.Encoder().encode

logger = structlog.get_logger()
T = TypeVar("T")


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a queued message is sent with: the options of its answer, and its images by `blob_id`."""

    options: AnswerOptions
    planning: PlanningMode | None = None
    images: dict[str, PromptImage] = {}


_request = msgspec.json.Decoder(QueuedRequest)


@dataclass(frozen=True, slots=True, repr=False)
class ChatQueue:
    """One per process."""

    chats: ChatService
    notify_subject: NotifySubject

    # Giving

    async def send_or_queue(
        self, caller: Caller, message: NewMessage, mode: WhenBusy, send: Callable[[], Awaitable[T]]
    ) -> T | QueuedMessage:
        """What `send` returns or, while an answer is made, the message that now waits.

        Raises what `send` raises, InvalidInput for images that should steer, Conflict for a full queue.
        """
        if message.parent_id is not None:
            raise InvalidInput(
                "a message that waits follows the newest answer; leave out parent_id", field="$.parent_id"
            )
        tries = 0
        while True:
            if await self._is_busy(caller, message.conversation_id):
                queued = await self._give(caller, message, mode)
                if queued is not None:
                    return queued
            try:
                return await send()
            except Conflict as error:
                tries += 1
                if error.kind != "run_active" or tries == MAX_TRIES:
                    raise

    async def _is_busy(self, caller: Caller, conversation_id: str) -> bool:
        return await self._store.read(
            lambda session: own_conversation(session, caller, conversation_id).run_id is not None
        )

    async def _give(self, caller: Caller, message: NewMessage, mode: WhenBusy) -> QueuedMessage | None:
        """Stores a message that waits; None if no answer is made any more."""
        attached = MessageAttachments()
        if message.attachments:
            attached = await self.chats.attachments.read_attachments(caller, message.attachments)
        if mode is WhenBusy.STEER:
            _check_steer(bool(attached.images), bool(message.skills))
        content, request = _stored(message, attached)
        size = len(content) + len(request)
        storage = self.chats.admission.services.storage
        await storage.check(caller.user_id, size)

        def insert(session: Session) -> QueuedMessage | None:
            conversation = own_conversation(session, caller, message.conversation_id, is_locked=True)
            if conversation.run_id is None:
                return None
            check_chosen(session, conversation)
            # What it asks for must exist; when it is sent, that is checked again.
            self.chats.requests.resolve(session, caller, message, conversation, attached, "")
            rows = _rows_of(session, conversation)
            if len(rows) >= MAX_QUEUED:
                raise _queue_full()
            if not rows:
                conversation.queue_paused, conversation.queue_problem = False, None
            row = QueuedMessageRow(
                id=new_id(), conversation_id=conversation.id, user_id=caller.user_id, mode=mode.value,
                position=rows[-1].position + 1 if rows else 0, content=content, request=request,
                stored_bytes=size, created_at=utc_now(),
            )  # fmt: skip
            session.add(row)
            return QueuedMessage(
                queue_id=row.id, position=len(rows) + 1, mode=mode, run_id=conversation.run_id
            )

        queued = await self.chats.with_listed_models(caller, lambda: self._store.write(insert))
        if queued is not None:
            storage.add(caller.user_id, size)
            self._notify(
                caller.user_id, message.conversation_id, queued.run_id if mode is WhenBusy.STEER else ""
            )
        return queued

    # Changing

    async def list_items(self, caller: Caller, conversation_id: str) -> Queue:
        """What waits in a conversation. Raises NotFound."""
        return await self._store.read(
            lambda session: _view(session, own_conversation(session, caller, conversation_id))
        )

    async def remove(self, caller: Caller, conversation_id: str, queue_id: str) -> None:
        """Takes a message back. Raises NotFound, also if it was sent or has steered the answer."""

        def work(session: Session) -> None:
            conversation = own_conversation(session, caller, conversation_id, is_locked=True)
            session.delete(_row_of(session, conversation, queue_id))
            session.flush()
            if not _rows_of(session, conversation):
                conversation.queue_paused, conversation.queue_problem = False, None

        await self._store.write(work)
        self._notify(caller.user_id, conversation_id)

    async def change(
        self, caller: Caller, conversation_id: str, queue_id: str, text: str | None, mode: WhenBusy | None
    ) -> QueueItem:
        """Changes the text of a message that waits, or what becomes of it. One that is to steer while no
        answer is made is sent at once. Raises NotFound, InvalidInput, TooLarge, and what sending raises."""
        storage = self.chats.admission.services.storage
        if text is not None:
            await storage.check(caller.user_id, len(text.encode()))

        def work(session: Session) -> tuple[QueueItem, str | None, int]:
            conversation = own_conversation(session, caller, conversation_id, is_locked=True)
            row = _row_of(session, conversation, queue_id)
            content, size = user_content(row.content), row.stored_bytes
            if mode is WhenBusy.STEER and conversation.run_id is not None:
                request = _request.decode(row.request)
                _check_steer(bool(request.images), bool(request.options.skills))
            if text is not None:
                content = msgspec.structs.replace(content, text=text)
                row.content = _encode(content).decode()
                row.stored_bytes = len(row.content) + len(row.request)
            if mode is not None and conversation.run_id is not None:
                row.mode = mode.value
            if mode is WhenBusy.STEER and conversation.run_id is None:
                row.position = _rows_of(session, conversation)[0].position - 1
            return _item(row), conversation.run_id, row.stored_bytes - size

        item, run_id, growth = await self._store.write(work)
        storage.add(caller.user_id, growth)
        is_steer = item.mode is WhenBusy.STEER
        self._notify(caller.user_id, conversation_id, (run_id or "") if is_steer else "")
        if mode is WhenBusy.STEER and run_id is None:
            await self._start_asked(caller, conversation_id)
        return item

    async def resume(self, caller: Caller, conversation_id: str) -> Queue:
        """Lets the queue go on, at once if no answer is made. Raises NotFound, and what sending raises."""

        def work(session: Session) -> None:
            conversation = own_conversation(session, caller, conversation_id, is_locked=True)
            session.connection().execute(_go_on, {"b_id": conversation.id})

        await self._store.write(work)
        await self._start_asked(caller, conversation_id)
        self._notify(caller.user_id, conversation_id)
        return await self.list_items(caller, conversation_id)

    # Sending

    async def start_due(self) -> None:
        """Sends the next message where an answer has ended; called after each heartbeat."""
        due = await self._store.read_rows(lambda connection: connection.execute(_due).all())
        for conversation_id, user_id in due:
            try:
                caller = await self._store.read_rows(
                    lambda connection, id_=user_id: user_as_caller(connection, id_)
                )
                await self._start(caller, conversation_id)
            except Unavailable:
                return  # This server stops; another one, or its next start, sends them.
            except LuxxError as error:
                logger.info("queued_message_refused", conversation_id=conversation_id, kind=error.kind)
                await self._pause(user_id, conversation_id, error)
            except (OperationalError, InterfaceError):
                raise
            except Exception:
                logger.exception("queued_message_not_sent", conversation_id=conversation_id)
                await self._pause(user_id, conversation_id, INTERNAL_ERROR)

    async def _start(self, caller: Caller, conversation_id: str, *, is_asked: bool = False) -> None:
        """Sends the first message if no answer is made; one of a paused queue only if it `is_asked` for.

        Raises what sending raises.
        """

        def insert(session: Session) -> Run | None:
            conversation = own_conversation(session, caller, conversation_id, is_locked=True)
            session.connection().execute(_forget_ending, {"conversation": conversation.id})
            # The end of the run in progress, if there is one, comes back to the queue.
            if conversation.run_id is not None or (conversation.queue_paused and not is_asked):
                return None
            rows = _rows_of(session, conversation)
            return self._insert(session, caller, conversation, rows[0]) if rows else None

        admission = self.chats.admission
        run = await self.chats.with_listed_models(caller, lambda: admission.admit(caller, insert))
        if run is not None:
            await admission.begin(run)
            self._notify(caller.user_id, conversation_id)

    async def _start_asked(self, caller: Caller, conversation_id: str) -> None:
        """Sends the first message, because the caller asks for it. Raises what sending raises; the queue is
        paused then."""
        try:
            await self._start(caller, conversation_id, is_asked=True)
        except Unavailable:
            raise
        except LuxxError as error:
            await self._pause(caller.user_id, conversation_id, error)
            raise

    def _insert(
        self, session: Session, caller: Caller, conversation: ConversationRow, row: QueuedMessageRow
    ) -> Run:
        content, request = user_content(row.content), _request.decode(row.request)
        message = NewMessage(
            conversation_id=conversation.id, text=content.text, planning=request.planning,
            **msgspec.structs.asdict(request.options),
        )  # fmt: skip
        attached = MessageAttachments(attachments=content.attachments, images=request.images)
        run = self.chats.insert(session, caller, message, attached)
        session.delete(row)
        return run

    async def _pause(self, user_id: int, conversation_id: str, error: LuxxError) -> None:
        """Stops sending by itself, because the first message was refused."""

        def work(session: Session) -> None:
            connection = session.connection()
            connection.execute(_pause, {"b_id": conversation_id, "b_problem": error.message})
            connection.execute(_forget_ending, {"conversation": conversation_id})

        await self._store.write(work)
        self._notify(user_id, conversation_id)

    @property
    def _store(self) -> Store:
        return self.chats.admission.services.store

    def _notify(self, user_id: int, conversation_id: str, steered_run: str = "") -> None:
        """Notifies the pages of the user that the queue has changed, and a run that it is steered."""
        if steered_run:
            self.chats.admission.engine.deliver(steered_run)
        self.notify_subject(SubjectHint(session_id=conversation_id, user_id=user_id))


def _stored(message: NewMessage, attached: MessageAttachments) -> tuple[str, str]:
    """The content of a message and the request for its answer, as they are stored while it waits."""
    content = UserContent(text=message.text, attachments=attached.attachments)
    given = msgspec.structs.asdict(message)
    options = AnswerOptions(**{name: given[name] for name in AnswerOptions.__struct_fields__})
    request = QueuedRequest(options=options, planning=message.planning, images=attached.images)
    return _encode(content).decode(), _encode(request).decode()


def _queue_full() -> Conflict:
    problem = f"{MAX_QUEUED} messages wait in this conversation already; delete one or wait"
    return Conflict(problem, kind="queue_full")


def _check_steer(has_images: bool, has_skills: bool) -> None:
    if has_skills:
        raise InvalidInput(
            "a skill cannot be activated for an answer in progress; queue the message instead",
            kind="skills_not_steered",
            field="$.skills",
        )
    if has_images:
        raise InvalidInput(
            "an answer in progress takes no images; queue the message, or attach them to the next one",
            kind="images_not_steered",
            field="$.attachments",
        )


_rows = (
    select(QueuedMessageRow)
    .where(QueuedMessageRow.conversation_id == bindparam("conversation"), QueuedMessageRow.mode != TODOS_MODE)
    .order_by(QueuedMessageRow.position)
)


def _rows_of(session: Session, conversation: ConversationRow) -> Sequence[QueuedMessageRow]:
    return session.scalars(_rows, {"conversation": conversation.id}).all()


def _row_of(session: Session, conversation: ConversationRow, queue_id: str) -> QueuedMessageRow:
    """The message of this id that waits here, locked: a turn may be taking it. Raises NotFound."""
    row = session.scalar(
        select(QueuedMessageRow)
        .where(
            QueuedMessageRow.id == queue_id,
            QueuedMessageRow.conversation_id == conversation.id,
            QueuedMessageRow.mode != TODOS_MODE,
        )
        .with_for_update()
    )
    if row is None:
        raise NotFound("no message with this id waits here; it may have been sent", kind="queue_not_found")
    return row


def _item(row: QueuedMessageRow) -> QueueItem:
    content = user_content(row.content)
    return QueueItem(
        queue_id=row.id, mode=WhenBusy(row.mode), content=content.text,
        attachments=[file.name for file in content.attachments], created_at=row.created_at,
    )  # fmt: skip


def _view(session: Session, conversation: ConversationRow) -> Queue:
    items = [_item(row) for row in _rows_of(session, conversation)]
    return Queue(
        items=items,
        paused=conversation.queue_paused and bool(items),
        problem=conversation.queue_problem if items else None,
    )
