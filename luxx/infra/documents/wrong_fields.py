"""Problems of a document of which only a part can be read: wrong fields, and what is wrong beside them."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

NOTHING_WRONG: Mapping[str, str] = MappingProxyType({})


def follows_from(path: str, wrong: Iterable[str]) -> bool:
    """Whether a problem at this path may only follow from a wrong field at it, above it or below it."""
    return any(_is_within(path, one) or _is_within(one, path) for one in wrong)


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))
