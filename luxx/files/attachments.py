"""What a person attaches to a message, made into what the message keeps: texts, and images' bytes.

A file is read when the message is sent; changing or deleting it later changes no message.
"""

import asyncio
import codecs

import msgspec
from msgspec import UNSET, UnsetType

from luxx.accounts.caller import Caller
from luxx.clock import new_id
from luxx.errors import InvalidInput, TooLarge
from luxx.files.names import extension_of
from luxx.files.pdf import PdfReader
from luxx.files.pictures import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES, image_type
from luxx.files.service import FileService
from luxx.files.storage import OpenFile
from luxx.wire.message import Attachment, PromptImage

GATHER_SECONDS = 120.0
"""How long reading all of a message's attachments may take."""

MAX_TEXT = 2_000_000
"""Characters of one text, and bytes of one text file."""

_HEAD = 1024
_WAYS = ("content", "file_id", "data")


class GivenAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """As a request has it: a text with its name, an image with its name and bytes, or a file's id."""

    name: str | UnsetType = UNSET
    extension: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """Attachments as the message keeps them, and its images by `blob_id`."""

    attachments: list[Attachment] = []
    images: dict[str, PromptImage] = {}


class AttachmentReader:
    """One per process."""

    def __init__(self, files: FileService, pdfs: PdfReader) -> None:
        self._files = files
        self._pdfs = pdfs

    async def gather(self, caller: Caller, given: list[GivenAttachment]) -> Gathered:
        """Reads what files are named. Raises InvalidInput, TooLarge, NotFound for an id, or Unavailable."""
        if not given:
            return Gathered()
        try:
            async with asyncio.timeout(GATHER_SECONDS):
                return await self._gather(caller, given)
        except TimeoutError as error:
            raise InvalidInput(
                "the attachments take too long to be read; send fewer at a time", kind="attachment_unreadable"
            ) from error

    async def _gather(self, caller: Caller, given: list[GivenAttachment]) -> Gathered:
        attachments: list[Attachment] = []
        images: dict[str, PromptImage] = {}
        for index, each in enumerate(given):
            made = await self._made(caller, each, f"$.attachments[{index}]")
            if isinstance(made, Attachment):
                attachments.append(made)
                continue
            name, image = made
            blob_id = new_id()
            images[blob_id] = image
            attachments.append(_of_image(name, image, blob_id))
            _check_together(list(images.values()))
        return Gathered(attachments=attachments, images=images)

    async def _made(
        self, caller: Caller, given: GivenAttachment, path: str
    ) -> Attachment | tuple[str, PromptImage]:
        _check_form(given, path)
        if isinstance(given.file_id, str):
            return await self._read(caller, given.file_id)
        name = given.name if isinstance(given.name, str) else ""
        if isinstance(given.data, bytes):
            kind = image_type(given.data[:_HEAD])
            if kind is None:
                raise _wrong({f"{path}.data": "not a PNG, JPEG, GIF or WebP image"})
            return name, _checked(name, PromptImage(media_type=kind, data=given.data))
        content = given.content if isinstance(given.content, str) else ""
        extension = given.extension if isinstance(given.extension, str) else ""
        return Attachment(name=name, extension=extension or extension_of(name), content=content)

    async def _read(self, caller: Caller, file_id: str) -> Attachment | tuple[str, PromptImage]:
        """A file of the workspace as what its first bytes say it is, whatever it is called."""
        file = await self._files.open(caller, file_id)
        try:
            head = await asyncio.to_thread(file.read_at, 0, _HEAD)
            kind = image_type(head)
            if kind is not None:
                data = await _whole(file, MAX_IMAGE_BYTES)
                return file.name, _checked(file.name, PromptImage(media_type=kind, data=data))
            if b"%PDF-" in head:
                text = await self._pdfs.text_of(file, characters=MAX_TEXT, user_id=caller.user_id)
            else:
                text = _decoded(file.name, await _whole(file, MAX_TEXT))
        finally:
            await asyncio.shield(asyncio.to_thread(file.close))
        return Attachment(name=file.name, extension=extension_of(file.name), content=text)


def _check_form(given: GivenAttachment, path: str) -> None:
    """Raises InvalidInput unless it is exactly one of a text, an image and a file's id."""
    ways = [way for way in _WAYS if getattr(given, way) is not UNSET]
    if not ways:
        raise _wrong({f"{path}.content": "content, data or file_id is needed"})
    if len(ways) > 1:
        raise _wrong({f"{path}.{way}": f"not together with {ways[0]}" for way in ways[1:]})
    takes = {"content": {"name", "extension"}, "data": {"name", "media_type"}, "file_id": set[str]()}[ways[0]]
    others = {"name", "extension", "media_type"} - takes
    if wrong := {f"{path}.{name}": f"not together with {ways[0]}"
                 for name in sorted(others) if getattr(given, name) is not UNSET}:  # fmt: skip
        raise _wrong(wrong)
    if "name" in takes and given.name is UNSET:
        raise _wrong({f"{path}.name": "this field is required"})


def _check_together(images: list[PromptImage]) -> None:
    if len(images) > MAX_IMAGES:
        raise TooLarge(f"a message takes at most {MAX_IMAGES} images")
    if sum(len(image.data) for image in images) > MAX_IMAGES_BYTES:
        raise TooLarge(f"the images of a message together take at most {MAX_IMAGES_BYTES // 2**20} MiB")


def _checked(name: str, image: PromptImage) -> PromptImage:
    if len(image.data) > MAX_IMAGE_BYTES:
        raise _too_long(name, MAX_IMAGE_BYTES)
    return image


def _of_image(name: str, image: PromptImage, blob_id: str) -> Attachment:
    extension = extension_of(name) or image.media_type.rpartition("/")[2]
    return Attachment(
        name=name,
        extension=extension,
        content="",
        media_type=image.media_type,
        size=len(image.data),
        blob_id=blob_id,
    )


async def _whole(file: OpenFile, limit: int) -> bytes:
    data = await asyncio.to_thread(file.read_at, 0, limit + 1)
    if len(data) > limit:
        raise _too_long(file.name, limit)
    return data


def _decoded(name: str, data: bytes) -> str:
    """A text file's content. Raises InvalidInput for what is no text that a model could read."""
    is_wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(name) from error
    if "\0" in text:
        raise _unreadable(name)
    return text


def _unreadable(name: str) -> InvalidInput:
    return InvalidInput(
        f"{name} cannot be attached: it is neither text in UTF-8, nor a PDF, nor a PNG, JPEG, GIF or WebP "
        "image",
        kind="attachment_unreadable",
    )


def _too_long(name: str, limit: int) -> TooLarge:
    shown = " ".join(name.split())
    return TooLarge(f"{shown} has more than {limit / 1_000_000:.1f} MB, the most for this kind of file")


def _wrong(fields: dict[str, str]) -> InvalidInput:
    named = "; ".join(f"{path}: {problem}" for path, problem in fields.items())
    return InvalidInput(f"the request is not valid: {named}", detail={"fields": fields})
