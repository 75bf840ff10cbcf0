"""A step: one ordered item of an assistant's message, with the same form in database, events and API."""

from enum import StrEnum
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, UnsetType


class StepImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a step. `file_id` is for `GET /files/{file_id}`, for the step's user only. `path` is within
    the workspace. `sha256` is of the file when the step was made; the file may have changed since.
    """

    file_id: str
    name: str
    path: str
    media_type: str
    size: int
    width: int
    height: int
    sha256: str


class StepType(StrEnum):
    THINKING = "thinking"
    TEXT = "text"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


class StepStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    ERROR = "error"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class CallOutcome(StrEnum):
    """`denied`: by level or rule; `rejected`: by a person; `corrected`: run with changes by a person."""

    DENIED = "denied"
    REJECTED = "rejected"
    CORRECTED = "corrected"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step. `content` of a tool_result is the result as JSON text `{"success", "data", "error"}`.

    `arguments` is the JSON text that the model wrote; `id_ref` is the call's id on both its steps. Only of a
    tool_result: `outcome` (what people or rules decided on the call), `note` (the text on that for the
    model), `is_untrusted` (the result has untrusted content), `images` (shown with the result) and, of a
    composition, `calls` (how many calls it made).
    """

    id: str
    index: int
    type: StepType
    content: str = ""
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    id_ref: str | UnsetType = UNSET
    success: bool | UnsetType = UNSET
    status: StepStatus = StepStatus.DONE
    duration_ms: int | UnsetType = UNSET
    level: str | UnsetType = UNSET
    outcome: CallOutcome | UnsetType = UNSET
    note: str | UnsetType = UNSET
    is_untrusted: bool | UnsetType = UNSET
    images: list[StepImage] | UnsetType = UNSET
    calls: int | UnsetType = UNSET


def step_id(index: int) -> str:
    """The id of the step at `index`."""
    return f"step-{index}"


def steps_text(steps: list[Step]) -> str:
    """The text of the message: all text steps, in order of index.

    Interrupted text steps are left out, because their completion was repeated.
    """
    return "".join(
        step.content for step in steps if step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED
    )


MAX_URL = 2000
MAX_TITLE = 300
MAX_SNIPPET = 300


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A web page; tools return those they read in the list `sources` of their data."""

    url: str
    title: str = ""
    domain: str = ""
    snippet: str = ""


def source_of(url: str, title: str, snippet: str) -> Source:
    """A normalised source: title and snippet on one line, shortened to their limits."""
    return Source(
        url=url, title=_line(title, MAX_TITLE), domain=domain_of(url), snippet=_line(snippet, MAX_SNIPPET)
    )


def citable(*sources: Source) -> list[Source]:
    """The sources that can be cited: with a web address that is not too long."""
    return [source for source in sources if source.domain and len(source.url) <= MAX_URL]


def domain_of(url: str) -> str:
    """The host without `www.`; empty if `url` is not a web address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ""
    return host.removeprefix("www.") if parts.scheme in ("http", "https") else ""


def _line(text: str, limit: int) -> str:
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
