"""Chats: sends a message to a conversation, to an agent or to a model alone, and reads the answer.

What was sent and the run that answers it are stored in one transaction (`runs/admission.py`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.context.messages import PastMessage
from luxx.domain.conversations.access import (
    UNTITLED,
    assistant_steps,
    check_idle,
    locked_message,
    message_in,
    own_conversation,
    own_message,
    run_active_error,
    title_after,
)
from luxx.domain.conversations.comparing import check_chosen, end_comparison
from luxx.domain.conversations.images import store_images
from luxx.domain.conversations.models import ConversationRow, MessageRow, TitleFrom
from luxx.domain.conversations.search_index import index_message, index_title
from luxx.domain.conversations.views import MessageView, message_view
from luxx.domain.files.attachments import AttachmentReader, MessageAttachments
from luxx.errors import Conflict, InvalidInput, ProviderFailed, Unavailable, UnlistedModel
from luxx.features.chats.complexity import is_complex
from luxx.infra.clock import new_id
from luxx.infra.store.tables import table_of
from luxx.runs.admission import Admission
from luxx.runs.log.events import read_last_error
from luxx.runs.models import find_run, run_view
from luxx.runs.options import NewCall, NewCompression, NewInvocation, NewMessage, Regeneration
from luxx.runs.requests import RequestResolver
from luxx.runs.routing import asked_text
from luxx.runs.service import UNFINISHED, RunService, run_detail
from luxx.runs.slots import find_waiting_subagent
from luxx.runs.streams.watch import FrameEncoder, RunWatch
from luxx.runs.turn.run_rows import read_end
from luxx.runs.turn.spending import no_budget_left
from luxx.runs.turn.state import ChatRequest, GivenPrompt
from luxx.wire.delegation import SubagentEnd
from luxx.wire.message import UserContent
from luxx.wire.model_settings import PlanningMode
from luxx.wire.run import ENDED, Run, RunKind, RunStatus, StopReason
from luxx.wire.tool import SKILL_STEP
from luxx.wire.turn import StepType

_conversations = table_of(ConversationRow)
_messages = table_of(MessageRow)
_insert = insert(_messages)
_link_run_to_message = (
    _messages.update().where(_messages.c.id == bindparam("b_id")).values(run_id=bindparam("run"))
)
_set_active_run = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id.is_(None))
    .values(
        run_id=bindparam("run"),
        selected_leaf_id=bindparam("leaf"),
        updated_at=bindparam("now"),
        title=bindparam("text"),
        title_from=bindparam("source"),
    )
)
_encode = msgspec.json.Encoder().encode

T = TypeVar("T")

Submission = NewMessage | Regeneration | NewInvocation | NewCall | NewCompression


@dataclass(frozen=True, slots=True, repr=False)
class ChatService:
    """One per process."""

    admission: Admission
    runs: RunService
    requests: RequestResolver
    attachments: AttachmentReader

    async def send(self, caller: Caller, submission: Submission) -> Run:
        """Stores the message if it is new, and starts the run that answers it or queues it for a slot.

        Raises NotFound, InvalidInput, Conflict (a run is active), TooMany, TooLarge (over the storage limit)
        or Unavailable (the server stops); then nothing has changed.
        """
        return await self.admission.begin(await self._admit(caller, submission))

    async def send_and_watch(
        self,
        caller: Caller,
        submission: Submission,
        *,
        accumulated: bool = False,
        encoder: FrameEncoder | None = None,
    ) -> RunWatch:
        """`send`, with a watch attached before the run starts. The caller must attach to the watch."""
        run = await self._admit(caller, submission)
        return await self.admission.begin_watched(run, accumulated=accumulated, encoder=encoder)

    async def answer(self, caller: Caller, run: Run) -> MessageView:
        """The stored answer, once the run has ended.

        Raises ProviderFailed with the failure's own kind, TooMany or InvalidInput if a limit left nothing
        for an answer, Conflict if the run waits for a person, Unavailable if this server stops before the run
        ends. The details of these errors have the ids of the run and the message.
        """
        return await self.runs.wait_for(run, lambda session: _answer_of(session, caller, run.id))

    async def ask_once(self, caller: Caller, text: str, instructions: str) -> SubagentEnd:
        """What the caller's default model answers to a text, without tools; nothing of it is stored. Raises
        what `send` raises, and Unavailable if this server stops before the run ends."""
        given = GivenPrompt(past=[PastMessage(user=UserContent(text=text))])
        size = len(text.encode())
        run = await self.send(caller, NewCall(given=given, instructions=instructions, size=size))

        def read(session: Session) -> SubagentEnd | None:
            end = read_end(session.connection(), run.id)
            return end if end is None or end.status in ENDED else None

        try:
            return await self.runs.wait_for(run, read)
        finally:
            await self.runs.end_call(caller, run.id)

    async def _admit(self, caller: Caller, submission: Submission) -> Run:
        # Files are read before the transaction, so that no lock is held while a PDF is parsed.
        attached = MessageAttachments()
        if isinstance(submission, NewMessage | NewInvocation) and submission.attachments:
            attached = await self.attachments.read_attachments(caller, submission.attachments)
        size = stored_size(submission, attached)

        def insert(session: Session) -> Run:
            return self.insert(session, caller, submission, attached)

        return await self.with_listed_models(caller, lambda: self.admission.admit(caller, insert, size=size))

    async def with_listed_models(self, caller: Caller, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns; it is made again if the list of models of a provider was too old for it."""
        try:
            return await attempt()
        except UnlistedModel as error:
            # The provider may have the model by now.
            if not await self.requests.providers.refetch_models(caller, error.provider_id):
                raise
            return await attempt()

    def insert(
        self, session: Session, caller: Caller, submission: Submission, attached: MessageAttachments
    ) -> Run:
        """Stores the message, if it is new, and the run. Raises what `send` raises."""
        size = stored_size(submission, attached)
        match submission:
            case NewCall():
                request = self.requests.resolve_call(session, caller, submission)
                return self.insert_run(session, caller, None, request)
            case NewInvocation():
                message_id = new_id()
                request = self.requests.resolve_invocation(session, caller, submission, attached, message_id)
                run = self.insert_run(session, caller, str(submission.agent_id), request, size)
                insert_message(session, caller, submission, attached, run, message_id)
                return run
            case NewCompression():
                conversation, _ = locked_message(session, caller, submission.message_id)
                return self._insert_compression(session, caller, conversation, submission)
            case Regeneration():
                conversation, message_id = _answered_message(session, caller, submission.message_id)
                if submission.repeats_skills:
                    skills = _given_before(session, submission.message_id)
                    submission = msgspec.structs.replace(submission, skills=skills)
            case NewMessage():
                conversation = own_conversation(session, caller, submission.conversation_id, is_locked=True)
                if submission.parent_id is not None:
                    message_in(session, conversation, submission.parent_id)
                message_id = new_id()
        request = self.requests.resolve(session, caller, submission, conversation, attached, message_id)
        is_open = request.planning == PlanningMode.AUTO
        if is_open and not is_complex(asked_text(session, submission, message_id)):
            request = msgspec.structs.replace(request, planning=PlanningMode.OFF)
        _check_free(session, conversation, submission)
        run = self.insert_run(session, caller, conversation.id, request, size)
        if isinstance(submission, NewMessage):
            insert_message(session, caller, submission, attached, run, message_id, conversation)
        else:
            # The message names its newest run; each run names its message as `question_id`.
            session.connection().execute(_link_run_to_message, {"b_id": message_id, "run": run.id})
        text = submission.text if isinstance(submission, NewMessage) else None
        set_run(session, conversation, run, message_id, text)
        return run

    def _insert_compression(
        self, session: Session, caller: Caller, conversation: ConversationRow, asked: NewCompression
    ) -> Run:
        answer_id = asked.message_id
        request = self.requests.resolve(session, caller, asked, conversation, MessageAttachments(), answer_id)
        check_idle(conversation)
        check_chosen(session, conversation)
        run = self.insert_run(session, caller, conversation.id, request, writes_message=False)
        leaf_id = conversation.selected_leaf_id or answer_id
        set_run(session, conversation, run, leaf_id)
        return run

    def insert_run(
        self,
        session: Session,
        caller: Caller,
        subject_id: str | None,
        request: ChatRequest,
        size: int = 0,
        *,
        writes_message: bool = True,
    ) -> Run:
        """Inserts the run; one without a subject stores nothing, and so has no message to write."""
        limits = self.admission.limits_for(session, caller, request.provider_id)
        message_id = new_id() if subject_id is not None and writes_message else None
        return self.admission.insert(
            session, caller, RunKind.CHAT, subject_id, request,
            limits=limits, message_id=message_id, size=size,
        )  # fmt: skip


