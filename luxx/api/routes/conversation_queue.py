"""`/conversations/{id}/queue`: the messages that a person wrote while an answer is made."""

from typing import Annotated

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.params import JSONBody
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Success, success
from luxx.api.http.request_input import InjectedCaller, TextId
from luxx.api.routes.messages import InjectedQueue, MessageText, check_text
from luxx.wire.queue import Queue, QueueItem, WhenBusy


class QueueChangeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted field does not change. `mode`: `steer` lets the answer in progress see the message or, if
    none is made, sends it at once."""

    content: MessageText | None = None
    mode: Annotated[WhenBusy, Meta(description="`queue` or `steer`")] | None = None


class ConversationQueueController(Controller):
    path = "/conversations/{conversation_id:str}/queue"
    tags = ("conversations",)
    opt = CHAT

    @get()
    async def list_items(
        self, caller: InjectedCaller, chat_queue: InjectedQueue, conversation_id: TextId
    ) -> Success[Queue]:
        """The messages that wait in a conversation, in order, and whether they wait for a person."""
        return success(await chat_queue.list_items(caller, conversation_id))

    @post("/resume", status_code=200)
    async def resume(
        self, caller: InjectedCaller, chat_queue: InjectedQueue, conversation_id: TextId
    ) -> Success[Queue]:
        """Let a paused queue go on: its first message is sent at once, if no answer is made."""
        return success(await chat_queue.resume(caller, conversation_id), "resumed")

    @put("/{queue_id:str}")
    async def change_queued(
        self,
        caller: InjectedCaller,
        chat_queue: InjectedQueue,
        conversation_id: TextId,
        queue_id: TextId,
        data: JSONBody[QueueChangeBody],
    ) -> Success[QueueItem]:
        """Change the text of a message that waits, or what becomes of it."""
        if data.content is not None:
            check_text(data.content)
        item = await chat_queue.change(caller, conversation_id, queue_id, data.content, data.mode)
        return success(item, "saved")

    @delete("/{queue_id:str}", status_code=200)
    async def remove_queued(
        self, caller: InjectedCaller, chat_queue: InjectedQueue, conversation_id: TextId, queue_id: TextId
    ) -> Success[None]:
        """Take back a message that waits."""
        await chat_queue.remove(caller, conversation_id, queue_id)
        return success(None, "deleted")
