"""`luxx knowledge list|add|search`: knowledge bases of a server, through its HTTP API.

Exit codes: 0 done; 1 refused or unreachable (it prints the reason), or a document could not be read; 2 wrong
options.
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from luxx.api.routes.knowledge import FoundChunks, SearchBody
from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import (
    add_subcommands,
    all_items,
    named,
    one_line,
    print_fields,
)
from luxx.domain.files.names import extension_of
from luxx.errors import InvalidInput, LuxxError, NotFound, TooLarge
from luxx.features.knowledge.documents import AddedDocuments
from luxx.features.knowledge.rows import DocumentView
from luxx.features.knowledge.search import FoundChunk
from luxx.features.knowledge.service import BaseView, NewBase
from luxx.infra.documents.formats import format_of_extension
from luxx.infra.documents.reader import MAX_DOCUMENT_BYTES
from luxx.wire.memory import EpisodeStatus

LOOK_SECONDS = 0.3
"""The pause before it is asked again whether a document is indexed."""

FOLDER_SEPARATOR = " - "
UNFINISHED = (EpisodeStatus.PENDING, EpisodeStatus.RUNNING)


def add_knowledge_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser)
    listing = add("list", _list, "list the knowledge bases that you may read, or the documents of one")
    listing.add_argument("base", nargs="?", help="its name or id")
    adding = add("add", _add, "add documents to a knowledge base, and wait until they are found")
    adding.add_argument("base", help="its name or id")
    adding.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file, or a folder of files")
    adding.add_argument("--create", action="store_true", help="create the knowledge base if there is none")
    search = add("search", _search, "print the passages of a knowledge base that fit some words best")
    search.add_argument("base", help="its name or id")
    search.add_argument("words", nargs="+", help="what to look for")
    search.add_argument("--limit", type=int, default=5, help="how many passages at most (default: 5)")


async def _list(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    if options.base is None:
        for base in await all_items(server, "/knowledge", BaseView):
            print_fields(base.id, base.scope, base.right, base.documents, one_line(base.name))
        return
    base = await _base(server, options.base)
    for document in await all_items(server, f"/knowledge/{base.id}/documents", DocumentView):
        _print_document(document)


async def _base(server: ServerApi, name_or_id: str) -> BaseView:
    bases = await all_items(server, "/knowledge", BaseView)
    return named(bases, name_or_id, lambda base: base.name, "knowledge base")


def _print_document(document: DocumentView) -> None:
    print_fields(document.id, document.status, _contents(document), one_line(document.name))


def _contents(document: DocumentView) -> str:
    """How much of a document is found, or why it is not."""
    if document.reason is not None:
        return one_line(document.reason)
    pages = [_counted(document.pages, "page")] if document.pages else []
    embedded = [] if document.embedded is None else [f"{document.embedded} by meaning"]
    return ", ".join([*pages, _counted(document.chunks, "passage"), *embedded])


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


async def _add(server: ServerApi, screen: Screen, options: argparse.Namespace) -> int:
    files = _files(options.paths)
    try:
        base = await _base(server, options.base)
    except NotFound:
        if not options.create:
            raise
        base = await server.call("POST", "/knowledge", BaseView, NewBase(name=options.base))
    added: list[DocumentView] = []
    failures = 0
    for number, (name, file) in enumerate(files.items(), 1):
        screen.show_progress(f"sends {name} ({number} of {len(files)})")
        try:
            added += await _send(server, base, name, file)
        except (InvalidInput, TooLarge) as error:
            if error.kind == "quota_exceeded":
                raise
            failures += 1
            screen.note(f"{file}: {error.message}")
    for number, document in enumerate(added, 1):
        screen.show_progress(f"reads {document.name} ({number} of {len(added)})")
        ended = await _ended(server, screen, document)
        screen.end_line()
        _print_document(ended)
        failures += ended.status != EpisodeStatus.SYNCED
    return 1 if failures else 0


def _files(paths: Sequence[Path]) -> dict[str, Path]:
    """The files to send by the names of their documents. Raises InvalidInput."""
    files: dict[str, Path] = {}
    for path in paths:
        for name, file in _files_of(path) if path.is_dir() else [(path.name, path)]:
            if name in files:
                raise InvalidInput(
                    f"{files[name]} and {file} would be one document, because both are named {name}; add "
                    "them to two knowledge bases, or rename one"
                )
            files[name] = file
    if not files:
        raise InvalidInput("there is no document in these folders")
    return files


def _files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """The documents in a folder and those below it, without hidden ones; names of the latter begin with
    their folders."""
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        if not is_hidden and file.is_file() and format_of_extension(extension_of(file.name)) is not None:
            yield FOLDER_SEPARATOR.join(parts), file


async def _send(server: ServerApi, base: BaseView, name: str, file: Path) -> list[DocumentView]:
    added = await server.upload(name, _read(file), AddedDocuments, f"/knowledge/{base.id}/documents")
    return added.items


def _read(file: Path) -> bytes:
    if file.stat().st_size > MAX_DOCUMENT_BYTES:
        raise TooLarge(f"it is larger than {MAX_DOCUMENT_BYTES // 2**20} MiB, the limit for a document")
    return file.read_bytes()


async def _ended(server: ServerApi, screen: Screen, document: DocumentView) -> DocumentView:
    """The document when it is indexed or has failed; says why it waits, if it does."""
    path = f"/knowledge/{document.base_id}/documents/{document.id}"
    noted = None
    while document.status in UNFINISHED:
        if document.reason not in (None, noted):
            screen.note(f"{one_line(document.name)} waits: {document.reason}")
            noted = document.reason
        await asyncio.sleep(LOOK_SECONDS)
        document = await server.call("GET", path, DocumentView)
    return document


async def _search(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    base = await _base(server, options.base)
    body = SearchBody(query=" ".join(options.words), limit=options.limit)
    found = await server.call("POST", f"/knowledge/{base.id}/search", FoundChunks, body)
    if not found.items:
        raise LuxxError(f"nothing in {one_line(base.name)} fits these words")
    for number, item in enumerate(found.items, 1):
        print_fields(f"{number}. {_place(item)}")
        for line in item.text.splitlines():
            print(CONTROL_CHARACTERS.sub("", f"   {line}".rstrip()))


def _place(item: FoundChunk) -> str:
    """The document of a passage and where it is there."""
    places = [f"{name} {value}" for name in ("page", "slide", "row") if (value := getattr(item, name))]
    heading = [one_line(item.heading)] if item.heading and item.heading != item.title else []
    return ", ".join([one_line(item.title), *places, *heading])
