"""The operations on runs: send a message, watch, cancel, list. `turn/loop.py` has the loop itself."""

import asyncio
import time
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.user_data import read_settings
from luxx.domain.conversations.access import locked_message, message_in, own_conversation
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.views import MessageView
from luxx.domain.files.attachments import AttachmentReader, GivenAttachment, MessageAttachments
from luxx.domain.usage.reserve import check_price
from luxx.errors import Conflict, InvalidInput, Unavailable
from luxx.providers.service import ProviderService
from luxx.runs.admission import UNFINISHED, NewChat, admit, answer_of, limits_for, run_detail
from luxx.runs.context import RunServices
from luxx.runs.engine.cancel import mark_cancelled
from luxx.runs.engine.driver import RunDriver
from luxx.runs.engine.slots import has_subagents
from luxx.runs.log.events import StoredEvent, read_page
from luxx.runs.log.retention import check_log
from luxx.runs.models import RunFilter, RunRight, RunRow, find_run, page_of_runs, run_view
from luxx.runs.streams.watch import RunWatch
from luxx.runs.turn.state import ChatRequest
from luxx.tools.compositions.service import ReadOwnTools
from luxx.tools.core import available_own_tools
from luxx.wire.message import UserContent
from luxx.wire.question import WhenAsked
from luxx.wire.run import ENDED, Run

T = TypeVar("T")

CANCEL_SECONDS = 0.45
"""How long `cancel` waits for the driver to write the end; a cancel must answer within 0.5 s."""

STOP_SECONDS = 15.0
"""How long `stop` waits. Another process ends its run at its next heartbeat or append; a dead process keeps
the run until its lease expires."""

STOPPING = "this server is stopping; send the request again in a moment"
STOPPING_SECONDS = 1
"""The Retry-After value: with several servers another one is available already."""

MAX_POLL_SECONDS = 1.0
"""Longest poll interval of `answer` for a run that is queued or driven elsewhere."""

POLL_SECONDS = 0.1
"""Poll interval for a run that another process drives."""

MIN_DRIVEN_POLL_SECONDS, MAX_DRIVEN_POLL_SECONDS = 1.0, 5.0
"""Poll interval of `answer` for a run that is driven here: a subagent of it may wait for a person."""


class AnswerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an answer; None means the default.

    `tools`: all that the user may use, none, or the named ones; default: all if the model supports tools.
    `response_schema` is a JSON schema for the answer's text. `when_asked`: whether the run waits when it must
    ask a person.
    """

    tools: bool | list[str] | None = None
    thinking_enabled: bool | None = None
    model: str | None = None
    provider_id: int | None = None
    response_schema: dict[str, Any] | None = None
    when_asked: WhenAsked | None = None


class NewMessage(AnswerOptions, frozen=True, kw_only=True):
    """A message to send, below `parent_id` or by default below the selected leaf."""

    conversation_id: str
    text: str
    attachments: list[GivenAttachment] = []
    parent_id: str | None = None


class Regeneration(AnswerOptions, frozen=True, kw_only=True):
    """A message to answer again: a user's message, or an assistant's whose user message is answered again."""

    message_id: str


class RunService:
    """One per process."""

    def __init__(
        self,
        services: RunServices,
        engine: RunDriver,
        providers: ProviderService,
        attachments: AttachmentReader,
        read_own_tools: ReadOwnTools,
    ) -> None:
        self._store = services.store
        self._hub = services.hub
        self._storage = services.storage
        self._notify = services.notify
        self._registry = services.executor.registry
        self._limits = services.config.limits
        self._when_asked = WhenAsked(services.config.tools.when_asked)
        self._engine = engine
        self._providers = providers
        self._attachments = attachments
        self._read_own_tools = read_own_tools

    async def send(self, caller: Caller, submission: NewMessage | Regeneration) -> Run:
        """Stores the message if it is new, and starts the run that answers it or queues it for a slot.

        Raises NotFound, InvalidInput, Conflict (a run is active), TooMany, TooLarge (over the storage limit)
        or Unavailable (the server stops); then nothing has changed.
        """
        run = await self._admit(caller, submission)
        await self._engine.begin(run)
        return run

    async def send_and_watch(
        self, caller: Caller, submission: NewMessage | Regeneration, *, accumulated: bool = False
    ) -> RunWatch:
        """`send`, with a watch attached before the run starts. The caller must attach to the watch."""
        run = await self._admit(caller, submission)
        watch = RunWatch(self._hub, self._store, run, accumulated=accumulated)
        watch.attach_before_start()
        await self._engine.begin(run)
        return watch

    async def _admit(self, caller: Caller, submission: NewMessage | Regeneration) -> Run:
        # Files are read before the transaction, so that no lock is held while a PDF is parsed.
        attachments = submission.attachments if isinstance(submission, NewMessage) else []
        gathered = MessageAttachments()
        if attachments:
            gathered = await self._attachments.read_attachments(caller, attachments)
        if not self._engine.is_open:
            raise Unavailable(STOPPING, kind="stopping", retry_after=STOPPING_SECONDS)

        size = 0
        if isinstance(submission, NewMessage):
            size = len(submission.text.encode()) + sum(len(image.data) for image in gathered.images.values())
        await self._storage.check(caller.user_id, size)

        def admit_run(session: Session) -> Run:
            if isinstance(submission, Regeneration):
                conversation, question_id = _answered_message(session, caller, submission.message_id)
                request = self._resolve_request(session, caller, conversation, submission, gathered)
                chat = NewChat(parent_id=question_id, request=request)
            else:
                conversation = own_conversation(session, caller, submission.conversation_id, is_locked=True)
                parent_id = submission.parent_id or conversation.selected_leaf_id
                if submission.parent_id is not None:
                    message_in(session, conversation, submission.parent_id)
                request = self._resolve_request(session, caller, conversation, submission, gathered)
                content = UserContent(text=submission.text, attachments=gathered.attachments)
                chat = NewChat(
                    parent_id=parent_id, content=content, images=gathered.images, request=request, size=size
                )
            limits = limits_for(session, caller, chat.request.provider_id, self._limits)
            return admit(session, caller, conversation, chat, self._engine.process, limits)

        async with self._engine.admission_lock:
            run = await self._store.write(admit_run)
        self._storage.add(caller.user_id, size)
        self._notify(run.id, caller.user_id)
        return run

    async def answer(self, caller: Caller, run: Run) -> MessageView:
        """The stored answer, once the run has ended.

        Raises ProviderFailed with the failure's own kind, TooMany or InvalidInput if a limit left nothing
        for an answer, Conflict if the run waits for a person, Unavailable if this server stops before the run
        ends. The details of these errors have the ids of the run and the message.
        """
        hub_closed = asyncio.create_task(self._hub.closed.wait())
        began = time.monotonic()
        try:
            while True:
                waited = time.monotonic() - began
                seconds = min(max(MIN_DRIVEN_POLL_SECONDS, waited / 10), MAX_DRIVEN_POLL_SECONDS)
                is_driven_here = await self._is_driven_here(run.id, hub_closed, seconds)
                answer = await self._store.read(lambda session: answer_of(session, caller, run.id))
                if answer is not None:
                    return answer
                if hub_closed.done():
                    raise Unavailable(UNFINISHED, kind="run_active", detail=run_detail(run))
                if is_driven_here:
                    continue
                # The run is queued, or another process drives it. Polling for its end needs no messages.
                waited = time.monotonic() - began
                await asyncio.wait(
                    {hub_closed}, timeout=min(max(POLL_SECONDS, waited / 10), MAX_POLL_SECONDS)
                )
        finally:
            hub_closed.cancel()

    async def _is_driven_here(self, run_id: str, hub_closed: asyncio.Task[Any], seconds: float) -> bool:
        """Waits for the drive to end, for the server to stop or for `seconds`; True if still driven."""
        drive_ended = asyncio.create_task(self._engine.wait(run_id, None))
        try:
            await asyncio.wait(
                {drive_ended, hub_closed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            return not drive_ended.done()
        finally:
            drive_ended.cancel()

    async def watch(
        self, caller: Caller, run_id: str, *, after: int = 0, accumulated: bool = False
    ) -> RunWatch:
        """A watch of the caller's run, from the event after `after`."""
        run = await self._store.read(lambda session: run_view(self._logged(session, caller, run_id)))
        _check_position(run, after)
        return RunWatch(self._hub, self._store, run, after=after, accumulated=accumulated)

    async def get(self, caller: Caller, run_id: str, right: RunRight = RunRight.SEE) -> Run:
        """Raises NotFound if there is no such run, or if the caller lacks the right to it."""
        return await self._store.read(lambda session: run_view(find_run(session, caller, run_id, right)))

    @staticmethod
    def _logged(session: Session, caller: Caller, run_id: str) -> RunRow:
        """The caller's run, if its log was not deleted. Raises NotFound or Gone."""
        row = find_run(session, caller, run_id)
        check_log(session.connection(), row)
        return row

    async def list_page(
        self, caller: Caller, run_filter: RunFilter, *, page: int, page_size: int
    ) -> tuple[list[Run], int]:
        """A page of the caller's runs, newest first, and how many match."""
        offset = 0 if run_filter.before else (page - 1) * page_size
        return await self._store.read(
            lambda session: page_of_runs(session, caller, run_filter, offset=offset, limit=page_size)
        )

    async def events(
        self, caller: Caller, run_id: str, *, after: int, limit: int
    ) -> tuple[list[StoredEvent], bool]:
        """Up to `limit` logged events after `after`, oldest first, and whether there are more."""

        def read_events(session: Session) -> tuple[list[StoredEvent], bool]:
            row = self._logged(session, caller, run_id)
            last_seq = row.last_seq
            _check_position(row, after)
            events = read_page(session, run_id, after, limit=limit)
            return events, bool(events) and events[-1].seq < last_seq

        return await self._store.read(read_events)

    async def cancel(self, caller: Caller, run_id: str) -> Run:
        """Cancels a run and keeps its text so far. Raises Conflict if it has already ended."""
        run = await self.get(caller, run_id, RunRight.STEER)
        if run.status in ENDED:
            raise Conflict(f"this run has already ended: {run.status}", kind="run_ended")
        await self._store.write_rows(lambda connection: mark_cancelled(connection, RunRow.id == run_id))
        await self._engine.cancel(run_id)
        return await self._ended_within(caller, run_id, CANCEL_SECONDS)

    async def stop(self, caller: Caller, run_id: str) -> None:
        """Cancels a run if it has not ended, and waits until it and its subagents have ended.

        Raises Conflict after STOP_SECONDS.
        """
        until = time.monotonic() + STOP_SECONDS
        with suppress(Conflict):  # The run has ended already.
            await self.cancel(caller, run_id)
        run = await self._ended_within(caller, run_id, STOP_SECONDS)
        while run.status not in ENDED or await self._store.read_rows(
            lambda connection: has_subagents(connection, run.subject_id)
        ):
            if time.monotonic() > until:
                raise Conflict("a run of this conversation is still stopping; try again", kind="run_active")
            await asyncio.sleep(POLL_SECONDS)

    async def _ended_within(self, caller: Caller, run_id: str, seconds: float) -> Run:
        """The run once it has ended, or its current state after `seconds`."""
        until = time.monotonic() + seconds
        await self._engine.wait(run_id, seconds)
        while (run := await self.get(caller, run_id)).status not in ENDED:
            remaining = until - time.monotonic()
            if remaining <= 0:
                break
            await asyncio.sleep(min(POLL_SECONDS, remaining))
        return run

    def _resolve_request(
        self,
        session: Session,
        caller: Caller,
        conversation: ConversationRow,
        options: AnswerOptions,
        gathered: MessageAttachments,
    ) -> ChatRequest:
        """The request with every default resolved: from the message, the conversation, then the user."""
        settings = read_settings(session, caller)
        choice = self._providers.select_provider(
            session,
            caller,
            options.provider_id or conversation.provider_id,
            options.model or _model(conversation, options),
            preferred_id=settings.default_provider_id,
        ).choice
        if gathered.images and not choice.card.may_take_images:
            raise InvalidInput(
                f"the model {choice.model} accepts no images; choose another model or omit them",
                kind="images_not_taken",
                field="$.attachments",
            )
        check_price(choice.card, self._limits, choice.model)
        thinking = _first_set(
            options.thinking_enabled, conversation.thinking_enabled, settings.thinking_enabled
        )
        if options.response_schema is not None and not choice.card.structured:
            raise InvalidInput(
                f"{choice.model} is not known to support JSON schemas; omit response_format, "
                "or choose another model",
                kind="response_format_unsupported",
                field="$.response_format",
            )
        return ChatRequest(
            parent_id="",
            provider_id=choice.provider_id,
            model=choice.model,
            tools=self._tools(session, caller, options.tools, has_tools=choice.card.tools),
            takes_images=choice.card.may_take_images,
            thinking_enabled=bool(thinking),
            temperature=_first_set(conversation.temperature, settings.temperature),
            max_tokens=_first_set(conversation.max_tokens, settings.max_tokens, choice.max_tokens),
            system_prompt=_first_set(conversation.system_prompt, settings.system_prompt) or "",
            response_schema=options.response_schema,
            when_asked=options.when_asked or self._when_asked,
        )

    def _tools(
        self, session: Session, caller: Caller, wanted_tools: bool | list[str] | None, *, has_tools: bool
    ) -> list[str]:
        if not (has_tools if wanted_tools is None else wanted_tools):
            return []
        own = self._read_own_tools(session.connection(), caller.user_id)
        level = caller.permission_level
        shared = self._registry.available_to(level, tenant_id=caller.tenant_id)
        available = [tool.name for tool in (*shared, *available_own_tools(own, level))]
        if isinstance(wanted_tools, list):
            unknown = sorted(set(wanted_tools) - set(available))
            if unknown:
                raise InvalidInput(
                    f"no tool named {', '.join(unknown)} at your permission level; GET /tools lists yours",
                    kind="tool_unknown",
                    field="$.tools",
                )
            return [name for name in available if name in wanted_tools]
        return available


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


def _model(conversation: ConversationRow, options: AnswerOptions) -> str | None:
    """The conversation's model, unless the options name another provider."""
    is_elsewhere = options.provider_id not in (None, conversation.provider_id)
    return None if is_elsewhere else conversation.model


def _check_position(run: Run | RunRow, after: int) -> None:
    if after > run.last_seq:
        raise InvalidInput(f"this run's log ends at {run.last_seq}; there is no event {after}")


def _first_set(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)
