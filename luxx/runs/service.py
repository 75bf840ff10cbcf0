"""Runs as callers use them: send a message, watch, cancel, look back. The loop itself is `loop.py`'s."""

import asyncio
import time
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.settings import read_settings
from luxx.domain.conversations.access import locked_message, message_in, own_conversation
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.views import MessageView
from luxx.domain.files.attachments import AttachmentReader, GivenAttachment, MessageAttachments
from luxx.domain.usage.reserve import check_price
from luxx.errors import Conflict, InvalidInput, Unavailable
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store
from luxx.providers.service import ProviderService
from luxx.runs.admission import UNFINISHED, NewChat, admit, answer_of, limits_for, run_detail
from luxx.runs.engine.processes import RunEngine
from luxx.runs.log.events import StoredEvent, read_page
from luxx.runs.log.retention import check_log
from luxx.runs.models import RunFilter, RunRow, own_run, page_of_runs, run_view
from luxx.runs.question_rows import wake
from luxx.runs.storage import StorageUse
from luxx.runs.streams.hub import Hub
from luxx.runs.streams.notices import Notify
from luxx.runs.streams.watch import RunWatch
from luxx.runs.subagents import has_subagents
from luxx.runs.turn.spec import ChatRequest
from luxx.tools.compositions.service import ReadOwnTools
from luxx.tools.core import ToolRegistry, available_own_tools
from luxx.wire.message import UserContent
from luxx.wire.question import WhenAsked
from luxx.wire.run import ENDED, Run

T = TypeVar("T")

CANCEL_SECONDS = 0.45
"""How long `cancel` waits for the driver to write the end: the answer is promised within 0.5 s."""

STOP_SECONDS = 15.0
"""How long `stop` waits: another process ends a run at its next beat or append, and one that died with a
run keeps it until its lease is over."""

STOPPING = "this server is stopping; send it again in a moment, to whichever server answers then"
STOPPING_SECONDS = 1
"""When to try again: where there are several servers the next one is up already."""

MAX_POLL_SECONDS = 1.0
"""A run that has no place, or is driven elsewhere, is looked at at least so often for one who awaits its
answer; the sooner, the shorter it has been waited for."""

POLL_SECONDS = 0.1
"""How often a run that another process drives is looked at."""

MIN_DRIVEN_POLL_SECONDS, MAX_DRIVEN_POLL_SECONDS = 1.0, 5.0
"""How often one that is driven here is: a subagent of it may wait for a person."""


class AnswerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to be answered. `tools`: all the user may use, none, or those named; None: what suits the model.

    `response_schema` is a JSON schema for the text of the answer. `when_asked`: whether the run waits where
    it has to ask; None: as the configuration says.
    """

    tools: bool | list[str] | None = None
    thinking_enabled: bool | None = None
    model: str | None = None
    provider_id: int | None = None
    response_schema: dict[str, Any] | None = None
    when_asked: WhenAsked | None = None


class NewMessage(AnswerOptions, frozen=True, kw_only=True):
    """A message to send, below `parent_id` where that is given, else below the selected leaf."""

    conversation_id: str
    text: str
    attachments: list[GivenAttachment] = []
    parent_id: str | None = None


class Regeneration(AnswerOptions, frozen=True, kw_only=True):
    """A message to answer once more: a user's, or the one that an assistant's message answers."""

    message_id: str


class RunService:
    """One per process."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        engine: RunEngine,
        providers: ProviderService,
        registry: ToolRegistry,
        limits: LimitsConfig,
        attachments: AttachmentReader,
        notify: Notify,
        read_own_tools: ReadOwnTools,
        storage: StorageUse,
        when_asked: WhenAsked = WhenAsked.WAIT,
    ) -> None:
        self._storage = storage
        self._read_own_tools = read_own_tools
        self._notify = notify
        self._when_asked = when_asked
        self._store = store
        self._hub = hub
        self._engine = engine
        self._providers = providers
        self._registry = registry
        self._limits = limits
        self._attachments = attachments

    async def send(self, caller: Caller, submission: NewMessage | Regeneration) -> Run:
        """Stores the message if it is new, makes the run that answers it and starts it.

        Where there is no place for it, it waits for one. Raises NotFound, InvalidInput, Conflict (one runs
        already), TooMany, TooLarge (the user has stored too much) or Unavailable (the server stops); then
        nothing has changed.
        """
        run = await self._admit(caller, submission)
        await self._engine.begin(run)
        return run

    async def send_and_watch(
        self, caller: Caller, submission: NewMessage | Regeneration, *, accumulated: bool = False
    ) -> RunWatch:
        """`send`, with a watch that is attached before the run begins. Whoever takes it must attach to it."""
        run = await self._admit(caller, submission)
        watch = RunWatch(self._hub, self._store, run, accumulated=accumulated)
        watch.attach_before_start()
        await self._engine.begin(run)
        return watch

    async def _admit(self, caller: Caller, submission: NewMessage | Regeneration) -> Run:
        # Files are read before, so that no lock is held while a PDF is.
        given = submission.attachments if isinstance(submission, NewMessage) else []
        gathered = await self._attachments.read_attachments(caller, given)
        if not self._engine.is_open:
            raise Unavailable(STOPPING, kind="stopping", retry_after=STOPPING_SECONDS)

        size = 0
        if isinstance(submission, NewMessage):
            size = len(submission.text.encode()) + sum(len(image.data) for image in gathered.images.values())
        await self._storage.check(caller.user_id, size)

        def work(session: Session) -> Run:
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
                    parent_id=parent_id,
                    content=content,
                    images=gathered.images,
                    request=request,
                    size=size,
                )
            limits = limits_for(session, caller, chat.request.provider_id, self._limits)
            return admit(session, caller, conversation, chat, self._engine.process, limits)

        async with self._engine.admission_lock:
            run = await self._store.write(work)
        self._storage.add(caller.user_id, size)
        self._notify(run.id, caller.user_id)
        return run

    async def answer(self, caller: Caller, run: Run) -> MessageView:
        """The stored answer, once the run has ended.

        Raises ProviderFailed with the failure's own kind, TooMany or InvalidInput where a limit left no
        room for a first word, Conflict where the run waits for a person's answer, Unavailable where it is
        not over: then it goes on, here or elsewhere, and can be followed. All name the run and the message.
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
                # It has no place yet, or another process drives it. What it says is not wanted, only its
                # end: nobody need tell us of it, and who has waited long waits a little longer.
                waited = time.monotonic() - began
                await asyncio.wait(
                    {hub_closed}, timeout=min(max(POLL_SECONDS, waited / 10), MAX_POLL_SECONDS)
                )
        finally:
            hub_closed.cancel()

    async def _is_driven_here(self, run_id: str, hub_closed: asyncio.Task[Any], seconds: float) -> bool:
        """Returns when it no longer is, when the server begins to stop, or after `seconds`."""
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
        """A cursor over a run of the caller's, from the event after `after`."""
        run = await self._store.read(lambda session: run_view(self._logged(session, caller, run_id)))
        if after > run.last_seq:
            raise InvalidInput(f"this run's log ends at {run.last_seq}; there is no event {after}")
        return RunWatch(self._hub, self._store, run, after=after, accumulated=accumulated)

    async def get(self, caller: Caller, run_id: str) -> Run:
        return await self._store.read(lambda session: run_view(own_run(session, caller, run_id)))

    @staticmethod
    def _logged(session: Session, caller: Caller, run_id: str) -> RunRow:
        """A run of the caller's that still has its log. Raises NotFound or Gone."""
        row = own_run(session, caller, run_id)
        check_log(session.connection(), row)
        return row

    async def list_page(
        self, caller: Caller, run_filter: RunFilter, *, page: int, page_size: int
    ) -> tuple[list[Run], int]:
        """The caller's runs, newest first, and how many match."""
        offset = 0 if run_filter.before else (page - 1) * page_size
        return await self._store.read(
            lambda session: page_of_runs(session, caller, run_filter, offset=offset, limit=page_size)
        )

    async def events(
        self, caller: Caller, run_id: str, *, after: int, limit: int
    ) -> tuple[list[StoredEvent], bool]:
        """Up to `limit` logged events after `after`, oldest first, and whether there are more."""

        def work(session: Session) -> tuple[list[StoredEvent], bool]:
            last_seq = self._logged(session, caller, run_id).last_seq
            events = read_page(session, run_id, after, limit=limit)
            return events, bool(events) and events[-1].seq < last_seq

        return await self._store.read(work)

    async def cancel(self, caller: Caller, run_id: str) -> Run:
        """Ends a run for good; its text so far is kept. Raises Conflict if it has already ended."""
        run = await self.get(caller, run_id)
        if run.status in ENDED:
            raise Conflict(f"this run has already ended: {run.status}", kind="run_ended")
        await self._store.write(lambda session: _mark_cancelled(session, caller, run_id))
        await self._engine.cancel(run_id)
        return await self._ended_within(caller, run_id, CANCEL_SECONDS)

    async def stop(self, caller: Caller, run_id: str) -> None:
        """Cancels a run if it has not ended, and returns when it and its subagents have.

        Raises Conflict after STOP_SECONDS.
        """
        until = time.monotonic() + STOP_SECONDS
        with suppress(Conflict):  # It has ended by itself.
            await self.cancel(caller, run_id)
        run = await self._ended_within(caller, run_id, STOP_SECONDS)
        while run.status not in ENDED or await self._has_subagents(run.subject_id):
            if time.monotonic() > until:
                raise Conflict(
                    "what runs here is being stopped, which takes a while; try again", kind="run_active"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _has_subagents(self, subject_id: str) -> bool:
        return await self._store.read_rows(lambda connection: has_subagents(connection, subject_id))

    async def _ended_within(self, caller: Caller, run_id: str, seconds: float) -> Run:
        """The run once it has ended, or as it is after `seconds`. One driven elsewhere is looked at."""
        until = time.monotonic() + seconds
        await self._engine.wait(run_id, seconds)
        while (run := await self.get(caller, run_id)).status not in ENDED:
            left = until - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(POLL_SECONDS, left))
        return run

    def _resolve_request(
        self,
        session: Session,
        caller: Caller,
        conversation: ConversationRow,
        options: AnswerOptions,
        gathered: MessageAttachments,
    ) -> ChatRequest:
        """What was asked, with every default settled: the message's, the conversation's, the user's."""
        settings = read_settings(session, caller)
        choice = self._providers.choose(
            session,
            caller,
            options.provider_id or conversation.provider_id,
            options.model or _model(conversation, options),
            preferred_id=settings.default_provider_id,
        )
        if gathered.images and not choice.card.may_take_images:
            raise InvalidInput(
                f"the model {choice.model} takes no images; choose another or leave them out",
                kind="images_not_taken",
                detail={"fields": {"$.attachments": "images"}},
            )
        check_price(choice.card, self._limits, choice.model)
        thinking = _first_set(
            options.thinking_enabled, conversation.thinking_enabled, settings.thinking_enabled
        )
        if options.response_schema is not None and not choice.card.structured:
            raise InvalidInput(
                f"{choice.model} is not known to keep to a JSON schema; leave response_format out, "
                "or choose another model",
                kind="response_format_unsupported",
                detail={"fields": {"$.response_format": "not for this model"}},
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
        self, session: Session, caller: Caller, asked: bool | list[str] | None, *, has_tools: bool
    ) -> list[str]:
        if not (has_tools if asked is None else asked):
            return []
        own = self._read_own_tools(session.connection(), caller.user_id)
        level = caller.permission_level
        shared = self._registry.available_to(level, tenant_id=caller.tenant_id)
        available = [tool.name for tool in (*shared, *available_own_tools(own, level))]
        if isinstance(asked, list):
            unknown = sorted(set(asked) - set(available))
            if unknown:
                raise InvalidInput(
                    f"no tool named {', '.join(unknown)} at your permission level; GET /tools lists yours",
                    kind="tool_unknown",
                    detail={"fields": {"$.tools": "unknown tool"}},
                )
            return [name for name in available if name in asked]
        return available


def _answered_message(session: Session, caller: Caller, message_id: str) -> tuple[ConversationRow, str]:
    """The user's message that is answered again with this one, and its conversation, locked."""
    conversation, row = locked_message(session, caller, message_id)
    asked: MessageRow | None = row
    if row.role != "user":
        asked = None if row.parent_id is None else session.get(MessageRow, row.parent_id)
    if asked is None or asked.role != "user":
        raise InvalidInput(
            "this message answers nothing that a person said, so there is nothing to answer again",
            kind="not_answerable",
        )
    return conversation, asked.id


def _model(conversation: ConversationRow, options: AnswerOptions) -> str | None:
    """The conversation's model, unless the message names another provider than the conversation's."""
    is_elsewhere = options.provider_id not in (None, conversation.provider_id)
    return None if is_elsewhere else conversation.model


def _first_set(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)


def _mark_cancelled(session: Session, caller: Caller, run_id: str) -> None:
    own_run(session, caller, run_id).is_cancelled = True
    session.flush()
    # One that waits is driven once more, to its end.
    wake(session.connection(), RunRow.id == run_id)