def _check_free(
    session: Session, conversation: ConversationRow, submission: NewMessage | Regeneration
) -> None:
    """Ends a comparison for a branch that the submission names. Raises Conflict if it names none, or while an
    answer is made."""
    check_idle(conversation)
    if conversation.comparing_id is None:
        return
    if isinstance(submission, NewMessage) and submission.parent_id is None:
        check_chosen(session, conversation)
    else:
        kept_id = submission.parent_id if isinstance(submission, NewMessage) else None
        end_comparison(session, conversation, kept_id)


def stored_size(submission: Submission, attached: MessageAttachments) -> int:
    """The bytes that are stored beside the run, for its user's limit: of a call, what it gives."""
    match submission:
        case NewCall():
            return submission.size
        case Regeneration() | NewCompression():
            return 0
        case NewMessage() | NewInvocation():
            size = len(submission.text.encode())
            return size + attached.size if attached.attachments else size


def insert_message(
    session: Session,
    caller: Caller,
    submission: NewMessage | NewInvocation,
    attached: MessageAttachments,
    run: Run,
    message_id: str,
    conversation: ConversationRow | None = None,
) -> None:
    """Stores the message of a person and its images, in a conversation below `parent_id` or the leaf."""
    parent_id = None
    if isinstance(submission, NewMessage) and conversation is not None:
        parent_id = submission.parent_id or conversation.selected_leaf_id
    content = UserContent(text=submission.text, attachments=attached.attachments)
    row = {
        "id": message_id, "user_id": caller.user_id,
        "conversation_id": None if conversation is None else conversation.id,
        "parent_id": parent_id, "run_id": run.id, "role": "user",
        "content": _encode(content).decode(), "created_at": run.created_at,
    }  # fmt: skip
    connection = session.connection()
    connection.execute(_insert, row)
    if conversation is not None:
        index_message(connection, row)
    if attached.images:
        store_images(connection, message_id, attached.images)


