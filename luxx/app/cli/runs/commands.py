"""`luxx room` and `luxx task` (run|list|export|import, of tasks also add|set): rooms and tasks of a server,
through its HTTP API.

Exit codes: those of `follower.py`; 2 for options, files and names that cannot be used.
"""

import argparse
from datetime import datetime
from urllib.parse import quote

from luxx.app.cli.agent_and_conversation_commands import agent_named
from luxx.app.cli.runs.follower import RunFollower
from luxx.app.cli.runs.room import RoomTranscript, ShownRoom
from luxx.app.cli.runs.task import ShownTask, TaskTranscript
from luxx.app.cli.runs.transcript import EXIT_FAILED
from luxx.app.cli.screen import Screen
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import (
    add_document_commands,
    add_follow_options,
    add_subcommands,
    all_items,
    find_named,
    names_file,
    one_line,
    print_fields,
    provider_named,
    read_document,
    run_checked_command,
)
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.features.rooms.models import MAX_DOCUMENT_CHARACTERS as MAX_ROOM_CHARACTERS
from luxx.features.tasks.graph import TaskStepStatus
from luxx.features.tasks.models import MAX_DOCUMENT_CHARACTERS as MAX_TASK_CHARACTERS
from luxx.features.tasks.queries import TaskOrder
from luxx.wire.run import ENDED, Run, RunStatus

HINT = "type a line to say it; /skip cuts a turn, /end ends the room, Ctrl-C pauses it, Ctrl-D leaves it"
NAME_CHARACTERS = 80
TIMES = "such as 2030-12-01T15:00 (here) or 2030-12-01T15:00Z; none: without one"


# Rooms


def add_room_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser, run_checked_command)
    run = add("run", _run_room, "run a room and show its discussion; a file is imported as a new room")
    run.add_argument("room", help="a file in YAML or JSON (- for stdin), or the title or id of a room")
    run.add_argument(
        "--resume", action="store_true", help="resume or follow its newest run; do not start another"
    )
    add_follow_options(run)
    add("list", _list_rooms, "list the rooms that you own or are a member of")
    add_document_commands(
        add, "room", "/chat-rooms", MAX_ROOM_CHARACTERS, ShownRoom, _room_named,
        name_field="title", formats=("yaml", "json", "md"),
    )  # fmt: skip


async def _run_room(server: ServerApi, screen: Screen, options: argparse.Namespace) -> int:
    if options.resume and names_file(options.room):
        raise InvalidInput("--resume needs the title or id of a room: a file becomes a new room")
    room = await _room_to_run(server, options.room)
    screen.note(f"room {room.title} ({room.id})")
    run, shown_after = await _run_of(
        server,
        f"/chat-rooms/{room.id}",
        room.run_id,
        ("room", "start", "started"),
        only_resume=options.resume,
    )
    transcript = RoomTranscript(room, is_verbose=options.verbose)
    follower = RunFollower(server, screen, transcript, is_json=options.json)
    if follower.reads_lines:
        screen.note(HINT)
    return await follower.follow(run.id, shown_after)


async def _room_to_run(server: ServerApi, text: str) -> ShownRoom:
    if not names_file(text):
        return await _room_named(server, text)
    return await server.send_document(
        "/chat-rooms/import", read_document(text, MAX_ROOM_CHARACTERS), ShownRoom
    )


async def _room_named(server: ServerApi, title_or_id: str) -> ShownRoom:
    """The room with this id or title. Raises NotFound, and InvalidInput if there are several."""
    rooms = await all_items(server, "/chat-rooms", ShownRoom)
    room = find_named(rooms, title_or_id, lambda room: room.title, "rooms")
    if room is None:
        name = title_or_id.strip()[:100]
        raise NotFound(f"there is no file and no room {name!r}; `luxx room list` lists your rooms")
    return await server.call("GET", f"/chat-rooms/{room.id}", ShownRoom)


async def _list_rooms(server: ServerApi, _screen: Screen, _options: argparse.Namespace) -> None:
    for room in await all_items(server, "/chat-rooms", ShownRoom):
        print_fields(room.id, room.title, room.status, room.right)


# Tasks


