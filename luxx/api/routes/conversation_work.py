"""`/conversations/{id}/queue` and `/todos`: the messages that a person wrote while an answer is made, and the
to-do list of a conversation; `/comparison`: a message that two models answer; `/context` and `/compress`:
what the next prompt takes of its window, and less of it now."""

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Success, success
from luxx.api.http.event_streams import Streams
from luxx.api.http.request_input import TAKES_CUT_TEXT, InjectedCaller, TextId
from luxx.api.routes.messages import (
    MOST_GIVEN_SKILLS,
    AttachmentBody,
    InjectedQueue,
    InvocationOptionsBody,
    MessageText,
    answer_options,
    check_text,
)
from luxx.domain.skills.changes import SkillName
from luxx.errors import InvalidInput
from luxx.features.chats.comparing import AnswerComparison, ChatComparing
from luxx.features.chats.next_prompt import ConversationContext, NextPrompts
from luxx.features.chats.service import ChatService
from luxx.features.chats.todos import TodoService
from luxx.runs.options import NewMessage
from luxx.wire.message import MAX_ATTACHMENTS
from luxx.wire.queue import Queue, QueueItem, WhenBusy
from luxx.wire.todos import (
    MAX_DESCRIPTION,
    MAX_ID,
    MAX_ITEMS,
    MAX_TITLE,
    TodoDraft,
    TodoItem,
    TodoList,
    listed,
    problem_of,
)

InjectedComparing = NamedDependency[ChatComparing]


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


class ComparedModelBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The other model that answers, of a provider."""

    provider_id: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    model: Annotated[str, Meta(min_length=1, max_length=200)]


class ComparisonBody(InvocationOptionsBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message and what both answers are made with; `model` and `provider_id` are those of the first answer,
    by default the conversation's. `parent_id`: the message that it follows; default: the selected leaf.
    """

    content: MessageText
    attachments: Annotated[list[AttachmentBody], Meta(max_length=MAX_ATTACHMENTS)] = []
    parent_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    skills: Annotated[list[SkillName], Meta(max_length=MOST_GIVEN_SKILLS)] = []
    compare_with: ComparedModelBody


class ConversationComparisonController(Controller):
    path = "/conversations/{conversation_id:str}/comparison"
    tags = ("conversations",)
    opt = CHAT | {TAKES_CUT_TEXT: True}

    @get()
    async def show_comparison(
        self, caller: InjectedCaller, comparing: InjectedComparing, conversation_id: TextId
    ) -> Success[AnswerComparison | None]:
        """The two answers that are compared, each with its run; null if there are none, or one was kept."""
        return success(await comparing.find(caller, conversation_id))

    @post(status_code=202)
    async def compare(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        comparing: InjectedComparing,
        conversation_id: TextId,
        data: JSONBody[ComparisonBody],
    ) -> Success[AnswerComparison]:
        """Send a message that two models answer, each in a run of its own. Follow both; then select an
        answer to keep (`selected_leaf_id` of the conversation)."""
        check_text(data.content)
        message = NewMessage(
            conversation_id=conversation_id,
            text=data.content,
            attachments=[*data.attachments],
            parent_id=data.parent_id,
            skills=data.skills,
            **await answer_options(request, data),
        )
        other = data.compare_with
        started = await comparing.start(caller, message, other.provider_id, other.model)
        return success(started, "started")


InjectedTodos = NamedDependency[TodoService]

Title = Annotated[str, Meta(min_length=1, max_length=MAX_TITLE)]
Description = Annotated[str, Meta(max_length=MAX_DESCRIPTION)]
ItemId = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]


class TodoBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item. One without an `id` is new, and gets one."""

    id: ItemId | None = None
    title: Title
    description: Description = ""
    completed: bool = False


class TodosBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`todos`: the list as it is to be. `base`: the list that you changed; with it, what was written since
    is kept where you changed nothing. Left out: the list as it is now."""

    todos: Annotated[list[TodoBody], Meta(max_length=MAX_ITEMS)]
    base: Annotated[list[TodoBody], Meta(max_length=2 * MAX_ITEMS)] | None = None


class ConversationTodosController(Controller):
    path = "/conversations/{conversation_id:str}/todos"
    tags = ("conversations",)
    opt = CHAT

    @get()
    async def show_todos(
        self, caller: InjectedCaller, todos: InjectedTodos, conversation_id: TextId
    ) -> Success[TodoList]:
        """The to-do list of the selected path; while an answer is made, as it is now."""
        return success(await todos.read(caller, conversation_id))

    @put()
    async def write_todos(
        self,
        caller: InjectedCaller,
        todos: InjectedTodos,
        conversation_id: TextId,
        data: JSONBody[TodosBody],
    ) -> Success[TodoList]:
        """Change the to-do list; the next model call of an answer in progress sees it."""
        items = _items(data.todos, "todos")
        base = None if data.base is None else _items(data.base, "base")
        return success(await todos.change(caller, conversation_id, items, base), "saved")


def _items(bodies: list[TodoBody], name: str) -> list[TodoItem]:
    items = listed([TodoDraft(**msgspec.structs.asdict(body)) for body in bodies])
    if problem := problem_of(items):
        path, sentence = problem
        raise InvalidInput(sentence, field=f"$.{name}{path}")
    return items


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