def set_run(
    session: Session, conversation: ConversationRow, run: Run, message_id: str, text: str | None = None
) -> None:
    """Makes the run the active one of its conversation, which the `text` of a new message may name. Raises
    Conflict if another run began meanwhile."""
    connection = session.connection()
    title = conversation.title if text is None else title_after(conversation.title, text)
    source = conversation.title_from
    if conversation.title == UNTITLED:
        source = TitleFrom.WORDS.value
    if title != conversation.title:
        index_title(connection, user_id=conversation.user_id, conversation_id=conversation.id, title=title)
    values = {"b_id": conversation.id, "run": run.id, "leaf": message_id, "now": run.created_at}
    updated = connection.execute(_set_active_run, {**values, "text": title, "source": source})
    if updated.rowcount != 1:
        # On PostgreSQL two transactions may get here; the condition on the row lets one succeed.
        session.refresh(conversation)
        raise run_active_error(conversation.run_id or "")


def _answered_message(session: Session, caller: Caller, message_id: str) -> tuple[ConversationRow, str]:
    """The conversation, locked, and the id of the user's message that is answered again."""
    conversation, row = locked_message(session, caller, message_id)
    user_message: MessageRow | None = row
    if row.role != "user":
        user_message = None if row.parent_id is None else session.get(MessageRow, row.parent_id)
    if user_message is None or user_message.role != "user":
        raise InvalidInput(
            "this message does not answer a user's message, so it cannot be answered again",
            kind="not_answerable",
        )
    return conversation, user_message.id


def _given_before(session: Session, message_id: str) -> list[str]:
    """The names of the skills that a person activated for this answer, or for the newest one of a message."""
    row: MessageRow | None = session.get_one(MessageRow, message_id)
    if row.role == "user":
        answers = select(MessageRow).where(MessageRow.parent_id == message_id, MessageRow.role == "assistant")
        row = session.scalar(answers.order_by(MessageRow.id.desc()).limit(1))
    steps = [] if row is None else assistant_steps(row.content)
    given = (step for step in steps if step.type == StepType.USER and step.name == SKILL_STEP)
    return [str(step.id_ref) for step in given]


def _answer_of(session: Session, caller: Caller, run_id: str) -> MessageView | None:
    """The answer of a run that has ended; None while it is in progress.

    Raises what `ChatService.answer` raises. A subagent that waits for a person counts as if the run waited.
    """
    run = run_view(find_run(session, caller, run_id))
    waiting_run_id = run.id if run.status == RunStatus.WAITING else None
    if run.status in (RunStatus.QUEUED, RunStatus.RUNNING):
        waiting_run_id = find_waiting_subagent(session.connection(), run.id)
        if waiting_run_id is None:
            return None
    if waiting_run_id is not None:
        raise Conflict(
            f"the run waits for an answer; see GET /runs/{waiting_run_id}/questions",
            kind="run_waiting",
            detail=run_detail(run),
        )
    if run.status not in ENDED or run.message_id is None:
        raise Unavailable(UNFINISHED, kind="run_active", detail=run_detail(run))
    if run.status == RunStatus.FAILED:
        last_error = read_last_error(session.connection(), run.id)
        kind = last_error.code if last_error is not None else None
        raise ProviderFailed(run.error or "the run failed", kind=kind, detail=run_detail(run))
    message = message_view(own_message(session, caller, run.message_id))
    if run.stop_reason in (StopReason.TOKENS, StopReason.COST) and not message.steps:
        raise no_budget_left(read_last_error(session.connection(), run.id), run_detail(run))
    return message
