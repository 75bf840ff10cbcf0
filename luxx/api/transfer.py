"""`/conversations/{id}/export` and `/conversations/import`: conversations as files."""

import re
from typing import Any, Literal
from urllib.parse import quote

from litestar import Controller, Request, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery

from luxx.api.envelope import Success, success
from luxx.api.parameters import GivenCaller, TextId
from luxx.api.sending import Sending
from luxx.api.uploads import receive_file
from luxx.transfer.document import ImportReport
from luxx.transfer.service import Download, TransferService

NAME_LENGTH = 80
NOT_IN_A_NAME = re.compile(r"[^\w\- ]+")


class TransferController(Controller):
    path = "/conversations"
    tags = ("conversations",)

    @get("/{conversation_id:str}/export")
    async def export(
        self,
        caller: GivenCaller,
        transfer: NamedDependency[TransferService],
        conversation_id: TextId,
        format: FromQuery[Literal["json", "md"]] = "json",
    ) -> Sending:
        """A conversation as a file: `json` with all its branches, to import again, or `md` to read."""
        if format == "md":
            return _sent(await transfer.export_markdown(caller, conversation_id), "text/markdown", "md")
        return _sent(await transfer.export_json(caller, conversation_id), "application/json", "json")

    @post("/import", status_code=200)
    async def import_(
        self, request: Request[Any, Any, Any], caller: GivenCaller, transfer: NamedDependency[TransferService]
    ) -> Success[ImportReport]:
        """Import conversations that Luxx, ChatGPT or Claude exported, as JSON or ZIP: all of it or nothing.

        The file is the body, or the part `file` of a form. The report says what could not be kept.
        """
        async with transfer.upload(caller) as file:
            await receive_file(request, file)
            return success(await transfer.import_file(caller, file), "imported")


def _sent(download: Download, media_type: str, suffix: str) -> Sending:
    name = NOT_IN_A_NAME.sub("", download.title).strip()[:NAME_LENGTH].strip() or "conversation"
    plain = name.encode("ascii", "ignore").decode().strip() or "conversation"
    named = f"attachment; filename=\"{plain}.{suffix}\"; filename*=UTF-8''{quote(f'{name}.{suffix}')}"
    headers = {
        "content-type": f"{media_type}; charset=utf-8" if media_type.startswith("text/") else media_type,
        "content-length": str(download.size),
        "content-disposition": named,
    }
    return Sending(download.file, headers, close=download.close)
