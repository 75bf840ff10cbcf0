"""`/conversations/{id}/todos`: the to-do list of a conversation."""

from typing import Annotated

import msgspec
from litestar import Controller, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Success, success
from luxx.api.http.request_input import InjectedCaller, TextId
from luxx.errors import InvalidInput
from luxx.features.chats.todos import TodoService
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
