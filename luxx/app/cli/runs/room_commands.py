"""`luxx room run|list|export|import`: rooms of a server, through its HTTP API.

Exit codes: those of `follower.py`; 2 for options, files and names that cannot be used.
"""

import argparse
from pathlib import Path

from luxx.app.cli.runs.follower import RunFollower
from luxx.app.cli.runs.room import RoomTranscript, ShownRoom
from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import (
    AddCommand,
    add_follow_options,
    add_subcommands,
    all_items,
    find_named,
    names_file,
    read_document,
    run_checked_command,
    write_document,
)
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.features.rooms.document import MAX_CHARACTERS
from luxx.wire.run import ENDED, Run, RunStatus

HINT = "type a line to say it; /skip cuts a turn, /end ends the room, Ctrl-C pauses it, Ctrl-D leaves it"


def add_room_commands(parser: argparse.ArgumentParser, add_command: AddCommand) -> None:
    add = add_subcommands(parser, add_command, run_checked_command)
    run = add("run", _run, "run a room and show its discussion; a file is imported as a new room")
    run.add_argument("room", help="a file in YAML or JSON (- for stdin), or the title or id of a room")
    run.add_argument(
        "--resume", action="store_true", help="resume or follow its newest run; do not start another"
    )
    add_follow_options(run)
    add("list", _list, "list the rooms that you own or are a member of")
    export = add("export", _export, "write a room as a document, or its messages as Markdown")
    export.add_argument("room", help="its title or id")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: stdout")
    export.add_argument("--format", choices=["yaml", "json", "md"], default="yaml")
    import_parser = add("import", _import, "create a room from a document in YAML or JSON")
    import_parser.add_argument("file", nargs="?", default="-", help="- or left out: stdin")


async def _run(server: ServerApi, screen: Screen, options: argparse.Namespace) -> int:
    if options.resume and names_file(options.room):
        raise InvalidInput("--resume needs the title or id of a room: a file becomes a new room")
    room = await _room_to_run(server, options.room)
    screen.note(f"room {room.title} ({room.id})")
    run, shown_after = await _run_of(server, room, only_resume=options.resume)
    transcript = RoomTranscript(room, is_verbose=options.verbose)
    follower = RunFollower(server, screen, transcript, is_json=options.json)
    if follower.reads_lines:
        screen.note(HINT)
    return await follower.follow(run.id, shown_after)


async def _run_of(server: ServerApi, room: ShownRoom, *, only_resume: bool) -> tuple[Run, int]:
    """The run of a room, started, resumed or in progress, and the number of its last event to leave out."""
    path = f"/chat-rooms/{room.id}"
    if room.run_id is not None:
        run = await server.call("GET", f"/runs/{room.run_id}", Run)
        if run.status == RunStatus.PAUSED:
            return run, (await server.call("POST", f"{path}/resume", Run)).last_seq
        if only_resume or run.status not in ENDED:
            return run, 0
    elif only_resume:
        raise Conflict("this room has not been started; leave out --resume to start it")
    return await server.call("POST", f"{path}/start", Run), 0


async def _room_to_run(server: ServerApi, text: str) -> ShownRoom:
    if not names_file(text):
        return await _room_named(server, text)
    return await server.send_document("/chat-rooms/import", read_document(text, MAX_CHARACTERS), ShownRoom)


async def _room_named(server: ServerApi, title_or_id: str) -> ShownRoom:
    """The room with this id or title. Raises NotFound, and InvalidInput if there are several."""
    rooms = await all_items(server, "/chat-rooms", ShownRoom)
    room = find_named(rooms, title_or_id, lambda room: room.title, "rooms")
    if room is None:
        name = title_or_id.strip()[:100]
        raise NotFound(f"there is no file and no room {name!r}; `luxx room list` lists your rooms")
    return await server.call("GET", f"/chat-rooms/{room.id}", ShownRoom)


async def _list(server: ServerApi, _screen: Screen, _options: argparse.Namespace) -> None:
    for room in await all_items(server, "/chat-rooms", ShownRoom):
        print(CONTROL_CHARACTERS.sub("", f"{room.id}\t{room.title}\t{room.status}\t{room.right}"))


async def _export(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    room = await _room_named(server, options.room)
    document = await server.document(f"/chat-rooms/{room.id}/export", format=options.format)
    write_document(document, options.output)


async def _import(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    document = read_document(options.file, MAX_CHARACTERS)
    room = await server.send_document("/chat-rooms/import", document, ShownRoom)
    print(CONTROL_CHARACTERS.sub("", f"{room.id}\t{room.title}"))
