"""The queue of a chat at the terminal: what is typed while an answer is shown, and `/queue`."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from luxx.app.cli.chat import todos
from luxx.app.cli.menu import number_in
from luxx.app.cli.screen import RunScreen
from luxx.app.cli.server_api import ConnectionFailed, ServerApi
from luxx.errors import InvalidInput, LuxxError
from luxx.wire.queue import Queue, WhenBusy

COMMAND = "/queue"
NEXT_TRIES, NEXT_SECONDS = 50, 0.2
"""How long the next message may take to be sent after an answer has ended."""


class GivenMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a message: its place, or its run where no answer was being made any more."""

    queue_id: str = ""


class AnswerRun(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run that says which answer follows."""

    id: str
    message_id: str | None = None
    parent_run_id: str | None = None


class AnswerRuns(msgspec.Struct, frozen=True, kw_only=True):
    items: list[AnswerRun]


class TerminalQueue:
    """`options` are those of the next message. `has_given`: something may be answered after this answer."""

    def __init__(self, server: ServerApi, screen: RunScreen, options: Callable[[], dict[str, Any]]) -> None:
        self._server = server
        self._screen = screen
        self._options = options
        self._writing = asyncio.Lock()
        self.todos = todos.TerminalTodos(server, screen)
        self.has_given = False

    async def take_line(self, conversation_id: str, line: str) -> None:
        """Carries out a line that was typed while an answer is shown: it steers the answer. An error is
        noted."""
        try:
            async with self._writing:
                word, _, rest = line.partition(" ")
                if word == COMMAND:
                    await self.carry_out(conversation_id, rest.strip())
                elif word == todos.COMMAND:
                    await self.todos.carry_out(conversation_id, rest.strip())
                elif word.startswith("/") and "/" not in word[1:]:
                    self._screen.note(f"{word} waits for the end of the answer; type it again then")
                else:
                    await self._give(conversation_id, line, WhenBusy.STEER)
        except (LuxxError, ConnectionFailed) as error:
            reason = error.message if isinstance(error, LuxxError) else "the server does not answer"
            self._screen.note(f"error: {reason}")

    async def carry_out(self, conversation_id: str, argument: str) -> None:
        """Lists what waits, drops a part of it (`drop 2`), lets it go on (`resume`), or adds a text.

        Raises LuxxError, ConnectionFailed.
        """
        word, _, rest = argument.partition(" ")
        if word == "drop":
            await self._drop(conversation_id, rest.strip())
        elif argument == "resume":
            await self.resume(conversation_id)
        elif argument:
            await self._give(conversation_id, argument, WhenBusy.QUEUE)
        else:
            self._show(await self.read(conversation_id))

    async def resume(self, conversation_id: str) -> None:
        """Lets a paused queue go on. Raises LuxxError, ConnectionFailed."""
        await self._server.call("POST", f"{_path(conversation_id)}/resume", Queue)
        self.has_given = True

    async def read(self, conversation_id: str) -> Queue:
        return await self._server.call("GET", _path(conversation_id), Queue)

    async def next_run(self, conversation_id: str, after: str) -> AnswerRun | None:
        """The run of the next message that waited, after the run with this id; None: there is none."""
        query = {"subject_id": conversation_id, "page_size": "50"}
        for _ in range(NEXT_TRIES):
            # Before the runs: a message that is sent in between leaves the queue as its run begins.
            queue = await self.read(conversation_id)
            found = (await self._server.call("GET", "/runs", AnswerRuns, **query)).items
            later = [run for run in found if run.id > after and run.parent_run_id is None]
            if later:
                return min(later, key=lambda run: run.id)
            if not queue.items or queue.paused:
                self.has_given = False
                if queue.items:
                    self._show(queue)
                return None
            await asyncio.sleep(NEXT_SECONDS)
        return None

    async def _give(self, conversation_id: str, text: str, mode: WhenBusy) -> None:
        body = {**self._options(), "conversation_id": conversation_id, "content": text, "when_busy": mode}
        given = await self._server.call("POST", "/messages/stream", GivenMessage, body)
        self.has_given = True
        waits_for = "the next step" if mode is WhenBusy.STEER else "the end of the answer"
        if given.queue_id:
            self._screen.note(f"waits for {waits_for}: {text}")

    async def _drop(self, conversation_id: str, typed: str) -> None:
        items = (await self.read(conversation_id)).items
        number = number_in(typed, len(items))
        if not number:
            raise InvalidInput("name a message that waits by its number; /queue lists them")
        item = items[number - 1]
        await self._server.call("DELETE", f"{_path(conversation_id)}/{item.queue_id}", type(None))
        self._screen.note(f"dropped: {item.content}")

    def _show(self, queue: Queue) -> None:
        for number, item in enumerate(queue.items, 1):
            mark = "steers" if item.mode is WhenBusy.STEER else "waits"
            self._screen.note(f"{number:>2}. {mark}: {item.content}")
        if queue.paused:
            reason = queue.problem or "the last answer did not end by itself"
            self._screen.note(f"paused: {reason}; /queue resume goes on")
        if not queue.items:
            self._screen.note(
                "nothing waits; while it answers, a line steers the answer and /queue TEXT waits"
            )


def _path(conversation_id: str) -> str:
    return f"/conversations/{conversation_id}/queue"
