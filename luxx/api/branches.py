"""Branches over HTTP: answer a message again, edit it, cut it off; a conversation's tree, and forking it."""

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody
from msgspec import UNSET, Meta, UnsetType

from luxx.api.envelope import Success, success
from luxx.api.messages import AskingBody, AttachmentBody, Text, attachment, check_text, wants_json
from luxx.api.parameters import GivenCaller, TextId
from luxx.api.response_format import response_schema
from luxx.api.sse import Streams
from luxx.conversations.branches import BranchService, ConversationTree
from luxx.conversations.service import ConversationService
from luxx.conversations.views import ConversationView, MessageView
from luxx.files.attachments import AttachmentReader
from luxx.runs.service import AskingAgain, RunService
from luxx.wire.message import MAX_ATTACHMENTS


class EditBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`attachments` left out are the old message's; an empty list is none."""

    content: Text
    attachments: Annotated[list[AttachmentBody], Meta(max_length=MAX_ATTACHMENTS)] | UnsetType = UNSET


class ForkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`message_id`: the last message to copy; left out, the selected leaf."""

    message_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


AS_USUAL = AskingBody()
WHOLE_PATH = ForkBody()


class MessageBranchController(Controller):
    path = "/messages"
    tags = ("messages",)

    @post("/{message_id:str}/regenerate", status_code=200)
    async def regenerate(
        self,
        request: Request[Any, Any, Any],
        caller: GivenCaller,
        runs: NamedDependency[RunService],
        streams: NamedDependency[Streams],
        message_id: TextId,
        accumulated: FromQuery[bool] = False,
        data: JSONBody[AskingBody] = AS_USUAL,
    ) -> Response[Any]:
        """Answer once more: a user's message, or the one that an answer belongs to; follow the run.

        What there is stays; the new answer is its sibling and the selected leaf. With
        `Accept: application/json`: 202 and the run.
        """
        asking = await _asking_again(message_id, data)
        if wants_json(request):
            run = await runs.send(caller, asking)
            return Response(success(run, "started"), status_code=202, media_type="application/json")
        return await streams.follow(
            caller, lambda: runs.send_and_watch(caller, asking, accumulated=accumulated)
        )

    @put("/{message_id:str}")
    async def edit(
        self,
        caller: GivenCaller,
        branches: NamedDependency[BranchService],
        attachments: NamedDependency[AttachmentReader],
        message_id: TextId,
        data: JSONBody[EditBody],
    ) -> Success[MessageView]:
        """Say a message of yours anew: a sibling of it, and the selected leaf; nothing is generated."""
        check_text(data.content)
        if data.attachments is UNSET:
            return success(await branches.edit(caller, message_id, data.content), "saved")
        new = await attachments.gather(caller, [attachment(file) for file in data.attachments])
        edited = await branches.edit(caller, message_id, data.content, new.attachments, new.images)
        return success(edited, "saved")

    @delete("/{message_id:str}", status_code=200)
    async def delete(
        self, caller: GivenCaller, conversations: NamedDependency[ConversationService], message_id: TextId
    ) -> Success[None]:
        """Delete a message and what follows it."""
        await conversations.delete_message(caller, message_id)
        return success(None, "deleted")


class ConversationBranchController(Controller):
    path = "/conversations"
    tags = ("conversations",)

    @get("/{conversation_id:str}/tree")
    async def tree(
        self, caller: GivenCaller, branches: NamedDependency[BranchService], conversation_id: TextId
    ) -> Success[ConversationTree]:
        """All messages in short with what follows which, and the selected path."""
        return success(await branches.tree(caller, conversation_id))

    @post("/{conversation_id:str}/fork", status_code=201)
    async def fork(
        self,
        caller: GivenCaller,
        branches: NamedDependency[BranchService],
        conversation_id: TextId,
        data: JSONBody[ForkBody] = WHOLE_PATH,
    ) -> Success[ConversationView]:
        """A new conversation with a copy of the path to a message; the original stays as it is."""
        return success(await branches.fork(caller, conversation_id, data.message_id), "forked")


async def _asking_again(message_id: str, body: AskingBody) -> AskingAgain:
    return AskingAgain(
        message_id=message_id,
        response_schema=await response_schema(body.response_format),
        when_asked=body.when_asked,
        tools=body.tools,
        thinking_enabled=body.thinking_enabled,
        model=body.model,
        provider_id=body.provider_id,
    )
