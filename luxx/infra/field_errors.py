"""The wrong fields of a request or a document.

All are collected before it is refused, so that a client learns of them at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from luxx.errors import AmbiguousName, InvalidInput, NotFound

T = TypeVar("T")

NOTHING_WRONG: Mapping[str, str] = MappingProxyType({})

MAX_REPORTED_FIELDS = 30
"""Fields that a refusal lists: more than any body has, so that a form shows all its problems."""

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
    """`wrong`: what is wrong already, by path; what only follows from it is no further error.

    `root`: the path of the part of the request that the added paths begin in. `subject`: what the refusal
    says before it lists the fields.
    """

    def __init__(
        self,
        wrong: Mapping[str, str] = NOTHING_WRONG,
        *,
        root: str = "$",
        subject: str = "the request is not valid",
        limit: int = MAX_REPORTED_FIELDS,
    ) -> None:
        self._wrong = wrong
        self._errors = [FieldError(path, problem) for path, problem in wrong.items()]
        self._root = root
        self._subject = subject
        self._limit = limit

    def __len__(self) -> int:
        return len(self._errors)

    def __iter__(self) -> Iterator[FieldError]:
        return iter(self._errors)

    def add(self, path: str, problem: str, missing: str = "") -> None:
        if path.startswith("$"):
            path = self._root + path[1:]
        if not follows_from(path, self._wrong):
            self._errors.append(FieldError(path, problem, missing))

    def add_all(self, problems: Mapping[str, str]) -> None:
        """Adds the problems, which are given by path."""
        for path, problem in problems.items():
            self.add(path, problem)

    def found(self, path: str, find: Callable[[], T]) -> T | None:
        """What `find` returns. Adds an error and returns None if the caller does not have it."""
        try:
            return find()
        except NotFound as error:
            self.add(path, error.message, error.kind)
            return None

    def named(self, path: str, find: Callable[[], T]) -> T | None:
        """What `find` returns for a name in a document. Adds an error and returns None if nothing, or several
        things, have the name. Such a document is not valid, whereas a missing id is not found."""
        try:
            return find()
        except (NotFound, AmbiguousName) as error:
            self.add(path, error.message)
            return None

    def refusal(
        self,
        *,
        kind: str | None = None,
        message: str | None = None,
        detail: Mapping[str, Any] = NOTHING_WRONG,
    ) -> InvalidInput | NotFound:
        """One error with all of them: NotFound if each is something missing, else InvalidInput of this kind.

        `message` replaces the subject with its list of fields; `detail` is added to the error's own.
        """
        by_path: dict[str, list[str]] = {}
        for error in self._errors:
            path = error.path if len(error.path) <= MAX_PATH_CHARS else f"{error.path[:MAX_PATH_CHARS]}…"
            by_path.setdefault(path, []).append(error.problem)
        shown = {path: "; ".join(problems) for path, problems in islice(by_path.items(), self._limit)}
        if message is None:
            listed = "; ".join(f"{path}: {problem}" for path, problem in shown.items())
            message = f"{self._subject}: {listed}{'; and more' if len(by_path) > self._limit else ''}"
        if self._errors and all(error.missing for error in self._errors):
            return NotFound(message, kind=self._errors[0].missing, fields=shown, detail={**detail})
        return InvalidInput(message, kind=kind, fields=shown, detail={**detail})

    def raise_if_any(self) -> None:
        """Raises the `refusal` if a field is wrong."""
        if self._errors:
            raise self.refusal()


def follows_from(path: str, wrong: Iterable[str]) -> bool:
    """Whether an error at this path may only follow from a wrong field at it, above it or below it."""
    return any(_is_within(path, other) or _is_within(other, path) for other in wrong)


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))