def add_task_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser, run_checked_command)
    run = add("run", _run_task, "run a task and print its result; a goal or a file becomes a new task")
    run.add_argument(
        "task", help="a goal in several words, a file in YAML or JSON (- for stdin), or a task's name or id"
    )
    run.add_argument(
        "--resume", action="store_true", help="resume or follow its newest run; do not execute it again"
    )
    run.add_argument("--retry", action="store_true", help="carry out the failed steps of a task again")
    run.add_argument("--agent", help="for a goal: the name or id of the agent of its steps")
    run.add_argument("--provider", help="for a goal: the name or id of the provider of its steps")
    run.add_argument("--approve", action="store_true", help="approve the task and its steps without asking")
    add_follow_options(run)
    new = add("add", _add_task, "store a goal as a new task; with --start it starts by itself")
    new.add_argument("goal", help="a goal in several words; the steps are planned when the task is executed")
    new.add_argument("--agent", help="the name or id of the agent of its steps")
    new.add_argument("--provider", help="the name or id of the provider of its steps")
    changed = add("set", _set_task, "set the priority and the times of a task")
    changed.add_argument("task", help="the name or id of a task")
    changed.add_argument("--snooze", metavar="TIME", help="leave it out of lists until then")
    for command in (new, changed):
        command.add_argument("--priority", type=int, choices=range(1, 6), help="1 is the most urgent")
        command.add_argument("--start", metavar="TIME", help="the time at which it is executed, once")
        command.add_argument("--due", metavar="TIME", help=f"the time at which it is due; {TIMES}")
    listed = add("list", _list_tasks, "list your tasks")
    listed.add_argument("--snoozed", action="store_true", help="also those that are snoozed")
    listed.add_argument("--order", choices=[*TaskOrder], default=TaskOrder.NEWEST, help="what comes first")
    add_document_commands(add, "task", "/tasks", MAX_TASK_CHARACTERS, ShownTask, _task_named)


async def _run_task(server: ServerApi, screen: Screen, options: argparse.Namespace) -> int:
    task = await _task_to_run(server, options)
    screen.note(f"task {task.name} ({task.id})")
    if not options.retry:
        run, shown_after = await _run_of(
            server,
            f"/tasks/{task.id}",
            task.run_id,
            ("task", "execute", "executed"),
            only_resume=options.resume,
        )
        return await _follow_task(server, screen, options, task, run, shown_after)
    failed = [step.id for step in task.steps if step.status == TaskStepStatus.FAILED]
    if not failed:
        raise Conflict("no step of this task has failed; leave out --retry")
    code = 0
    for step_id in failed:
        # One run after the other: each retries one failed step, and those that were left out because of it.
        run = await server.call("POST", f"/tasks/{task.id}/steps/{quote(step_id, safe='')}/retry", Run)
        task = await server.call("GET", f"/tasks/{task.id}", ShownTask)
        code = await _follow_task(server, screen, options, task, run, 0)
        if code not in (0, EXIT_FAILED):
            break
    return code


async def _follow_task(
    server: ServerApi,
    screen: Screen,
    options: argparse.Namespace,
    task: ShownTask,
    run: Run,
    shown_after: int,
) -> int:
    transcript = TaskTranscript(task, is_verbose=options.verbose)
    follower = RunFollower(server, screen, transcript, is_json=options.json, approves=options.approve)
    return await follower.follow(run.id, shown_after)


async def _task_to_run(server: ServerApi, options: argparse.Namespace) -> ShownTask:
    text: str = options.task
    goal_options = options.agent or options.provider
    old_options = options.resume or options.retry
    task = None
    if names_file(text):
        _check_options(goal_options, old_options, "a file")
        document = read_document(text, MAX_TASK_CHARACTERS)
        task = await server.send_document("/tasks/import", document, ShownTask)
    else:
        # A goal that is given again is a new task, not the one that was made of it before.
        tasks = [one for one in await _all_tasks(server) if one.goal != text.strip()]
        found = find_named(tasks, text, lambda task: task.name, "tasks")
        if found is not None:
            task = await server.call("GET", f"/tasks/{found.id}", ShownTask)
    if task is None:
        _check_options(None, old_options, "a goal")
        return await _new_task(server, text.strip(), options)
    _check_options(goal_options, None, "a task")
    return task


def _check_options(goal_options: object, old_options: object, given: str) -> None:
    """Raises InvalidInput for options that do not suit what was given; then nothing is created."""
    if goal_options:
        raise InvalidInput(f"--agent and --provider are for a goal; {given} has its own")
    if old_options:
        raise InvalidInput(f"--resume and --retry need the name or id of a task: {given} becomes a new task")


