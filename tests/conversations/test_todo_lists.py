"""To-do lists by themselves: the merge of what a person and a model changed, and the recited items."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from luxx.domain.context.todo_list import RECITED_TOKENS, merged, recited
from luxx.domain.context.tokens import text_tokens
from luxx.wire.todos import MAX_ITEMS, RECITED_AFTER, TodoAuthor, TodoChange, TodoItem, TodoRecord

ids = st.sampled_from([f"t{number}" for number in range(1, 8)])
items = st.builds(
    TodoItem,
    id=ids,
    title=st.sampled_from("abc"),
    description=st.sampled_from(["", "x"]),
    completed=st.booleans(),
)
lists = st.lists(items, max_size=7, unique_by=lambda item: item.id)


@settings(max_examples=200)
@given(base=lists, mine=lists, theirs=lists)
def test_no_change_of_a_person_is_lost_and_nothing_else_is_touched(
    base: list[TodoItem], mine: list[TodoItem], theirs: list[TodoItem]
) -> None:
    after = merged(TodoChange(base=base, todos=mine), theirs)
    found, before, others = ({one.id: one for one in some} for some in (after, base, theirs))
    assert len(found) == len(after)
    for item in mine:
        was = before.get(item.id)
        if was is None:
            # A new item may get another id where the model has taken this one.
            assert any(replace(one, id=item.id) == item for one in after)
            continue
        changed = {
            name
            for name in ("title", "description", "completed")
            if getattr(item, name) != getattr(was, name)
        }
        if changed:
            assert all(getattr(found[item.id], name) == getattr(item, name) for name in changed)
        elif item.id in others:
            assert found[item.id] == others[item.id]
        else:
            assert item.id not in found
    own = {item.id for item in mine}
    for removed in before.keys() - own:
        assert removed not in found
    for added in others.keys() - before.keys() - own:
        assert found[added] == others[added]


@given(base=lists, mine=lists)
def test_one_change_alone_is_taken_as_it_is(base: list[TodoItem], mine: list[TodoItem]) -> None:
    assert merged(TodoChange(base=base, todos=mine), base) == mine
    assert merged(TodoChange(base=base, todos=base), mine) == mine


def test_the_recited_items_stay_within_their_budget() -> None:
    many = tuple(
        TodoItem(id=f"item-{number}", title=f"{number}: {'word ' * 50}".strip())
        for number in range(MAX_ITEMS)
    )
    for record in (
        TodoRecord(items=many, calls=RECITED_AFTER),
        TodoRecord(items=many, by=TodoAuthor.PERSON),
        TodoRecord(items=many).of_earlier(),
    ):
        text = recited(record).sent_text()
        shown = text.count("\n- ")
        assert 0 < shown < MAX_ITEMS
        assert text.endswith(f"\nand {MAX_ITEMS - shown} more")
        assert text_tokens(text) <= RECITED_TOKENS
    for record in (
        TodoRecord(items=many, calls=RECITED_AFTER - 1),
        TodoRecord(items=tuple(replace(one, completed=True) for one in many)).of_earlier(),
        TodoRecord(),
    ):
        assert recited(record).sent_text() == ""
