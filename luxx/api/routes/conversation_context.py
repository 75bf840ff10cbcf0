"""`/conversations/{id}/context` and `/compress`: what the next prompt of a conversation takes of its
window, and less of it now."""

from functools import partial
from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Success, success
from luxx.api.http.event_streams import Streams
from luxx.api.http.request_input import InjectedCaller, TextId
from luxx.features.chats.next_prompt import ConversationContext, NextPrompts
from luxx.features.chats.service import ChatService


class CompressionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """It has no fields; the body can be left out."""


NO_FIELDS = CompressionBody()


class ConversationContextController(Controller):
    path = "/conversations"
    tags = ("conversations",)
    opt = CHAT

    @get("/{conversation_id:str}/context")
    async def context(
        self, caller: InjectedCaller, next_prompts: NamedDependency[NextPrompts], conversation_id: TextId
    ) -> Success[ConversationContext]:
        """How much of the model's context window the next prompt of a conversation takes, by its parts."""
        return success(await next_prompts.describe(caller, conversation_id))

    @post("/{conversation_id:str}/compress", status_code=200)
    async def compress(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        chats: NamedDependency[ChatService],
        streams: NamedDependency[Streams],
        next_prompts: NamedDependency[NextPrompts],
        conversation_id: TextId,
        accumulated: FromQuery[bool] = False,
        data: JSONBody[CompressionBody] = NO_FIELDS,
    ) -> Response[Any]:
        """Have the model summarise the older part of a conversation now; follow the run. With
        `Accept: application/json`: 202 and the run. 409 where too little can be left out."""
        del data
        asked = await next_prompts.compression(caller, conversation_id)
        return await streams.follow_started(
            request,
            caller,
            partial(chats.send, caller, asked),
            partial(chats.send_and_watch, caller, asked, accumulated=accumulated),
        )
