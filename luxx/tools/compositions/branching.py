"""Which member of a conditional composition is next. Pure; what cannot be compared compares false."""

from collections.abc import Sequence
from typing import Any, assert_never, cast

from msgspec import UNSET

from luxx.tools.compositions.templates import read_path, value_at
from luxx.wire.composition import Branch, Comparison, MemberOutcome
from luxx.wire.tool import ToolResult

END = "end"


def chosen(branches: Sequence[Branch], result: ToolResult) -> str | None:
    """Where the first branch that holds goes; None where none does."""
    return next((branch.go for branch in branches if _holds(branch, result)), None)


def _holds(branch: Branch, result: ToolResult) -> bool:
    if branch.on != MemberOutcome.ANY and (branch.on == MemberOutcome.SUCCESS) != result.success:
        return False
    if branch.compare is None:
        return True
    found = value_at(result.to_dict(), read_path(branch.path or ""))
    return _compares(branch.compare, found, branch.value)


def _compares(comparison: Comparison, found: Any, value: Any) -> bool:
    match comparison:
        case Comparison.EXISTS:
            return found is not UNSET
        case Comparison.EQUAL:
            return _is_same(found, value)
        case Comparison.UNEQUAL:
            return not _is_same(found, value)
        case Comparison.LESS:
            return _are_ordered(found, value) and found < value
        case Comparison.GREATER:
            return _are_ordered(found, value) and found > value
        case Comparison.CONTAINS if isinstance(found, list):
            return any(_is_same(item, value) for item in cast("list[Any]", found))
        case Comparison.CONTAINS if isinstance(found, str | dict):
            return isinstance(value, str) and value in found
        case Comparison.CONTAINS:
            return False
        case _:
            assert_never(comparison)


def _is_same(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1, and 1 is 1.0."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _are_ordered(one: Any, other: Any) -> bool:
    return (isinstance(one, str) and isinstance(other, str)) or (_is_number(one) and _is_number(other))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
