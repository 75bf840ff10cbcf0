"""`/messages`: list, send with a complete or streamed answer, edit, regenerate; fork a conversation."""

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from luxx.api.http.answer_schemas import ResponseFormat, checked_schema
from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, success
from luxx.api.http.event_streams import Streams
from luxx.api.http.request_input import (
    OPENAPI_EXTRA,
    TAKES_CUT_TEXT,
    BeforeId,
    InjectedCaller,
    LimitParameter,
    PageNumber,
    PageSize,
    TextId,
    has_cut_text,
)
from luxx.domain.conversations.branches import BranchService, ConversationTree
from luxx.domain.conversations.service import ConversationService
from luxx.domain.conversations.views import ConversationView, MessageView
from luxx.domain.files.attachments import AttachmentReader, GivenAttachment
from luxx.domain.skills.changes import SkillName
from luxx.errors import InvalidInput
from luxx.features.chats.queue import ChatQueue
from luxx.features.chats.service import ChatService
from luxx.features.memory.recall import MemoryRecall, RecalledView
from luxx.infra.store.tables import first_given
from luxx.runs.options import NewMessage, Regeneration
from luxx.wire.message import (
    MAX_ATTACHED_TEXT,
    MAX_ATTACHMENTS,
    MAX_EXTENSION,
    MAX_FILE_NAME,
    MAX_MESSAGE_TEXT,
)
from luxx.wire.model_settings import ModelSettings, PlanningMode
from luxx.wire.queue import QueuedMessage, WhenBusy
from luxx.wire.run import WhenAsked

InjectedConversations = NamedDependency[ConversationService]
InjectedChats = NamedDependency[ChatService]
InjectedQueue = NamedDependency[ChatQueue]
InjectedStreams = NamedDependency[Streams]
InjectedBranches = NamedDependency[BranchService]
InjectedRecall = NamedDependency[MemoryRecall]

MessageText = Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE_TEXT)]
TOO_LARGE_PAGE = {"responses": {"413": {"$ref": "#/components/responses/TooLarge"}}}
MOST_GIVEN_SKILLS = 5
RequestedToolName = Annotated[str, Meta(min_length=1, max_length=200)]


