"""What the commands that use a server have in common: running one, finding things by name, documents."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from luxx.api.http.envelope import Page
from luxx.app.cli.command_line import add_command
from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi, add_server_options, connect
from luxx.errors import InvalidInput, LuxxError, NotFound
from luxx.providers.models import ProviderView

Work = Callable[[ServerApi, Screen, argparse.Namespace], Awaitable[int | None]]
"""What a command does while it is signed in. Returns the exit code; None: 0."""

AddSubcommand = Callable[[str, Work, str], argparse.ArgumentParser]
"""Adds a subcommand, by its name, its work and its help text, and returns its parser."""

PAGE_SIZE = 100
EXIT_BAD_INPUT = 2

T = TypeVar("T")


class Numbered(Protocol):
    """Anything with an id."""

    @property
    def id(self) -> Any: ...


N = TypeVar("N", bound=Numbered)


def add_subcommands(
    parser: argparse.ArgumentParser, run: Callable[[Work, argparse.Namespace], int] | None = None
) -> AddSubcommand:
    """A function that adds a subcommand to `parser`. `run` is `run_command` or `run_checked_command`."""
    commands = parser.add_subparsers(required=True, metavar="what")

    def add(name: str, work: Work, help_text: str) -> argparse.ArgumentParser:
        command = add_command(commands, name, partial(run or run_command, work), help_text)
        add_server_options(command)
        return command

    return add


def run_command(work: Work, options: argparse.Namespace) -> int:
    """Signs in and runs `work`. Raises LuxxError, also for a file that cannot be read or written."""

    async def run() -> int:
        screen = Screen(keeps_lines=True)
        async with connect(options, screen) as server:
            return await work(server, screen, options) or 0

    try:
        return asyncio.run(run())
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidInput(f"{error.filename or 'a file'}: {error.strerror or error}") from error


def run_checked_command(work: Work, options: argparse.Namespace) -> int:
    """Like `run_command`, with the exit code EXIT_BAD_INPUT for input that cannot be used."""
    try:
        return run_command(work, options)
    except (InvalidInput, NotFound) as error:
        print(f"luxx: {one_line(error.message)}", file=sys.stderr)
        return EXIT_BAD_INPUT


def confirm(what: str, confirmation: str) -> None:
    """Asks at the terminal. Raises LuxxError unless the user types the confirmation."""
    if not sys.stdin.isatty():
        raise LuxxError("this cannot be undone; add --yes to do it without a question")
    print(f"{what} This cannot be undone.")
    if input(f"Type '{confirmation}' to continue: ") != confirmation:
        raise LuxxError("nothing was changed")


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


async def all_items(server: ServerApi, path: str, kind: type[T], **filters: str) -> list[T]:
    """All items of a list of the API, over its pages."""
    items: list[T] = []
    number = 1
    while True:
        query = {"page": str(number), "page_size": str(PAGE_SIZE), **filters}
        page = await server.call("GET", path, Page[kind], **query)
        items += page.items
        if not page.items or len(items) >= page.total:
            return items
        number += 1


def find_named(items: Sequence[N], name_or_id: str, name_of: Callable[[N], str], plural: str) -> N | None:
    """The item with this id, or the only one with this name, else the only one but for letter case.

    Raises InvalidInput with the ids if there are several.
    """
    name = name_or_id.strip()
    for matching in (
        [item for item in items if str(item.id) == name],
        [item for item in items if name_of(item) == name],
        [item for item in items if name_of(item).casefold() == name.casefold()],
    ):
        if len(matching) == 1:
            return matching[0]
        if matching:
            ids = ", ".join(str(item.id) for item in matching)
            raise InvalidInput(
                f"{len(matching)} {plural} are named {name[:100]!r}; name one by its id: {ids}"
            )
    return None


def named(items: Sequence[N], name_or_id: str, name_of: Callable[[N], str], noun: str) -> N:
    """The item that `find_named` finds. Raises what it raises, and NotFound with the names that there are."""
    item = find_named(items, name_or_id, name_of, f"{noun}s")
    if item is None:
        raise no_such(noun, name_or_id, map(name_of, items))
    return item


def no_such(noun: str, name_or_id: str, names: Iterable[str]) -> NotFound:
    """The refusal of a name or id that no item has; the items have these names."""
    listed = ", ".join(dict.fromkeys(map(one_line, names))) or "none"
    return NotFound(f"there is no {noun} {name_or_id.strip()[:100]!r}; yours: {listed[:500]}")


async def provider_named(server: ServerApi, name_or_id: str) -> ProviderView:
    """The provider with this id or name. Raises NotFound, and InvalidInput if there are several."""
    providers = await all_items(server, "/providers", ProviderView)
    return named(providers, name_or_id, lambda provider: provider.name, "provider")


def read_document(path: str, max_characters: int) -> bytes:
    """The bytes of a file, or of stdin (`-`). Raises InvalidInput for too many, OSError."""
    # More bytes cannot be a document of so many characters.
    most = 4 * max_characters
    if path == "-":
        document = sys.stdin.buffer.read(most + 1)
    else:
        with Path(path).open("rb") as file:
            document = file.read(most + 1)
    if len(document) > most:
        raise InvalidInput(f"the document is larger than {max_characters:,} characters")
    return document


def write_document(document: str, output: Path | None) -> None:
    """Writes to a file, or to stdout."""
    document = document.rstrip("\n") + "\n"
    if output is None:
        sys.stdout.write(document)
    else:
        output.write_text(document, "utf-8")


def add_document_commands(
    add: AddSubcommand,
    noun: str,
    path: str,
    max_characters: int,
    view: type[N],
    find: Callable[[ServerApi, str], Awaitable[Numbered]],
    *,
    name_field: str = "name",
    formats: Sequence[str] = ("yaml", "json"),
    note: Callable[[N], None] = lambda _created: None,
) -> None:
    """Adds `export` and `import` for what has documents below `path`: `find` looks for one by its name or id,
    and `note` says more of one that was imported."""

    async def export_one(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
        found = await find(server, options.exported)
        document = await server.document(f"{path}/{found.id}/export", format=options.format)
        write_document(document, options.output)

    async def import_one(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
        document = read_document(options.file, max_characters)
        created = await server.send_document(f"{path}/import", document, view)
        note(created)
        print_fields(created.id, getattr(created, name_field))

    named = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    more = ", or its messages as Markdown" if "md" in formats else ""
    export = add("export", export_one, f"write {named} as a document{more}")
    export.add_argument("exported", metavar=noun, help=f"its {name_field} or id")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: stdout")
    export.add_argument("--format", choices=formats, default="yaml")
    import_parser = add("import", import_one, f"create {named} from a document in YAML or JSON")
    import_parser.add_argument("file", nargs="?", default="-", help="- or left out: stdin")


def print_fields(*fields: object) -> None:
    """Prints a line of a list."""
    print(CONTROL_CHARACTERS.sub("", "\t".join(map(str, fields))))


def names_file(text: str) -> bool:
    """Whether an argument names a file: one that exists, stdin (`-`), or one word that looks like a path."""
    try:
        exists = Path(text).exists()
    except OSError:  # A long text is no path.
        exists = False
    looks_like_path = text.lower().endswith((".yaml", ".yml", ".json")) or text.startswith(("./", "../", "/"))
    return text == "-" or exists or (looks_like_path and len(text.split()) == 1)


def add_follow_options(parser: argparse.ArgumentParser) -> None:
    """The options of the commands that follow a run."""
    parser.add_argument("--json", action="store_true", help="print the events, one JSON object on each line")
    parser.add_argument("--verbose", "-v", action="store_true", help="also show thinking and texts of steps")
