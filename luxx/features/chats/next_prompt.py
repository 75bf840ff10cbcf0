"""The next prompt of a conversation: how much of the context window it takes, and whether a person can have
less of it sent now."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.context.messages import read_path
from luxx.domain.context.prompt import SectionKind, context_of
from luxx.domain.conversations.access import NEWEST_ANSWER, PATH_TO_ROOT, check_idle, own_conversation
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.files.attachments import MessageAttachments
from luxx.errors import Conflict, InvalidInput, LuxxError
from luxx.features.chats.service import ChatService
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow, RunRow
from luxx.runs.options import NewCompression
from luxx.runs.turn.prompting import TurnPrompt
from luxx.runs.turn.resources import PromptResources, ResourceFinder, with_fallback
from luxx.runs.turn.run_rows import read_chat, read_head
from luxx.runs.turn.state import RunSpec, TurnState, fold
from luxx.runs.turn.turn_log import initial_state
from luxx.wire.model_settings import PlanningMode
from luxx.wire.turn_event import ContextCompressed

_messages, _runs, _events = table_of(MessageRow), table_of(RunRow), table_of(RunEventRow)
_newest_compression = (
    select(_events.c.data)
    .join(_runs, _runs.c.id == _events.c.run_id)
    .where(
        _events.c.type == "context_compressed",
        _runs.c.subject_id == bindparam("conversation"),
        or_(
            # A run that answers nothing names the answer that keeps what it left out.
            func.coalesce(_runs.c.message_id, _runs.c.question_id).in_(select(PATH_TO_ROOT.c.id)),
            _runs.c.id == bindparam("active_run"),
        ),
    )
    .order_by(_events.c.run_id.desc(), _events.c.seq.desc())
    .limit(1)
)
_T = TypeVar("_T")
_event = msgspec.json.Decoder(ContextCompressed)


class PromptPart(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated tokens of one part of a prompt."""

    name: SectionKind
    tokens: int


class ConversationContext(msgspec.Struct, frozen=True, kw_only=True):
    """The next prompt of a conversation, in estimated tokens; while an answer is made, that of its next model
    call. `window`: the model's, null if it is not known. `budget`: the window without the answer.
    `last_compression`: the newest event of the selected branch, null if there is none or its log was deleted.
    """

    model: str
    window: int | None
    budget: int
    estimated_tokens: int
    utilization_pct: float
    parts: list[PromptPart]
    last_compression: ContextCompressed | None


class _Next(msgspec.Struct, frozen=True, kw_only=True):
    """The turn that makes the next prompt, in its state."""

    spec: RunSpec
    state: TurnState
    resources: PromptResources
    last_compression: ContextCompressed | None = None


@dataclass(frozen=True, slots=True, repr=False)
class NextPrompts:
    """One per process."""

    chats: ChatService
    resources: ResourceFinder

    async def describe(self, caller: Caller, conversation_id: str) -> ConversationContext:
        """Raises NotFound, and what sending a message raises for its provider, model, agent and tools."""
        found = await self._read(caller, lambda session: self._next(session, caller, conversation_id))
        prompt = await self._prompt(found)
        record = prompt.record(found.state)
        tokens, budget = prompt.tokens(record), prompt.limits(record).usable
        return ConversationContext(
            model=found.spec.request.model,
            window=prompt.card_window,
            budget=budget,
            estimated_tokens=tokens,
            utilization_pct=round(100 * tokens / budget, 1),
            parts=[PromptPart(name=name, tokens=part) for name, part in prompt.parts(record).items()],
            last_compression=found.last_compression,
        )

    async def compression(self, caller: Caller, conversation_id: str) -> NewCompression:
        """The run that leaves out now what can be, to be started. Raises what `describe` raises; Conflict
        while an answer is made, without an answer, and where too little can be left out."""

        def read(session: Session) -> tuple[str, _Next]:
            conversation = own_conversation(session, caller, conversation_id)
            check_idle(conversation)
            answer_id = session.scalar(NEWEST_ANSWER, {"leaf_id": conversation.selected_leaf_id or ""})
            if answer_id is None:
                raise _nothing("this conversation has no answer yet, so there is nothing to compress")
            return answer_id, self._after(session, caller, conversation, answer_id)

        answer_id, found = await self._read(caller, read)
        prompt = await self._prompt(found)
        if await prompt.asked_cut(found.state) is None:
            raise _nothing(
                f"the next prompt of this conversation takes about {prompt.tokens(found.state.context):,} "
                "tokens; a summary of its older part would save too little"
            )
        return NewCompression(conversation_id=conversation_id, message_id=answer_id)

    async def _read(self, caller: Caller, read: Callable[[Session], _T]) -> _T:
        store = self.chats.admission.services.store
        try:
            return await self.chats.with_listed_models(caller, lambda: store.read(read))
        except InvalidInput as error:
            # Of the conversation: the caller has given no model.
            raise Conflict(error.message, kind=error.kind) from error

    async def _prompt(self, found: _Next) -> TurnPrompt:
        prompt = TurnPrompt(found.spec, found.resources, self.chats.admission.services.config.context)
        await prompt.read(found.state)
        return prompt

    def _next(self, session: Session, caller: Caller, conversation_id: str) -> _Next:
        conversation = own_conversation(session, caller, conversation_id)
        leaf_id = conversation.selected_leaf_id or ""
        found = self._of_run(session, conversation) or self._after(session, caller, conversation, leaf_id)
        if not found.state.context.window:
            return found  # Nothing was ever left out.
        key = {"conversation": conversation.id, "leaf_id": leaf_id, "active_run": conversation.run_id or ""}
        data = session.scalar(_newest_compression, key)
        return found if data is None else msgspec.structs.replace(found, last_compression=_event.decode(data))

    def _of_run(self, session: Session, conversation: ConversationRow) -> _Next | None:
        """The turn in progress; None if there is none, or several make the answer."""
        connection = session.connection()
        run = None if conversation.run_id is None else session.get(RunRow, conversation.run_id)
        head = None if run is None else read_head(connection, run.id, run.fence)
        spec = None if head is None else read_chat(connection, head)
        if spec is None or spec.request.planning != PlanningMode.OFF:
            return None
        state = fold(spec.events, initial_state(spec))
        return self._found(session, with_fallback(spec, state), state)

    def _after(
        self, session: Session, caller: Caller, conversation: ConversationRow, message_id: str
    ) -> _Next:
        """The next turn after a message."""
        options = NewCompression(conversation_id=conversation.id, message_id=message_id)
        request = self.chats.requests.resolve(
            session, caller, options, conversation, MessageAttachments(), message_id
        )
        past = read_path(session.connection(), message_id, with_images=request.takes_images)
        spec = RunSpec(
            run_id="", user_id=caller.user_id, tenant_id=caller.tenant_id, subject_id=conversation.id,
            message_id=None, fence=0, request=request, past=past, events=[],
        )  # fmt: skip
        return self._found(session, spec, TurnState(context=context_of(past)))

    def _found(self, session: Session, spec: RunSpec, state: TurnState) -> _Next:
        depth = self.chats.admission.services.config.limits.delegation_depth
        access = self.resources.read(session, spec)
        resources = self.resources.for_prompt(spec, access, delegation_depth=depth)
        return _Next(spec=spec, state=state, resources=resources)


def _nothing(sentence: str) -> LuxxError:
    return Conflict(sentence, kind="nothing_to_compress")
