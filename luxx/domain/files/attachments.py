"""Message attachments: reads texts, images, documents and workspace files into what a message stores.

A file is read when the message is sent; later changes to the file do not affect the message.
"""

import asyncio
import codecs
import os
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from luxx.domain.accounts.caller import Caller
from luxx.domain.files.image_formats import MAX_GIVEN_PIXELS, has_too_many_pixels
from luxx.domain.files.names import extension_of, image_type
from luxx.domain.files.service import FileService
from luxx.domain.files.storage import OpenFile
from luxx.errors import InvalidInput, TooLarge
from luxx.infra.clock import new_id
from luxx.infra.documents.formats import problem_sentence
from luxx.infra.documents.parts import ReadProblem
from luxx.infra.documents.reader import (
    DOCUMENT_MEMORY_BYTES,
    DOCUMENT_SECONDS,
    MAX_DOCUMENT_BYTES,
    DocumentProcess,
    RunReader,
    read_in_process,
)
from luxx.infra.field_errors import FieldErrors
from luxx.wire.message import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    MAX_MESSAGE_TEXT,
    Attachment,
    PromptImage,
)


class DocumentReader:
    """One per process; `run_reader` runs the reader module in a child process."""

    def __init__(
        self,
        run_reader: RunReader = read_in_process,
        *,
        memory_bytes: int = DOCUMENT_MEMORY_BYTES,
        seconds: int = DOCUMENT_SECONDS,
    ) -> None:
        self.process = DocumentProcess(run_reader, memory_bytes=memory_bytes, seconds=seconds)

    async def text_of(self, file: OpenFile, *, characters: int, user_id: int) -> str:
        """The text of a document, at most `characters` long.

        Raises InvalidInput or TooLarge with the reason, Unavailable if too many documents are being read.
        """
        if file.size > MAX_DOCUMENT_BYTES:
            limit = f"{MAX_DOCUMENT_BYTES // 2**20} MiB, the limit for a document"
            raise TooLarge(f"{file.name} is larger than {limit}")
        with file.using() as fd:
            os.lseek(fd, 0, os.SEEK_SET)
            document = await self.process.read(
                fd, extension=extension_of(file.name), characters=characters, user_id=user_id
            )
        if problem := problem_sentence(file.name, document):
            is_too_large = document.error in (ReadProblem.PAGES, ReadProblem.LONG, ReadProblem.UNPACKED)
            raise TooLarge(problem) if is_too_large else InvalidInput(problem, kind="attachment_unreadable")
        return await asyncio.to_thread(lambda: document.text)


READ_SECONDS = 120.0
"""The time limit for reading all attachments of a message."""

MAX_TEXT = 2_000_000
"""The limit of one text in characters, and of one text file in bytes."""

_HEAD_BYTES = 1024
_DOCUMENT_MARKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
"""The first bytes of ZIP archives, which Office files and books are, and of old Excel files."""

_TAKES = {"content": {"name", "extension"}, "file_id": set[str](), "data": {"name", "media_type", "offset"}}
"""The sources of an attachment, with the fields that may accompany each."""


class GivenAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """An attachment in a request: a text with a name, an image with a name and bytes, or a file id. `offset`:
    see `Attachment`."""

    name: str | UnsetType = UNSET
    extension: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    offset: Annotated[int, Meta(ge=0, le=MAX_MESSAGE_TEXT)] | UnsetType = UNSET


class MessageAttachments(msgspec.Struct, frozen=True, kw_only=True):
    """Attachments as the message stores them, and its images by `blob_id`."""

    attachments: list[Attachment] = []
    images: dict[str, PromptImage] = {}

    @property
    def size(self) -> int:
        """The bytes that the message stores for them."""
        texts = sum(len(one.name.encode()) + len(one.content.encode()) for one in self.attachments)
        return texts + sum(len(image.data) for image in self.images.values())


