"""The process that reads an uploaded file: the file on stdin, rows to a descriptor, the outcome on stdout.

A separate process, because of the GIL: parsing a hundred megabytes of JSON would delay every stream of the
server for seconds. It also has limits of memory and time and neither secrets nor a database, so a hostile
file can at worst end it.
"""

import os
import resource
import sys
from collections.abc import Callable
from typing import IO, Any

import msgspec

from luxx.domain.transfer import chatgpt, claude, own
from luxx.domain.transfer.arranging import keep_within_bounds, rows_of_draft
from luxx.domain.transfer.document import (
    FORMAT,
    ImportedRows,
    ImportOutcome,
    ImportRefused,
    ImportReport,
    Loss,
    ReadyRow,
    Skipped,
)
from luxx.domain.transfer.draft import ConversationDraft, JsonObject, Losses, Unusable, object_of, title_of
from luxx.domain.transfer.reading import ImportElement, Unreadable, read_file

MEMORY = 2 * 1024**3
"""Bytes of address space: twice what the largest accepted conversation takes."""

CPU_SECONDS = 60
MAX_CONVERSATIONS = 200_000
MAX_MESSAGES = 1_000_000
MAX_CONVERSATION_MESSAGES = 100_000
MAX_REPORTED = 200
"""Entries in each list of the report."""

UNTITLED = "New conversation"
UNKNOWN = ImportRefused(
    kind="import_format_unknown",
    reason="this is not an export of Luxx, ChatGPT or Claude; send conversations.json or its ZIP file",
)

_encode = msgspec.json.Encoder().encode


class ImportReader:
    """Reads one file; `rows` gets a line for each row."""

    def __init__(self, rows: IO[bytes]) -> None:
        self._rows = rows
        self._size = 0
        self._recognized = 0
        self._conversations: list[str] = []
        self._count = 0
        self._messages = 0
        self._lost: list[Loss] = []
        self._lost_total = 0
        self._skipped: list[Skipped] = []
        self._skipped_total = 0

    def read(self, file: IO[bytes], limit: int) -> ImportOutcome:
        """Reads the whole file, or returns why it cannot be imported."""
        try:
            for element in read_file(file, limit):
                self._read_element(element)
        except Unreadable as error:
            return ImportRefused(
                kind="import_too_large" if error.is_too_large else "import_unreadable",
                reason=f"the file cannot be imported: {error}",
                is_too_large=error.is_too_large,
            )
        if self._skipped_total and not self._recognized:
            return UNKNOWN
        self._rows.flush()
        return ImportedRows(report=self._report(), size=self._size)

    def _report(self) -> ImportReport:
        return ImportReport(
            conversations=self._count,
            messages=self._messages,
            conversation_ids=self._conversations,
            lost=self._lost,
            lost_total=self._lost_total,
            skipped=self._skipped,
            skipped_total=self._skipped_total,
        )

    def _read_element(self, element: ImportElement) -> None:
        losses = Losses()
        losses.add("NUL characters", element.nuls)
        try:
            if element.problem:
                self._recognized += 1  # It was not built; its format may well be known.
                raise Unusable(element.problem)
            self._store(self._draft(element.value, losses))
        except Unusable as error:
            self._skip(element.title or _title(element.value), str(error))

    def _draft(self, value: Any, losses: Losses) -> ConversationDraft:
        read_draft = reader_of(value)
        if read_draft is None:
            raise Unusable("its format is unknown")
        self._recognized += 1
        draft = read_draft(value, losses)
        if not draft.messages and read_draft is not own.draft_of:
            raise Unusable("it has no messages")
        if len(draft.messages) > MAX_CONVERSATION_MESSAGES:
            raise Unusable(f"it has more than {MAX_CONVERSATION_MESSAGES:,} messages")
        keep_within_bounds(draft)
        return draft

    def _store(self, draft: ConversationDraft) -> None:
        conversation, rows = rows_of_draft(draft, UNTITLED)
        self._count += 1
        self._messages += len(draft.messages)
        if self._count > MAX_CONVERSATIONS or self._messages > MAX_MESSAGES:
            raise Unreadable("it has too many conversations or messages for one import", is_too_large=True)
        if self._count <= MAX_REPORTED:
            self._conversations.append(conversation.id)
        self._write(conversation)
        for row in rows:
            self._write(row)
        for what, count in draft.losses.counts.items():
            self._lost_total += count
            if len(self._lost) < MAX_REPORTED:
                self._lost.append(Loss(conversation=conversation.title, what=what, count=count))

    def _write(self, row: ReadyRow) -> None:
        self._size += self._rows.write(_encode(row)) + self._rows.write(b"\n")

    def _skip(self, title: str, reason: str) -> None:
        self._skipped_total += 1
        if self._skipped_total > MAX_CONVERSATIONS:
            raise Unreadable("it has too many entries that are not conversations", is_too_large=True)
        if len(self._skipped) < MAX_REPORTED:
            self._skipped.append(Skipped(title=title, reason=reason))


def reader_of(value: Any) -> Callable[[JsonObject, Losses], ConversationDraft] | None:
    """The function that makes a draft of a conversation of this format; None for an unknown one."""
    shape = object_of(value)
    if shape.get("format") == FORMAT:
        return own.draft_of
    if "mapping" in shape:
        return chatgpt.draft_of
    return claude.draft_of if "chat_messages" in shape else None


def _title(value: Any) -> str:
    shape = object_of(value)
    own_title = object_of(shape.get("conversation")).get("title")
    return title_of(own_title or shape.get("title") or shape.get("name"))


def main() -> None:
    """`python -m luxx.domain.transfer.child LIMIT DESCRIPTOR`."""
    limit, descriptor = int(sys.argv[1]), int(sys.argv[2])
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(descriptor, "wb", closefd=False) as rows:
        try:
            outcome = ImportReader(rows).read(sys.stdin.buffer, limit)
        except MemoryError:
            outcome = ImportRefused(
                kind="import_too_large", reason="the file takes too much memory to read", is_too_large=True
            )
    sys.stdout.buffer.write(_encode(outcome))


if __name__ == "__main__":
    main()
