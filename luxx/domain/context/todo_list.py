"""What becomes of a to-do list, by pure functions: how its open items are recited, and how the change of a
person is applied to what a model has written meanwhile.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from luxx.domain.context.prompt import SectionKind, TextSection, beginning
from luxx.domain.context.tokens import text_tokens
from luxx.wire.todos import (
    RECITED_AFTER,
    TodoAuthor,
    TodoChange,
    TodoItem,
    TodoRecord,
    free_id,
    is_too_large,
)

RECITED_TOKENS = 300
"""The most tokens of the recited items."""

_REST_TOKENS = 20
_LINE_TOKENS = 60
_OWNER = "todos"


def recited(record: TodoRecord) -> TextSection:
    """The end of the next prompt: the open items, if the list is not recent or a person has changed it."""
    return TextSection(kind=SectionKind.TAIL, owner=_OWNER, text=_recitation(record), budget=RECITED_TOKENS)


def _recitation(record: TodoRecord) -> str:
    of_person = record.by is TodoAuthor.PERSON
    if not of_person and (not record.open or record.calls < RECITED_AFTER):
        return ""
    of_list = "the to-do list of an earlier request" if record.is_earlier else "your to-do list"
    if not of_person:
        title = f"[Open items of {of_list}]"
    elif record.open:
        title = f"[A person has changed {of_list}. Its open items now]"
    else:
        return f"[A person has changed {of_list}. It has no open item now.]"
    return "\n".join([title, *item_lines(record.open, RECITED_TOKENS - text_tokens(title) - _REST_TOKENS)])


def item_lines(items: Sequence[TodoItem], budget: int) -> Iterable[str]:
    """A line for each item, as many as the budget holds."""
    for number, item in enumerate(items):
        line = f"- {item.id}: {beginning(item.title, _LINE_TOKENS)}"
        budget -= text_tokens(line) + 1
        if budget < 0:
            yield f"and {len(items) - number} more"
            return
        yield line


def merged(change: TodoChange, current: Sequence[TodoItem]) -> list[TodoItem]:
    """The list after a person's change, where others may have changed it since `change.base`.

    What the person did not touch stays as it is in `current`; of what both changed, the person's version
    counts. An item that only one of them removed is gone, unless the person changed it.
    """
    base, theirs = _by_id(change.base), _by_id(current)
    own = _with_own_ids(change.todos, base, theirs)
    mine = _by_id(own)
    kept: dict[str, TodoItem] = {}
    for id_, item in mine.items():
        before, after = base.get(id_), theirs.get(id_)
        if before is None:
            kept[id_] = item
        elif after is not None:
            kept[id_] = _merged_item(before, item, after)
        elif item != before:
            kept[id_] = item
    kept |= {id_: item for id_, item in theirs.items() if id_ not in mine and id_ not in base}
    first, second = list(mine), list(theirs)
    if not _is_reordered(list(base), first):
        first, second = second, first
    return [kept[id_] for id_ in _interleaved(first, second) if id_ in kept]


def within_limits(items: Sequence[TodoItem], own: Iterable[TodoItem]) -> list[TodoItem]:
    """As many of the items as a list may have: a person's `own` ones, which are never too many, and of the
    others the first."""
    kept, left = list(items), {item.id for item in own}
    others = [item for item in kept if item.id not in left]
    while others and is_too_large(kept):
        kept.remove(others.pop())
    return kept


def _by_id(items: Iterable[TodoItem]) -> dict[str, TodoItem]:
    return {item.id: item for item in items}


def _with_own_ids(
    items: Sequence[TodoItem], base: dict[str, TodoItem], theirs: dict[str, TodoItem]
) -> list[TodoItem]:
    """The items; a new one whose id a different new item has by now gets another."""
    used = {*base, *theirs, *(item.id for item in items)}
    own: list[TodoItem] = []
    for item in items:
        other = theirs.get(item.id)
        if item.id not in base and other is not None and other != item:
            item = replace(item, id=free_id(used))
            used.add(item.id)
        own.append(item)
    return own


def _merged_item(before: TodoItem, mine: TodoItem, theirs: TodoItem) -> TodoItem:
    changed = {
        name: value
        for name in TodoItem.__struct_fields__
        if (value := getattr(mine, name)) != getattr(before, name)
    }
    return replace(theirs, **changed)


def _is_reordered(before: Sequence[str], after: Sequence[str]) -> bool:
    """Whether the ids that both have stand in another order."""
    known, left = set(before), set(after)
    return [id_ for id_ in before if id_ in left] != [id_ for id_ in after if id_ in known]


def _interleaved(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The ids in the order of `first`; each that only `second` has follows the one before it there."""
    order = list(first)
    for at, id_ in enumerate(second):
        if id_ not in order:
            order.insert(order.index(second[at - 1]) + 1 if at else 0, id_)
    return order