class AttachmentBody(GivenAttachment, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of three: a text (`name`, `content`, optional `extension`), an image (`name`, `data` in base64,
    optional `media_type` and `offset`), or a file of the workspace (`file_id`): text, a PDF, or an image.
    """

    name: Annotated[str, Meta(min_length=1, max_length=MAX_FILE_NAME)] | UnsetType = UNSET
    content: Annotated[str, Meta(max_length=MAX_ATTACHED_TEXT)] | UnsetType = UNSET
    extension: Annotated[str, Meta(max_length=MAX_EXTENSION)] | UnsetType = UNSET
    file_id: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType = UNSET
    media_type: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET
    data: bytes | UnsetType = UNSET


class InvocationOptionsBody(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of an answer. `tools`: true for all you may use, false for none, or names; default: what the
    model supports. `response_format`: the JSON schema for the text of the answer. `when_asked`: what to do
    if the run has a question: `wait` for a person, or `deny` it.
    """

    tools: bool | Annotated[list[RequestedToolName], Meta(max_length=200)] | None = None
    model: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    provider_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    response_format: ResponseFormat | None = None
    when_asked: WhenAsked | None = None


CUT_TEXT = (
    "The message has characters that were no valid text, such as half of an emoji; each stands as U+FFFD."
)


class AnswerOptionsBody(InvocationOptionsBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of an answer in a conversation. `planning`: whether it may be made by a plan of steps.
    `skills`: names of skills to activate for it; null: none, or those of the answer before."""

    planning: PlanningMode | None = None
    skills: Annotated[list[SkillName], Meta(max_length=MOST_GIVEN_SKILLS)] | None = None


class MessageBody(AnswerOptionsBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`parent_id`: the message that this one follows; default: the selected leaf. `when_busy`: what becomes
    of the message while an answer is made: `queue` sends it afterwards, `steer` lets the answer see it; by
    default it is refused.
    """

    conversation_id: Annotated[str, Meta(min_length=1, max_length=64)]
    content: MessageText
    attachments: Annotated[list[AttachmentBody], Meta(max_length=MAX_ATTACHMENTS)] = []
    parent_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    when_busy: WhenBusy | None = None


class AttachmentsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attachments of a message that is not sent yet."""

    attachments: Annotated[list[AttachmentBody], Meta(min_length=1, max_length=MAX_ATTACHMENTS)]


class InvocationBody(InvocationOptionsBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message for an agent, without a conversation."""

    content: MessageText
    attachments: Annotated[list[AttachmentBody], Meta(max_length=MAX_ATTACHMENTS)] = []


class MessagePage(Page[MessageView], frozen=True, kw_only=True):
    """A page of messages. `has_more`: older messages follow the last item."""

    has_more: bool


class RecalledFacts(msgspec.Struct, frozen=True, kw_only=True):
    """In the order in which the model read them."""

    items: list[RecalledView]


class MessageController(Controller):
    path = "/messages"
    tags = ("messages",)
    opt = CHAT | {TAKES_CUT_TEXT: True}

    @get("/{message_id:str}/recalled")
    async def recalled(
        self, caller: InjectedCaller, memory_recall: InjectedRecall, message_id: TextId
    ) -> Success[RecalledFacts]:
        """The remembered facts that a model was given for a message, and why; deleted ones are left out."""
        return success(RecalledFacts(items=await memory_recall.recalled(caller, message_id)))

    @get(opt={OPENAPI_EXTRA: TOO_LARGE_PAGE})
    async def list_messages(
        self,
        caller: InjectedCaller,
        conversations: InjectedConversations,
        conversation_id: Annotated[str, QueryParameter(max_length=64)],
        page: PageNumber = 1,
        page_size: PageSize = 20,
        before: BeforeId = None,
        limit: LimitParameter = None,
    ) -> Success[MessagePage]:
        """A conversation's messages, newest first.

        With `limit` or `before`: as many as fit into one response, and `has_more` says whether older ones
        follow. A page is complete or, if it is too large, refused with 413.
        """
        size = limit or page_size
        if before is not None or (limit is not None and page == 1):
            message_page = await conversations.list_messages_before(
                caller, conversation_id, limit=size, before=before
            )
        else:
            message_page = await conversations.list_messages(
                caller, conversation_id, page=page, page_size=size
            )
        return success(
            MessagePage(
                items=message_page.items,
                total=message_page.total,
                page=page,
                page_size=size,
                has_more=message_page.has_more,
            )
        )

    @post(status_code=200)
    async def send(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        chats: InjectedChats,
        chat_queue: InjectedQueue,
        data: JSONBody[MessageBody],
    ) -> Response[Success[MessageView]]:
        """Send a message and wait for the complete answer. One that waits (`when_busy`) gets 202."""
        message = await _new_message(request, data)
        send = partial(chats.send, caller, message)
        run = await (
            send()
            if data.when_busy is None
            else chat_queue.send_or_queue(caller, message, data.when_busy, send)
        )
        if isinstance(run, QueuedMessage):
            return _waits(run)
        return Response(success(await chats.answer(caller, run)), media_type="application/json")

    @post("/stream", status_code=200)
    async def stream(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        chats: InjectedChats,
        streams: InjectedStreams,
        chat_queue: InjectedQueue,
        data: JSONBody[MessageBody],
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Send a message and follow its run. With `Accept: application/json`: 202 and the run. One that waits
        (`when_busy`): 202 and its place."""
        message = await _new_message(request, data)
        follow = partial(
            streams.follow_started,
            request,
            caller,
            partial(chats.send, caller, message),
            partial(chats.send_and_watch, caller, message, accumulated=accumulated),
        )
        if data.when_busy is None:
            return await follow()
        response = await chat_queue.send_or_queue(caller, message, data.when_busy, follow)
        return _waits(response) if isinstance(response, QueuedMessage) else response

    @post("/attachments/check", status_code=200)
    async def check_attachments(
        self,
        caller: InjectedCaller,
        attachments: NamedDependency[AttachmentReader],
        data: JSONBody[AttachmentsBody],
    ) -> Success[None]:
        """Read attachments as a message with them would, so that a client can refuse them early.

        Nothing is stored.
        """
        await attachments.read_attachments(caller, [*data.attachments])
        return success(None, "readable")


def _waits(queued: QueuedMessage) -> Response[Any]:
    return Response(success(queued, queued.mode.value), status_code=202, media_type="application/json")


def check_text(text: str) -> None:
    """Raises InvalidInput for a message without a visible character."""
    if not text.strip():
        raise InvalidInput("a message needs at least one visible character", field="$.content")


async def _new_message(request: Request[Any, Any, Any], body: MessageBody) -> NewMessage:
    check_text(body.content)
    return NewMessage(
        conversation_id=body.conversation_id,
        text=body.content,
        attachments=[*body.attachments],
        parent_id=body.parent_id,
        planning=body.planning,
        skills=body.skills or [],
        **await answer_options(request, body),
    )


async def answer_options(request: Request[Any, Any, Any], body: InvocationOptionsBody) -> dict[str, Any]:
    """The fields of `AnswerOptions` from the body of a request. Raises InvalidInput for a wrong
    `response_format`."""
    return {
        "warnings": [CUT_TEXT] if has_cut_text(request) else [],
        "response_schema": None
        if body.response_format is None
        else await checked_schema(body.response_format),
        "when_asked": body.when_asked,
        "tools": body.tools,
        "model": body.model,
        "provider_id": body.provider_id,
        **first_given(body),
    }


class EditBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`attachments`: default the old message's; an empty list removes them."""

    content: MessageText
    attachments: Annotated[list[AttachmentBody], Meta(max_length=MAX_ATTACHMENTS)] | UnsetType = UNSET


class ForkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`message_id`: the last message to copy; default: the selected leaf."""

    message_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


DEFAULT_OPTIONS = AnswerOptionsBody()
WHOLE_PATH = ForkBody()


class MessageBranchController(Controller):
    path = "/messages"
    tags = ("messages",)
    opt = CHAT | {TAKES_CUT_TEXT: True}

    @post("/{message_id:str}/regenerate", status_code=200)
    async def regenerate(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        chats: InjectedChats,
        streams: InjectedStreams,
        message_id: TextId,
        accumulated: FromQuery[bool] = False,
        data: JSONBody[AnswerOptionsBody] = DEFAULT_OPTIONS,
    ) -> Response[Any]:
        """Generate another answer to a user's message, or to the message of an answer; follow the run.

        The old answer stays; the new one becomes its sibling and the selected leaf. Without `skills`, those
        that a person activated for the answer before are activated again. With `Accept: application/json`:
        202 and the run.
        """
        options = await answer_options(request, data)
        regeneration = Regeneration(
            message_id=message_id,
            planning=data.planning,
            skills=data.skills or [],
            repeats_skills=data.skills is None,
            **options,
        )
        return await streams.follow_started(
            request,
            caller,
            partial(chats.send, caller, regeneration),
            partial(chats.send_and_watch, caller, regeneration, accumulated=accumulated),
        )

    @put("/{message_id:str}")
    async def edit(
        self,
        caller: InjectedCaller,
        branches: InjectedBranches,
        attachments: NamedDependency[AttachmentReader],
        message_id: TextId,
        data: JSONBody[EditBody],
    ) -> Success[MessageView]:
        """Edit a message: the new one becomes its sibling and the selected leaf. Generates no answer.
        The text of an edited answer has your name as `edited_by`."""
        check_text(data.content)
        if data.attachments is UNSET:
            return success(await branches.edit(caller, message_id, data.content), "saved")
        new = await attachments.read_attachments(caller, [*data.attachments])
        edited = await branches.edit(caller, message_id, data.content, new.attachments, new.images)
        return success(edited, "saved")

    @delete("/{message_id:str}", status_code=200)
    async def delete(
        self, caller: InjectedCaller, conversations: InjectedConversations, message_id: TextId
    ) -> Success[None]:
        """Delete a message and all that follow it."""
        await conversations.delete_message(caller, message_id)
        return success(None, "deleted")


class ConversationBranchController(Controller):
    path = "/conversations"
    tags = ("conversations",)
    opt = CHAT

    @get("/{conversation_id:str}/tree")
    async def tree(
        self,
        caller: InjectedCaller,
        branches: InjectedBranches,
        conversation_id: TextId,
        is_brief: FromQuery[bool] = False,
    ) -> Success[ConversationTree]:
        """All messages in short form with their parents, and the selected path. `is_brief=true`: ids only."""
        return success(await branches.tree(caller, conversation_id, is_brief=is_brief))

    @post("/{conversation_id:str}/fork", status_code=201)
    async def fork(
        self,
        caller: InjectedCaller,
        branches: InjectedBranches,
        conversation_id: TextId,
        data: JSONBody[ForkBody] = WHOLE_PATH,
    ) -> Success[ConversationView]:
        """Create a conversation with a copy of the path to a message. The original does not change."""
        return success(await branches.fork(caller, conversation_id, data.message_id), "forked")
