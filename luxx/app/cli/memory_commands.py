"""`luxx memory list|add|forget|export`: what a server remembers, through its HTTP API.

Exit codes: 0 done; 1 refused or unreachable (it prints the reason); 2 wrong options.
"""

import argparse
import re
from pathlib import Path

from luxx.api.http.request_input import UUID
from luxx.api.routes.memories import DeletedFacts
from luxx.app.cli.login_commands import parse_time
from luxx.app.cli.screen import Screen
from luxx.app.cli.server_api import ServerApi, ask
from luxx.app.cli.server_commands import (
    add_subcommands,
    all_items,
    confirm,
    one_line,
    print_fields,
    write_document,
)
from luxx.errors import InvalidInput
from luxx.features.memory.scopes import IN_SCOPE
from luxx.features.memory.sources import IN_SOURCE
from luxx.features.memory.views import Fact
from luxx.wire.memory import FactCategory

FACT_ID = re.compile(UUID, re.IGNORECASE)
CATEGORIES = [category.value for category in FactCategory]
WHEN = "a date (2027-01-31) or a time in UTC (2027-01-31T12:00:00Z)"


def add_memory_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser)
    listing = add("list", _list, "list what is remembered, newest first")
    listing.add_argument("words", nargs="*", help="only facts with all of these words")
    _add_kind(listing)
    listing.add_argument("--as-of", type=parse_time, metavar="WHEN", help=f"what was true then: {WHEN}")
    listing.add_argument("--known-at", type=parse_time, metavar="WHEN", help="what was known then")
    adding = add("add", _add, "remember a fact")
    adding.add_argument("text", nargs="+", help="one sentence")
    _add_kind(adding)
    for name, meaning in (
        ("subject", "what it is about, a name"),
        ("predicate", "how subject and object are connected"),
        ("object", "what the subject is connected with, a name"),
    ):
        adding.add_argument(f"--{name}", help=meaning)
    adding.add_argument("--valid-at", type=parse_time, metavar="WHEN", help=f"since when it is true: {WHEN}")
    adding.add_argument("--invalid-at", type=parse_time, metavar="WHEN", help="since when it is not any more")
    adding.add_argument("--pin", action="store_true", help="it counts more")
    forget = add("forget", _forget, "delete facts for good")
    forget.add_argument("fact", nargs="*", metavar="ID", help="the id of a fact, as `list` prints it")
    forget.add_argument("--scope", help=f"all facts of a scope: {IN_SCOPE}")
    forget.add_argument("--source", help=f"all facts of a source: {IN_SOURCE}")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    export = add("export", _export, "write all facts, with earlier wordings, as JSON")
    export.add_argument("--scope", help=f"only those of a scope: {IN_SCOPE}")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: stdout")


def _add_kind(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--category", choices=CATEGORIES)
    parser.add_argument("--scope", help=IN_SCOPE)


async def _list(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    query = {name: getattr(options, name) for name in ("category", "scope", "as_of", "known_at")}
    query["q"] = " ".join(options.words)
    given = {
        name: value if isinstance(value, str) else value.isoformat() for name, value in query.items() if value
    }
    for fact in await all_items(server, "/memories", Fact, **given):
        print_fields(fact.id, fact.scope, fact.category, one_line(fact.text))


async def _add(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    names = ("category", "scope", "subject", "predicate", "object", "valid_at", "invalid_at")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    body = {"text": " ".join(options.text), "pinned": options.pin, **given}
    fact = await server.call("POST", "/memories", Fact, body)
    print_fields(fact.id, fact.scope, fact.category, one_line(fact.text))


async def _forget(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    query = {name: value for name in ("scope", "source") if (value := getattr(options, name)) is not None}
    if bool(query) == bool(options.fact):
        raise InvalidInput("name facts by their ids, or all of a scope or a source (--scope, --source)")
    for fact_id in options.fact:
        if not FACT_ID.fullmatch(fact_id):
            raise InvalidInput(f"{fact_id[:100]!r} is no id of a fact; `luxx memory list` prints them")
    for fact_id in options.fact:
        await server.call("DELETE", f"/memories/{fact_id}", type(None))
    deleted = len(options.fact)
    if query:
        what = " and ".join(f"{name} {value}" for name, value in query.items())
        if not options.yes:
            _confirm(f"This deletes all facts of the {one_line(what)} for good.")
        deleted = (await server.call("DELETE", "/memories", DeletedFacts, **query)).deleted
    print("1 fact is forgotten" if deleted == 1 else f"{deleted} facts are forgotten")


def _confirm(what: str) -> None:
    def read(_prompt: str) -> str:
        confirm(what, "forget")
        return ""

    ask(read, "")


async def _export(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    query = {} if options.scope is None else {"scope": options.scope}
    document = await server.document("/memories/export", **query)
    write_document(document, options.output)
