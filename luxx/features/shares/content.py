"""What a link shows of a message: names, times, texts and the addresses of sources, built field by field.

Arguments and results of tools, thinking, prompts, ids, costs and paths are never copied. Quotes and snippets
of sources are left out as well, because they are parts of results of tools.
"""

from datetime import datetime

from msgspec import UNSET, Struct, UnsetType

from luxx.domain.conversations.views import Citation, MessageView
from luxx.features.shares.models import ShareKind
from luxx.features.tasks.graph import TaskStepStatus
from luxx.wire.message import Attachment, Quotation


class SharedCitation(Struct, frozen=True, kw_only=True):
    """A source; one that is a document has no `url`."""

    index: int
    title: str
    url: str | UnsetType = UNSET
    page: int | UnsetType = UNSET
    slide: int | UnsetType = UNSET
    row: int | UnsetType = UNSET


class SharedImage(Struct, frozen=True, kw_only=True):
    """`index` is the image's in its address; `offset`: how many characters of the text come before it."""

    index: int
    name: str
    offset: int


class SharedMessage(Struct, frozen=True, kw_only=True):
    """`number` counts from 1. `sender` is null if the message has no name. `quoted`: what a reply in a room
    answers, null if it was deleted."""

    number: int
    role: str
    sender: str | None
    text: str
    images: list[SharedImage]
    citations: list[SharedCitation]
    quoted: Quotation | UnsetType | None = UNSET
    created_at: datetime


class SharedStep(Struct, frozen=True, kw_only=True):
    """A step of a task; `output` is null where it has none."""

    name: str
    status: TaskStepStatus
    output: str | None


class SharedTask(Struct, frozen=True, kw_only=True):
    """The result of a task, and what its steps wrote."""

    goal: str
    result: str | None
    steps: list[SharedStep]


class SharedView(Struct, frozen=True, kw_only=True):
    """What a link shows. `messages` are those after the number `after`, oldest first, as many as `limit` and
    an answer's size allow; more follow if the last one's number is less than `total`. A task has none.

    `is_live`: what is there now; otherwise what was there at `created_at`, without what was deleted since.
    """

    kind: ShareKind
    title: str
    is_live: bool
    created_at: datetime
    messages: list[SharedMessage]
    total: int
    task: SharedTask | None


def shared_message(number: int, message: MessageView) -> SharedMessage:
    """The part of a message that a link shows."""
    return SharedMessage(
        number=number,
        role=message.role,
        sender=message.sender_name,
        text=message.text,
        images=[_image(at, file) for at, file in enumerate(message.attachments) if is_image(file)],
        citations=[_citation(one) for one in message.citations],
        quoted=message.quoted,
        created_at=message.created_at,
    )


def is_image(file: Attachment) -> bool:
    """Whether an attachment is an image; texts are not shown."""
    return isinstance(file.blob_id, str)


def _image(index: int, file: Attachment) -> SharedImage:
    offset = file.offset if isinstance(file.offset, int) else 0
    return SharedImage(index=index, name=file.name, offset=offset)


def _citation(one: Citation) -> SharedCitation:
    return SharedCitation(
        index=one.index, title=one.title, url=one.url, page=one.page, slide=one.slide, row=one.row
    )
