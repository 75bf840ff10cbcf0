"""The wrong fields of a request or a document.

All are collected before it is refused, so that a client learns of them at once.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from luxx.errors import InvalidInput, NotFound

NOTHING_WRONG: Mapping[str, str] = MappingProxyType({})

MAX_REPORTED_FIELDS = 20
"""Fields that a refusal lists."""

MAX_PATH_CHARS = 200
"""Characters of a listed path. It may repeat names that the client sent."""


class FieldError(NamedTuple):
    """`path` is the JSON path of the field (`$.name`) or the name of a parameter.

    `problem` is a sentence about it. `missing` is the kind of error if the field names something that the
    caller does not have.
    """

    path: str
    problem: str
    missing: str = ""


class FieldErrors:
    """`wrong`: what is wrong already, by path; what only follows from it is no further error."""

    def __init__(self, wrong: Mapping[str, str] = NOTHING_WRONG, *, limit: int = MAX_REPORTED_FIELDS) -> None:
        self._wrong = wrong
        self._errors = [FieldError(path, problem) for path, problem in wrong.items()]
        self._limit = limit

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, path: str, problem: str, missing: str = "") -> None:
        self.extend([FieldError(path, problem, missing)])

    def extend(self, errors: Iterable[FieldError]) -> None:
        self._errors += [error for error in errors if not follows_from(error.path, self._wrong)]

    def refusal(
        self,
        subject: str = "the request is not valid",
        *,
        kind: str | None = None,
        message: str | None = None,
        detail: Mapping[str, Any] = NOTHING_WRONG,
    ) -> InvalidInput | NotFound:
        """One error with all of them: NotFound if each is something missing, else InvalidInput of this kind.

        `message` replaces the list of the fields after the `subject`; `detail` is added to the error's own.
        """
        by_path: dict[str, list[str]] = {}
        for error in self._errors:
            path = error.path if len(error.path) <= MAX_PATH_CHARS else f"{error.path[:MAX_PATH_CHARS]}…"
            by_path.setdefault(path, []).append(error.problem)
        shown = {path: "; ".join(problems) for path, problems in islice(by_path.items(), self._limit)}
        if message is None:
            listed = "; ".join(f"{path}: {problem}" for path, problem in shown.items())
            message = f"{subject}: {listed}{'; and more' if len(by_path) > self._limit else ''}"
        if all(error.missing for error in self._errors):
            return NotFound(message, kind=self._errors[0].missing, fields=shown, detail={**detail})
        return InvalidInput(message, kind=kind, fields=shown, detail={**detail})

    def raise_if_any(self, subject: str = "the request is not valid") -> None:
        """Raises the `refusal` if a field is wrong."""
        if self._errors:
            raise self.refusal(subject)


def follows_from(path: str, wrong: Iterable[str]) -> bool:
    """Whether an error at this path may only follow from a wrong field at it, above it or below it."""
    return any(_is_within(path, other) or _is_within(other, path) for other in wrong)


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))
