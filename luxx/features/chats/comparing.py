"""Comparisons in chats: a message that two models answer, each in a run of its own.

Each answer has its own log, limits, cost, questions and stop, as any other. The conversation names one run
that has not ended as its active one, and is idle once both have ended. What is kept is selected as a branch
(`domain/conversations/comparing.py`).
"""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import check_idle, message_in, own_conversation
from luxx.domain.conversations.comparing import check_chosen, end_comparison
from luxx.domain.conversations.models import ConversationRow, MessageRow, QueuedMessageRow
from luxx.domain.conversations.views import MessageView, message_view
from luxx.domain.files.attachments import MessageAttachments
from luxx.errors import Conflict, InvalidInput
from luxx.features.chats.service import ChatService, insert_message, set_run, stored_size
from luxx.infra.clock import new_id
from luxx.runs.models import RunRow, run_view
from luxx.runs.options import NewMessage
from luxx.runs.turn.state import ChatRequest
from luxx.wire.model_settings import PlanningMode
from luxx.wire.run import InConversation, Run, RunKind


class ComparedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The run of one model and, once it has ended, its answer; null also if the run failed without one."""

    run: Run
    message: MessageView | None


class AnswerComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two answers to a message, `message_id`, of which a person keeps one. The first is of the conversation's
    model."""

    conversation_id: str
    message_id: str
    answers: list[ComparedAnswer]


@dataclass(frozen=True, slots=True)
class ChatComparing:
    """One per process."""

    chats: ChatService

    async def start(
        self, caller: Caller, message: NewMessage, provider_id: int, model: str
    ) -> AnswerComparison:
        """Stores the message and starts two runs that answer it: one as for any message, one with this model.

        Raises what sending raises, InvalidInput if both are the same model, Conflict while messages wait or
        an earlier comparison is open; then nothing has changed.
        """
        admission = self.chats.admission
        attached = MessageAttachments()
        if message.attachments:
            attached = await self.chats.attachments.read_attachments(caller, message.attachments)
        message = replace(message, may_fall_back=False)
        other = replace(message, provider_id=provider_id, model=model)
        runs: list[Run] = []

        def insert(session: Session) -> Run:
            runs[:] = self._insert(session, caller, message, other, attached)
            return runs[0]

        size = stored_size(message, attached)
        await self.chats.with_listed_models(caller, lambda: admission.admit(caller, insert, size=size))
        admission.services.notify(runs[1].id, caller.user_id)
        for run in runs:
            await admission.begin(run)
        started = await self.find(caller, message.conversation_id)
        if started is None:
            raise Conflict("one of the answers was kept at once elsewhere", kind="answer_chosen")
        return started

    async def find(self, caller: Caller, conversation_id: str) -> AnswerComparison | None:
        """The open comparison of a conversation; None if there is none. Raises NotFound."""

        def read(session: Session) -> AnswerComparison | None:
            conversation = own_conversation(session, caller, conversation_id)
            if conversation.comparing_id is None:
                return None
            runs = session.scalars(
                select(RunRow)
                .where(
                    RunRow.question_id == conversation.comparing_id,
                    RunRow.parent_run_id.is_(None),
                    RunRow.kind == RunKind.CHAT.value,
                )
                .order_by(RunRow.created_at, RunRow.id)
            )
            return AnswerComparison(
                conversation_id=conversation.id,
                message_id=conversation.comparing_id,
                answers=[_answer(session, row) for row in runs],
            )

        return await self.chats.admission.services.store.read(read)

    def _insert(
        self,
        session: Session,
        caller: Caller,
        message: NewMessage,
        other: NewMessage,
        attached: MessageAttachments,
    ) -> list[Run]:
        conversation = own_conversation(session, caller, message.conversation_id, is_locked=True)
        if message.parent_id is not None:
            message_in(session, conversation, message.parent_id)
        message_id = new_id()
        first = self._request(session, caller, message, conversation, attached, message_id)
        check_idle(conversation)
        _check_empty_queue(session, conversation)
        second = self._request(session, caller, other, conversation, attached, message_id)
        _check_different(first, second)
        if message.parent_id is None:
            check_chosen(session, conversation)
        elif conversation.comparing_id is not None:
            end_comparison(session, conversation)
        size = stored_size(message, attached)
        runs = [
            self.chats.insert_run(session, caller, conversation.id, first, size),
            self.chats.insert_run(session, caller, conversation.id, second),
        ]
        insert_message(session, caller, message, attached, runs[0], message_id, conversation)
        set_run(session, conversation, runs[0], message_id, message.text)
        conversation.comparing_id = message_id
        return runs

    def _request(
        self,
        session: Session,
        caller: Caller,
        message: NewMessage,
        conversation: ConversationRow,
        attached: MessageAttachments,
        message_id: str,
    ) -> ChatRequest:
        """The request of one answer: no plan and no other model takes its place."""
        request = self.chats.requests.resolve(session, caller, message, conversation, attached, message_id)
        origin = InConversation(message_id=message_id, is_compared=True)
        return replace(request, origin=origin, planning=PlanningMode.OFF)


def _check_different(first: ChatRequest, second: ChatRequest) -> None:
    if (first.provider_id, first.model) == (second.provider_id, second.model):
        raise InvalidInput(
            f"both answers would be of the model {first.model} of {first.provider_name}; name "
            "another one to compare it with",
            kind="same_model",
            field="$.compare_with",
        )


def _check_empty_queue(session: Session, conversation: ConversationRow) -> None:
    if session.scalar(select(exists().where(QueuedMessageRow.conversation_id == conversation.id))):
        raise Conflict(
            "messages wait in this conversation; send or delete them before you compare answers",
            kind="queue_not_empty",
        )


def _answer(session: Session, row: RunRow) -> ComparedAnswer:
    message = None if row.message_id is None else session.get(MessageRow, row.message_id)
    return ComparedAnswer(run=run_view(row), message=None if message is None else message_view(message))