@dataclass(frozen=True, slots=True)
class AttachmentReader:
    """One per process."""

    files: FileService
    documents: DocumentReader

    async def read_attachments(self, caller: Caller, given: list[GivenAttachment]) -> MessageAttachments:
        """Validates attachments and reads the named files.

        Raises InvalidInput, TooLarge, NotFound for an unknown file id, or Unavailable.
        """
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await self._read_attachments(caller, given)
        except TimeoutError as error:
            raise InvalidInput(
                "reading the attachments takes too long; send fewer at a time",
                kind="attachment_unreadable",
                field="$.attachments",
            ) from error

    async def _read_attachments(self, caller: Caller, given: list[GivenAttachment]) -> MessageAttachments:
        attachments: list[Attachment] = []
        images: dict[str, PromptImage] = {}
        for index, each in enumerate(given):
            try:
                result = await self._read_given(caller, each, f"$.attachments[{index}]")
            except InvalidInput as error:
                raise error.about(f"$.attachments[{index}]") from error
            if isinstance(result, Attachment):
                attachments.append(result)
                continue
            name, image = result
            blob_id = new_id()
            images[blob_id] = image
            attachments.append(_image_attachment(name, image, blob_id, each.offset))
            if len(images) > MAX_IMAGES:
                raise TooLarge(f"a message may have at most {MAX_IMAGES} images")
            if sum(len(image.data) for image in images.values()) > MAX_IMAGES_BYTES:
                raise TooLarge(
                    f"the images of a message may have at most {MAX_IMAGES_BYTES // 2**20} MiB together"
                )
        return MessageAttachments(attachments=attachments, images=images)

    async def _read_given(
        self, caller: Caller, given: GivenAttachment, path: str
    ) -> Attachment | tuple[str, PromptImage]:
        _check_one_source(given, path)
        if isinstance(given.file_id, str):
            return await self._read(caller, given.file_id)
        name = given.name if isinstance(given.name, str) else ""
        if isinstance(given.data, bytes):
            kind = image_type(given.data[:_HEAD_BYTES])
            if kind is None:
                raise FieldErrors({f"{path}.data": "not a PNG, JPEG, GIF or WebP image"}).refusal()
            return name, _check_image_size(name, PromptImage(media_type=kind, data=given.data))
        content = given.content if isinstance(given.content, str) else ""
        extension = given.extension if isinstance(given.extension, str) else ""
        return Attachment(name=name, extension=extension or extension_of(name), content=content)

    async def _read(self, caller: Caller, file_id: str) -> Attachment | tuple[str, PromptImage]:
        """Reads a workspace file; its first bytes decide the type, not its name."""
        file = await self.files.open(caller, file_id)
        try:
            head = await asyncio.to_thread(file.read_at, 0, _HEAD_BYTES)
            kind = image_type(head)
            if kind is not None:
                data = await _read_all(file, MAX_IMAGE_BYTES)
                return file.name, _check_image_size(file.name, PromptImage(media_type=kind, data=data))
            if b"%PDF-" in head or head.startswith(_DOCUMENT_MARKS):
                text = await self.documents.text_of(file, characters=MAX_TEXT, user_id=caller.user_id)
            else:
                text = _decode_text(file.name, await _read_all(file, MAX_TEXT))
        finally:
            await asyncio.shield(asyncio.to_thread(file.close))
        return Attachment(name=file.name, extension=extension_of(file.name), content=text)


def _check_one_source(given: GivenAttachment, path: str) -> None:
    """Raises InvalidInput unless it is exactly one of a text, an image and a file id."""
    sources = [source for source in _TAKES if getattr(given, source) is not UNSET]
    if not sources:
        raise FieldErrors({f"{path}.content": "content, data or file_id is needed"}).refusal()
    if len(sources) > 1:
        raise FieldErrors(
            {f"{path}.{source}": f"cannot be combined with {sources[0]}" for source in sources[1:]}
        ).refusal()
    takes = _TAKES[sources[0]]
    others = {"name", "extension", "media_type", "offset"} - takes
    wrong = [name for name in sorted(others) if getattr(given, name) is not UNSET]
    if wrong:
        raise FieldErrors(
            {f"{path}.{name}": f"cannot be combined with {sources[0]}" for name in wrong}
        ).refusal()
    if "name" in takes and given.name is UNSET:
        raise FieldErrors({f"{path}.name": "this field is required"}).refusal()


def _check_image_size(name: str, image: PromptImage) -> PromptImage:
    if len(image.data) > MAX_IMAGE_BYTES:
        raise _too_long(name, MAX_IMAGE_BYTES)
    if has_too_many_pixels(image.data):
        display_name, millions = " ".join(name.split()), MAX_GIVEN_PIXELS // 1_000_000
        raise TooLarge(
            f"{display_name} has more than {millions} million pixels, the limit for an image; attach a "
            "smaller copy"
        )
    return image


def _image_attachment(name: str, image: PromptImage, blob_id: str, offset: int | UnsetType) -> Attachment:
    extension = extension_of(name) or image.media_type.rpartition("/")[2]
    return Attachment(
        name=name,
        extension=extension,
        content="",
        media_type=image.media_type,
        size=len(image.data),
        blob_id=blob_id,
        offset=offset,
    )


async def _read_all(file: OpenFile, limit: int) -> bytes:
    data = await asyncio.to_thread(file.read_at, 0, limit + 1)
    if len(data) > limit:
        raise _too_long(file.name, limit)
    return data


def _decode_text(name: str, data: bytes) -> str:
    """The content of a text file. Raises InvalidInput if it is not text in UTF-8 or UTF-16."""
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(name) from error
    if "\0" in text:
        raise _unreadable(name)
    return text


def _unreadable(name: str) -> InvalidInput:
    return InvalidInput(
        f"{name} cannot be attached: it is neither text in UTF-8, nor a PDF, a file of Word, "
        "PowerPoint or Excel, an EPUB or ODS file, nor a PNG, JPEG, GIF or WebP image",
        kind="attachment_unreadable",
    )


def _too_long(name: str, limit: int) -> TooLarge:
    display_name = " ".join(name.split())
    return TooLarge(
        f"{display_name} is larger than {limit / 1_000_000:.1f} MB, the limit for this type of file"
    )
