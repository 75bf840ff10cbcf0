"""The to-do list of a conversation: its items, what is wrong with given ones, and how the record of an answer
keeps them.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import count

import msgspec
from msgspec.structs import replace

MAX_ITEMS = 100
MAX_ID = 64
MAX_TITLE = 300
MAX_DESCRIPTION = 2_000
MAX_BYTES = 65_536
"""The most items of a list, the most characters of their texts, and the most bytes of a list as JSON."""

TODO_TOOL = "todo_write"

REMINDER = "reminder"
"""The `name` of the step of the type `user` with which Luxx reminds the model of open items."""

RECITED_AFTER = 2
"""After so many model calls since the list was written, the next ones get its open items again."""


class TodoAuthor(StrEnum):
    """Who wrote the list last."""

    MODEL = "model"
    PERSON = "person"


class TodoItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item. `id` is the same in every later version of the list."""

    id: str
    title: str
    description: str = ""
    completed: bool = False


class TodoList(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a list, in order."""

    todos: list[TodoItem]


class TodoChange(msgspec.Struct, frozen=True, kw_only=True):
    """A person's version of a list, and the one that they changed. So the change can be applied to what a
    model has written meanwhile."""

    base: list[TodoItem]
    todos: list[TodoItem]


class TodoRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The list as a turn has it, and as it is stored with an answer. `calls`: how many completions have ended
    since it was written. `is_earlier`: it was written before this turn."""

    items: tuple[TodoItem, ...] = ()
    by: TodoAuthor = TodoAuthor.MODEL
    calls: int = 0
    is_earlier: bool = False

    @property
    def open(self) -> list[TodoItem]:
        """The items that are not completed."""
        return [item for item in self.items if not item.completed]

    def after_call(self) -> "TodoRecord":
        """The record after one more completion."""
        return replace(self, calls=self.calls + 1)

    def of_earlier(self) -> "TodoRecord":
        """The record as the next turn begins with it."""
        return replace(self, calls=RECITED_AFTER, is_earlier=True)

    def to_store(self) -> "TodoRecord | None":
        """The record as an answer keeps it; None: the list is that of an earlier answer of the path.

        The model of this answer got what a person had changed before, so the next one does not.
        """
        if not self.is_earlier:
            return self
        return None if self.by is TodoAuthor.MODEL else TodoRecord(items=self.items)


class TodoDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An item as it is given; one without an `id` is new."""

    id: str | None = None
    title: str
    description: str = ""
    completed: bool = False


def listed(drafts: Sequence[TodoDraft]) -> list[TodoItem]:
    """The items of a list, each with an id and a title on one line."""
    used = {draft.id for draft in drafts if draft.id is not None}
    items: list[TodoItem] = []
    for draft in drafts:
        id_ = draft.id
        if id_ is None:
            id_ = free_id(used)
            used.add(id_)
        items.append(
            TodoItem(
                id=id_,
                title=" ".join(draft.title.split()),
                description=draft.description.strip(),
                completed=draft.completed,
            )
        )
    return items


def free_id(used: Iterable[str]) -> str:
    """An id that no item has: `t1` and on."""
    taken = set(used)
    return next(id_ for number in count(1) if (id_ := f"t{number}") not in taken)


def is_too_large(items: Sequence[TodoItem]) -> bool:
    """Whether a list has more than is kept."""
    return len(items) > MAX_ITEMS or len(msgspec.json.encode(items)) > MAX_BYTES


def problem_of(items: Sequence[TodoItem]) -> tuple[str, str] | None:
    """What is wrong with a list, with the path of it; None: nothing."""
    seen = set[str]()
    for at, item in enumerate(items):
        if not item.title:
            return f"[{at}].title", "the title of a to-do item is not empty"
        if item.id != item.id.strip() or not item.id.isprintable() or not item.id:
            return f"[{at}].id", "the id of a to-do item has no blanks at its ends and no control characters"
        if item.id in seen:
            return f"[{at}].id", f"two to-do items have the id {item.id!r}"
        if "\0" in item.title + item.description:
            return f"[{at}]", "a to-do item has no NUL character"
        seen.add(item.id)
    if len(items) > MAX_ITEMS:
        return "", f"the to-do list has {len(items)} items; at most {MAX_ITEMS} are kept"
    size = len(msgspec.json.encode(items))
    if size > MAX_BYTES:
        return "", f"the to-do list has {size:,} bytes; at most {MAX_BYTES:,} are kept"
    return None
