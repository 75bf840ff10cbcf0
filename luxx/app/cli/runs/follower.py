"""Follows the run of a chat, a room or a task at the terminal: its stream, questions, Ctrl-C. HTTP API only.

A lost connection is made again; nothing is repeated or lost. Exit codes: 0 completed; 1 failed or terminated;
3 paused or waiting for a person elsewhere; 130 stopped with Ctrl-C. `server_commands.py` adds 2: bad input.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import httpx
import msgspec

from luxx.app.cli.menu import Menu, QuestionPage, typed_lines
from luxx.app.cli.runs.answer import SentMessage
from luxx.app.cli.runs.questions import RunQuestions, WaitsForPerson
from luxx.app.cli.runs.transcript import EXIT_WAITS, RunFrame, RunTranscript
from luxx.app.cli.screen import RunScreen
from luxx.app.cli.server_api import ATTACH_TRIES, LONGEST_PAUSE_SECONDS, ObjectWithId, ServerApi, with_pauses
from luxx.errors import Conflict, InvalidInput, LuxxError, NotFound, Unavailable

STOP_SECONDS = 5.0
HINT_SECONDS = 1.0

_decode = msgspec.json.Decoder(RunFrame).decode


class RunFollower:
    """Follows one run to its end or pause. `menu` None: typed lines answer questions, or nobody does."""

    def __init__(
        self,
        server: ServerApi,
        screen: RunScreen,
        transcript: RunTranscript,
        menu: Menu | None = None,
        *,
        is_json: bool = False,
        approves: bool = False,
    ) -> None:
        self._server = server
        self._screen = screen
        self._subject = transcript.subject
        self._transcript = transcript
        self._is_json = is_json
        self.reads_lines = self._subject.takes_lines and not is_json and sys.stdin.isatty()
        self._questions = RunQuestions(
            server,
            screen,
            transcript,
            self,
            menu,
            is_interactive=menu is not None or self.reads_lines,
            approves=approves,
        )
        self._sent: SentMessage | None = None
        self._shown_after = 0
        self.is_left = False
        """Whether the person left the run as it was: with Ctrl-D, or a second Ctrl-C."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._typing = asyncio.Lock()
        """Keeps several lines that were typed or pasted at once in their order."""
        self._stop_task: asyncio.Task[None] | None = None

    async def follow(self, run_id: str, shown_after: int = 0) -> int:
        """Returns an exit code. `shown_after`: events up to this number are not shown again.

        Raises LuxxError if the server refuses or does not answer any more.
        """
        self._transcript.run_id, self._shown_after = run_id, shown_after
        return await self._run()

    async def send(self, message: SentMessage) -> int:
        """Sends a message and follows its run. Raises also httpx.TransportError, while it is not accepted."""
        self._sent = message
        self._screen.wait_for_answer()
        return await self._run()

    async def _run(self) -> int:
        self._follow_task = asyncio.create_task(self._follow())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        if self.reads_lines:
            loop.add_reader(sys.stdin.fileno(), self._read_input)
        try:
            await asyncio.wait([self._follow_task])
        finally:
            self._follow_task.cancel()
            loop.remove_signal_handler(signal.SIGINT)
            if self.reads_lines:
                loop.remove_reader(sys.stdin.fileno())
            for task in self._tasks:
                task.cancel()
            await self._questions.end()
        return self._outcome()

    def _outcome(self) -> int:
        self._questions.withdraw()
        self._screen.show_progress("")
        error: BaseException | None = self._questions.waiting
        if not self._follow_task.cancelled():
            error = self._follow_task.exception()
        if isinstance(error, BrokenPipeError):
            if self._subject.says_closed_output:
                with suppress(OSError):
                    goes_on = f"the {self._subject.what} goes on, see `{self._subject.again}`"
                    sys.stderr.write(f"luxx: the output was closed; {goes_on}\n")
            raise error
        self._screen.end_line()
        if isinstance(error, WaitsForPerson):
            self._screen.note(str(error))
            return EXIT_WAITS
        if isinstance(error, InvalidInput | NotFound):
            raise LuxxError(error.message, kind=error.kind) from error
        if error is not None:
            raise error
        code, notes = self._transcript.outcome(is_stopped=self._stop_task is not None)
        for text in notes:
            self._screen.note(text)
        return code

    # The stream

    async def _follow(self) -> None:
        """Reads the stream to the end of the run, over lost connections and restarts of the server."""
        transcript, sent, tries = self._transcript, self._sent, 0
        while not transcript.has_ended:
            seq_before = transcript.last_seq
            try:
                if sent is not None and sent.is_accepted and not transcript.run_id:
                    transcript.run_id = await sent.wait_for_run()
                await self._listen(sent)
            except (httpx.TransportError, Unavailable) as error:
                is_refused = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | Unavailable)
                if sent is not None and not sent.is_accepted and is_refused:
                    raise
            if sent is not None:
                sent.is_accepted = True
            tries = 0 if transcript.last_seq > seq_before else tries + 1
            if tries > ATTACH_TRIES:
                raise Unavailable(
                    f"the connection was lost and the server does not answer; the {self._subject.what} goes "
                    f"on with it, and `{self._subject.again}` follows it"
                )
            if not transcript.has_ended:
                if tries == 1 and self._subject.says_waiting:
                    self._screen.note("the connection was lost; connecting again")
                await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, 0.1 * 2**tries))

    async def _listen(self, sent: SentMessage | None) -> None:
        transcript = self._transcript
        if sent is not None and not sent.is_accepted:
            events = self._server.events("POST", "/messages/stream", sent.body)
        else:
            path = f"/runs/{transcript.run_id}/events"
            events = self._server.events("GET", path, after=transcript.last_seq)
        async with aclosing(events), aclosing(with_pauses(events, transcript.poll_delay)) as paused_events:
            async for event in paused_events:
                frame = None if event is None else self._receive(*event)
                is_new = frame is None or (frame.type == "subagent_assigned" and transcript.is_caught_up)
                if transcript.subagents and is_new:
                    await self._poll_subagent_questions()
                if not transcript.has_ended:
                    await self._questions.ask_next(is_silent=frame is None)

    def _receive(self, seq: int, data: bytes) -> RunFrame:
        transcript = self._transcript
        frame = msgspec.structs.replace(_decode(data), seq=seq)
        if self._sent is not None:
            self._sent.is_accepted = True
        is_shown = not 0 < seq <= self._shown_after
        is_state = self._subject.prints_state and frame.run is not None and not transcript.run_id
        if self._is_json and is_shown and (seq > transcript.last_seq or is_state):
            sys.stdout.write(f'{{"seq":{seq},{data[1:].decode()}\n' if seq else f"{data.decode()}\n")
            sys.stdout.flush()
        pieces = transcript.receive(frame)
        if not self._is_json:
            for piece in pieces if is_shown else []:
                self._screen.show(piece)
            if not transcript.has_ended:
                self._screen.show_progress(transcript.progress())
        return frame

    async def _poll_subagent_questions(self) -> None:
        """Adds the questions of subagents, which are in the event logs of their own runs."""
        page = await self._server.call("GET", "/questions", QuestionPage, status="open", page_size="100")
        for listed in reversed(page.items):
            if listed.subject_id == self._subject.id and listed.run_id != self._transcript.run_id:
                self._transcript.add_subagent_question(listed)

    # Typed lines

    def _read_input(self) -> None:
        """A line was typed, or Ctrl-D, which leaves the run as it is."""
        lines = typed_lines()
        if not lines:
            self._leave()
        for line in lines:
            self.start(self._take_line(line))

    async def _take_line(self, line: str) -> None:
        """Answers the question in the menu, asking again if the line is no answer; else says the line."""
        with suppress(BrokenPipeError):  # The next event meets it too, and ends the command.
            async with self._typing:
                request = self._transcript.request_of(line)
                if not await self._questions.take_line(line) and request is not None:
                    await self.attempt(self._server.call("POST", request[0], ObjectWithId, request[1]))

    @property
    def is_ending(self) -> bool:
        """Whether the person has left the run or stops it, so that nothing more is asked."""
        return self.is_left or self._stop_task is not None

    def give_up(self) -> None:
        """Ends following the run."""
        self._follow_task.cancel()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def attempt(self, request: Awaitable[object]) -> None:
        """Sends a request; an error is noted."""
        try:
            await request
        except (LuxxError, httpx.TransportError) as error:
            reason = error.message if isinstance(error, LuxxError) else "the server does not answer"
            self._screen.note(f"error: {reason}")

    # Stopping

    def interrupt(self) -> None:
        """Ctrl-C: stops the run; again: leaves at once."""
        if self._stop_task is None:
            self._stop_task = self.start(self._stop())
        else:
            self._leave()

    def _leave(self) -> None:
        self.is_left = True
        self._follow_task.cancel()

    async def _stop(self) -> None:
        """Stops the run and waits up to STOP_SECONDS for the end of the stream."""
        self._questions.withdraw()
        hint = asyncio.get_running_loop().call_later(HINT_SECONDS, self._say_that_it_waits)
        try:
            await asyncio.wait([self.start(self.attempt(self._stop_run()))], timeout=STOP_SECONDS)
        finally:
            hint.cancel()
        self._follow_task.cancel()

    def _say_that_it_waits(self) -> None:
        if self._subject.says_waiting:
            self._screen.note("waiting for the end; Ctrl-C again leaves")

    async def _stop_run(self) -> None:
        run_id = self._transcript.run_id
        if not run_id and self._sent is not None:
            run_id = await self._sent.run_id()
        if run_id:
            path = self._subject.stop_path or f"/runs/{run_id}/cancel"
            with suppress(Conflict):  # It has just ended.
                await self._server.call("POST", path, ObjectWithId)
        await asyncio.wait([self._follow_task])
