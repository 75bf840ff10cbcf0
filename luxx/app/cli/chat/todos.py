"""The to-do list of a chat at the terminal: `/todos` shows and changes it, also while an answer is shown."""

from collections.abc import Sequence

import msgspec

from luxx.app.cli.menu import number_in
from luxx.app.cli.screen import RunScreen
from luxx.app.cli.server_api import ServerApi
from luxx.errors import InvalidInput
from luxx.wire.todos import TodoDraft, TodoItem, TodoList

COMMAND = "/todos"


def item_line(item: TodoItem) -> str:
    """An item with its box, as the terminal shows it."""
    return f"[{'x' if item.completed else ' '}] {item.title}"


class TerminalTodos:
    """Reads and changes the lists of conversations, on a screen."""

    def __init__(self, server: ServerApi, screen: RunScreen) -> None:
        self._server = server
        self._screen = screen

    async def carry_out(self, conversation_id: str, argument: str) -> None:
        """Shows the list, or changes it: `done 2`, `open 2`, `drop 2`, `rename 2 TEXT`, `add TEXT`.

        Raises LuxxError, ConnectionFailed.
        """
        path = f"/conversations/{conversation_id}/todos"
        items = (await self._server.call("GET", path, TodoList)).todos
        word, _, rest = argument.partition(" ")
        if argument:
            body = {"base": items, "todos": _changed(items, word, rest.strip())}
            items = (await self._server.call("PUT", path, TodoList, msgspec.to_builtins(body))).todos
        for number, item in enumerate(items, 1):
            self._screen.note(f"{number:>2}. {item_line(item)}")
        if not items:
            self._screen.note(f"the to-do list is empty; {COMMAND} add TEXT begins it")


def _changed(items: Sequence[TodoItem], word: str, rest: str) -> list[TodoItem | TodoDraft]:
    """The list after a command. Raises InvalidInput."""
    if word == "add" and rest:
        return [*items, TodoDraft(title=rest)]
    typed, _, title = rest.partition(" ")
    title, number = title.strip(), number_in(typed, len(items))
    if word not in ("done", "open", "drop", "rename") or bool(title) != (word == "rename"):
        raise InvalidInput(f"type {COMMAND} done 2, open 2, drop 2, rename 2 TEXT or add TEXT")
    if not number:
        raise InvalidInput(f"name a to-do by its number; {COMMAND} lists them")
    at = number - 1
    item = items[at]
    match word:
        case "drop":
            changed: list[TodoItem] = []
        case "rename":
            changed = [msgspec.structs.replace(item, title=title)]
        case _:
            changed = [msgspec.structs.replace(item, completed=word == "done")]
    return [*items[:at], *changed, *items[at + 1 :]]
