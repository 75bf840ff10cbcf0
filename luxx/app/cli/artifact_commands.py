"""`luxx artifact list|show|get`: artifacts of a server, through its HTTP API.

Exit codes: 0 done; 1 refused or unreachable (it prints the reason); 2 wrong options.
"""

import argparse
import sys
from pathlib import Path

from luxx.app.cli.screen import Screen
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import (
    add_subcommands,
    all_items,
    named,
    one_line,
    print_fields,
    write_document,
)
from luxx.errors import InvalidInput
from luxx.features.artifacts.downloads import ALL_FORMATS, file_name
from luxx.features.artifacts.views import ArtifactContent, ArtifactView
from luxx.wire.artifacts import ArtifactType


def add_artifact_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser)
    listing = add("list", _list, "list your artifacts, and those of your rooms, newest first")
    listing.add_argument("--type", choices=[each.value for each in ArtifactType])
    for subject in ("conversation", "room", "task"):
        listing.add_argument(f"--{subject}", metavar="ID", help=f"only those of this {subject}")
    show = add("show", _show, "print the source of an artifact, or of one page")
    _add_artifact(show)
    show.add_argument("--page", type=int, help="a page, counted from 1; default: all")
    get = add("get", _get, "download an artifact as a file")
    _add_artifact(get)
    get.add_argument("--format", choices=ALL_FORMATS, help="default: the first of its type")
    get.add_argument(
        "-o", "--output", metavar="FILE", help="a file, a folder, or - for stdout; default: its name, here"
    )
    get.add_argument("--force", action="store_true", help="replace a file that exists")


def _add_artifact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", help="its name or id")
    parser.add_argument("--version", type=int, help="default: the newest one")


async def _list(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    query = {f"{name}_id": getattr(options, name) for name in ("conversation", "room", "task")}
    query["type"] = options.type
    given = {name: value for name, value in query.items() if value is not None}
    for artifact in await all_items(server, "/artifacts", ArtifactView, **given):
        print_fields(
            artifact.id,
            artifact.type.value,
            f"version {artifact.head}",
            f"{artifact.pages} {'page' if artifact.pages == 1 else 'pages'}",
            one_line(artifact.name),
        )


async def _artifact(server: ServerApi, name_or_id: str) -> ArtifactView:
    artifacts = await all_items(server, "/artifacts", ArtifactView)
    return named(artifacts, name_or_id, lambda artifact: artifact.name, "artifact")


async def _show(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    artifact = await _artifact(server, options.artifact)
    query = {
        name: str(value) for name in ("page", "version") if (value := getattr(options, name)) is not None
    }
    content = await server.call("GET", f"/artifacts/{artifact.id}/content", ArtifactContent, **query)
    write_document(content.content, None)


async def _get(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    artifact = await _artifact(server, options.artifact)
    # The server draws no diagrams; their text is what it sends without a format.
    default = "mmd" if artifact.type == ArtifactType.DIAGRAM else artifact.formats[0]
    format_ = options.format or default
    target = _target(options.output, file_name(artifact.name, format_))
    if target is not None and target.exists() and not options.force:
        raise InvalidInput(f"{target} exists; --force replaces it")
    version = {} if options.version is None else {"version": str(options.version)}
    data = await server.content(f"/artifacts/{artifact.id}/download", format=format_, **version)
    if target is None:
        sys.stdout.buffer.write(data)
    else:
        target.write_bytes(data)
        print(target)


def _target(output: str | None, name: str) -> Path | None:
    """The file to write; None: stdout."""
    if output == "-":
        return None
    chosen = Path(name if output is None else output)
    return chosen / name if chosen.is_dir() else chosen