async def _new_task(server: ServerApi, goal: str, options: argparse.Namespace) -> ShownTask:
    """A task with this goal, which is planned when it is executed."""
    if len(goal.split()) < 2:
        raise NotFound(
            f"there is no file and no task {goal[:100]!r}; `luxx task list` lists your tasks, and a goal has "
            "several words"
        )
    body: dict[str, object] = {"name": _name_of(goal), "goal": goal}
    if options.agent:
        body["agent_id"] = (await agent_named(server, options.agent)).id
    if options.provider:
        body["provider_id"] = (await provider_named(server, options.provider)).id
    if "start" in options:
        body |= _given_times(options)
    return await server.call("POST", "/tasks", ShownTask, body)


def _name_of(goal: str) -> str:
    line = one_line(goal)
    return line if len(line) <= NAME_CHARACTERS else line[: NAME_CHARACTERS - 1] + "…"


async def _task_named(server: ServerApi, name_or_id: str) -> ShownTask:
    tasks = await _all_tasks(server)
    task = find_named(tasks, name_or_id, lambda task: task.name, "tasks")
    if task is None:
        raise NotFound(f"there is no task {name_or_id.strip()[:100]!r}; `luxx task list` lists yours")
    return task


async def _all_tasks(server: ServerApi, order: TaskOrder = TaskOrder.NEWEST) -> list[ShownTask]:
    return await all_items(server, "/tasks", ShownTask, snoozed="true", order=order)


async def _list_tasks(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    snoozed = {"snoozed": "true"} if options.snoozed else {}
    for task in await all_items(server, "/tasks", ShownTask, order=options.order, **snoozed):
        done, total = task.step_counts.get("completed", 0), sum(task.step_counts.values())
        print_fields(task.id, task.name, task.status, f"{done}/{total} steps", *_times_of(task))


def _times_of(task: ShownTask) -> list[str]:
    """The priority and the times of a task, in local time, as fields of a list."""
    named = [("starts", task.start_at), ("due", task.due_at), ("snoozed until", task.snoozed_until)]
    times = [f"{name} {time.astimezone():%Y-%m-%d %H:%M}" for name, time in named if time is not None]
    return [f"priority {task.priority}", *times]


async def _add_task(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    task = await _new_task(server, options.goal.strip(), options)
    print_fields(task.id, task.name, task.status, *_times_of(task))


async def _set_task(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    changes = _given_times(options)
    if options.snooze is not None:
        changes["snoozed_until"] = _time_of(options.snooze)
    if not changes:
        raise InvalidInput("nothing to set: give --priority, --start, --due or --snooze")
    task = await _task_named(server, options.task)
    task = await server.call("PUT", f"/tasks/{task.id}", ShownTask, changes)
    print_fields(task.id, task.name, task.status, *_times_of(task))


def _given_times(options: argparse.Namespace) -> dict[str, object]:
    """The fields of a task that these options set."""
    fields: dict[str, object] = {} if options.priority is None else {"priority": options.priority}
    times = {"start_at": options.start, "due_at": options.due}
    return fields | {name: _time_of(text) for name, text in times.items() if text is not None}


def _time_of(text: str) -> str | None:
    """A time as the API takes it; one without a time zone is local. Raises InvalidInput."""
    if text.strip().lower() == "none":
        return None
    try:
        return datetime.fromisoformat(text.strip()).astimezone().isoformat()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{text[:60]!r} is no time; write one {TIMES}") from error


# Both


async def _run_of(
    server: ServerApi, path: str, run_id: str | None, words: tuple[str, str, str], *, only_resume: bool
) -> tuple[Run, int]:
    """The run of a room or task, started, resumed or in progress, and the number of its last event to leave
    out. `words`: what it is, the action that starts it and its participle."""
    what, start, started = words
    if run_id is not None:
        run = await server.call("GET", f"/runs/{run_id}", Run)
        if run.status == RunStatus.PAUSED:
            return run, (await server.call("POST", f"{path}/resume", Run)).last_seq
        if only_resume or run.status not in ENDED:
            return run, 0
    elif only_resume:
        raise Conflict(f"this {what} has not been {started}; leave out --resume to {start} it")
    return await server.call("POST", f"{path}/{start}", Run), 0
