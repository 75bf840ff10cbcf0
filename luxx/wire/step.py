"""A step: one ordered item of an assistant message, alike in database, events and API."""

from enum import StrEnum
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, UnsetType


class StepImage(msgspec.Struct, frozen=True, kw_only=True):
    """`file_id` is for `GET /files/{file_id}`, by the step's user alone. `path` is within the workspace.

    `sha256` is of the file as it was; whether it is still that, only the file tells.
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
    """`denied`: by level or rule; `rejected`: by a person; `corrected`: made as a person changed it."""

    DENIED = "denied"
    REJECTED = "rejected"
    CORRECTED = "corrected"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """`content` of a tool_result is the result as JSON text `{"success", "data", "error"}`.

    `arguments` is the JSON text the model wrote, `id_ref` the call's id on both its steps. Of a tool_result,
    `outcome` says what people or rules made of the call, `note` is what the model is told of that, and
    `is_untrusted` that strangers wrote what the result says, and `images` are to be shown with it; of a
    composition's, `calls` is how many calls it made.
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
    """What a reader sees as the message: all text steps, in order of index.

    Text that a crash cut is left out: its completion was made again and says it anew.
    """
    return "".join(
        step.content for step in steps if step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED
    )


MAX_URL = 2000
MAX_TITLE = 300
MAX_SNIPPET = 300


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A page. A tool that read one has it in its data's list `sources`."""

    url: str
    title: str = ""
    domain: str = ""
    snippet: str = ""


def source_of(url: str, title: str, snippet: str) -> Source:
    """The source in one shape: lines without breaks, cut to their bounds. A part of an address is none."""
    return Source(
        url=url,
        title=_line(title, MAX_TITLE),
        domain=domain_of(url),
        snippet=_line(snippet, MAX_SNIPPET),
    )


def citable(*sources: Source) -> list[Source]:
    """Those that can be cited: with a web address, and none that is too long."""
    return [source for source in sources if source.domain and len(source.url) <= MAX_URL]


def domain_of(url: str) -> str:
    """The host without `www.`; empty for what is no web address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ""
    return host.removeprefix("www.") if parts.scheme in ("http", "https") else ""


def _line(text: str, limit: int) -> str:
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
