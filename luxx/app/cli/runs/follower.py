"""Follows the run of a room or a task at the terminal: its stream, questions, Ctrl-C. The HTTP API only.

Exit codes: 0 completed; 1 failed or terminated; 3 paused, or waiting for a person who is not at this
terminal; 130 stopped with Ctrl-C. `server_commands.py` adds 2 for input that cannot be used.
"""

import asyncio
import os
import signal
import sys
from contextlib import aclosing, suppress
from dataclasses import dataclass

import httpx
import msgspec

from luxx.app.cli.menu import (
    CHOICE,
    PROMPT,
    FrameQuestion,
    ListedQuestion,
    parse_answer,
    question_lines,
    wanted_answer,
)
from luxx.app.cli.runs.transcript import Choice, FollowedRun, RunFrame, RunTranscript
from luxx.app.cli.screen import Screen
from luxx.app.cli.server_api import (
    ATTACH_TRIES,
    LONGEST_PAUSE_SECONDS,
    ObjectWithId,
    ServerApi,
    with_pauses,
)
from luxx.errors import Conflict, InvalidInput, LuxxError, NotFound, Unavailable
from luxx.wire.run import RunStatus

EXIT_FAILED = 1
EXIT_WAITS = 3
EXIT_STOPPED = 130
STOP_SECONDS = 5.0
READ_BYTES = 65536

_decode = msgspec.json.Decoder(RunFrame).decode


class FollowedQuestions(msgspec.Struct, frozen=True, kw_only=True):
    items: list[ListedQuestion]


@dataclass(frozen=True, kw_only=True)
class FollowedSubject:
    """The room or task whose run is followed.

    `stop_path` pauses it. `again` is the command that follows or resumes it.
    """

    what: str
    id: str
    stop_path: str
    again: str


class WaitsForPerson(Exception):
    """A question is open that nobody at this terminal can answer. The message says how to answer it."""


class RunFollower:
    """Follows one run to its end or pause. `shown_after`: events up to this number are not shown again."""

    def __init__(
        self,
        server: ServerApi,
        screen: Screen,
        subject: FollowedSubject,
        transcript: RunTranscript,
        *,
        is_json: bool = False,
        approves: bool = False,
    ) -> None:
        self._server = server
        self._screen = screen
        self._subject = subject
        self._transcript = transcript
        self._is_json = is_json
        self._approves = approves
        self.is_interactive = not is_json and sys.stdin.isatty()
        self._asked: FrameQuestion | None = None
        self._choices: dict[str, Choice] = {}
        self._done: set[str] = set()
        """The questions that were answered here."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._typing = asyncio.Lock()
        """Keeps several lines that were typed or pasted at once in their order."""
        self._is_left = False
        self._run_id = ""

    async def follow(self, run_id: str, shown_after: int = 0) -> int:
        """Returns an exit code. Raises LuxxError if the server refuses or does not answer any more."""
        self._run_id = run_id
        follow_task = asyncio.create_task(self._follow(run_id, shown_after))
        stops: list[asyncio.Task[None]] = []

        def interrupt() -> None:
            if stops:
                follow_task.cancel()
            else:
                stops.append(asyncio.create_task(self._stop(follow_task)))

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupt)
        if self.is_interactive:
            loop.add_reader(sys.stdin.fileno(), self._read_input, follow_task)
        try:
            await asyncio.wait([follow_task])
        finally:
            follow_task.cancel()
            loop.remove_signal_handler(signal.SIGINT)
            if self.is_interactive:
                loop.remove_reader(sys.stdin.fileno())
            for task in (*self._tasks, *stops):
                task.cancel()
        return self._outcome(follow_task, is_stopped=bool(stops))

    def _outcome(self, follow_task: asyncio.Task[None], *, is_stopped: bool) -> int:
        self._withdraw()
        self._screen.show_progress("")
        what, again = self._subject.what, self._subject.again
        if not follow_task.cancelled() and (error := follow_task.exception()) is not None:
            if isinstance(error, BrokenPipeError):
                with suppress(OSError):
                    sys.stderr.write(f"luxx: the output was closed; the {what} goes on, see `{again}`\n")
            elif isinstance(error, WaitsForPerson):
                self._screen.note(f"the {what} waits for a person: {error}; `{again}` follows it again")
                return EXIT_WAITS
            elif isinstance(error, InvalidInput | NotFound):
                raise LuxxError(error.message, kind=error.kind) from error
            raise error
        self._screen.end_line()
        match self._transcript.status if self._transcript.has_ended else "":
            case RunStatus.COMPLETED.value:
                return 0
            case RunStatus.PAUSED.value:
                self._screen.note(f"paused; `{again}` resumes the {what}")
                return EXIT_STOPPED if is_stopped else EXIT_WAITS
            case "":
                self._screen.note(f"left; the {what} goes on, `{again}` follows it")
                return EXIT_STOPPED if is_stopped else EXIT_WAITS
            case _:
                return EXIT_FAILED

    async def _follow(self, run_id: str, shown_after: int) -> None:
        """Reads the stream to the end of the run, over lost connections and restarts of the server."""
        transcript, tries = self._transcript, 0
        while not transcript.has_ended:
            seq_before = transcript.last_seq
            reason: Exception | None = None
            try:
                await self._listen(run_id, shown_after)
            except (httpx.TransportError, Unavailable) as error:
                reason = error
            tries = 0 if transcript.last_seq > seq_before else tries + 1
            if tries > ATTACH_TRIES:
                raise Unavailable(
                    f"the connection was lost and the server does not answer; the {self._subject.what} goes "
                    f"on with it, and `{self._subject.again}` follows it"
                ) from reason
            if not transcript.has_ended:
                await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, 0.1 * 2**tries))

    async def _listen(self, run_id: str, shown_after: int) -> None:
        transcript = self._transcript
        events = self._server.events("GET", f"/runs/{run_id}/events", after=transcript.last_seq)
        async with aclosing(events), aclosing(with_pauses(events, transcript.poll_delay)) as paused_events:
            async for event in paused_events:
                if event is not None:
                    self._receive(*event, is_shown=not 0 < event[0] <= shown_after)
                if transcript.subagents and event is None:
                    await self._poll_subagent_questions(run_id)
                await self._ask_next(is_silent=event is None)

    def _receive(self, seq: int, data: bytes, *, is_shown: bool) -> None:
        is_new = seq > self._transcript.last_seq
        frame = msgspec.structs.replace(_decode(data), seq=seq)
        pieces = self._transcript.receive(frame)
        if self._is_json:
            if is_new and is_shown:
                sys.stdout.write(f'{{"seq":{seq},{data[1:].decode()}\n')
                sys.stdout.flush()
            return
        for piece in pieces if is_shown else []:
            self._screen.show(piece)
        if not self._transcript.has_ended:
            self._screen.show_progress(self._transcript.progress())

    async def _poll_subagent_questions(self, run_id: str) -> None:
        """Adds the questions of subagents, which are in the event logs of their own runs."""
        page = await self._server.call("GET", "/questions", FollowedQuestions, status="open", page_size="100")
        for listed in reversed(page.items):
            if listed.subject_id == self._subject.id and listed.run_id != run_id:
                self._transcript.add_question(listed, "a subagent", "")

    # Questions and choices

    async def _ask_next(self, *, is_silent: bool) -> None:
        """Withdraws what was answered elsewhere, then asks what is open. Raises WaitsForPerson."""
        choices = {choice.question.question_id: choice for choice in self._transcript.choices()}
        open_ids = self._transcript.questions.keys() | choices.keys()
        if self._asked is not None and self._asked.question_id not in open_ids:
            self._withdraw()
        # The rest of the log may have the answer.
        if self._asked is not None or self._is_left or not self._transcript.is_caught_up:
            return
        self._choices = choices
        asked = [choice.question for choice in choices.values() if is_silent or not choice.is_settled]
        questions = self._transcript.questions
        if self._transcript.has_old_questions and not (is_silent and await self._is_waiting()):
            questions = {}  # They may have an answer that is not in the log yet.
        waiting = [*questions.values(), *asked]
        for question in (one for one in waiting if one.question_id not in self._done):
            if self._approves and question.kind == CHOICE and question.options[0].label == "approve":
                await self._send(question, question.options[0].label)
            elif self.is_interactive:
                self._asked = question
                self._screen.ask(question_lines(question), PROMPT)
                return
            elif question.required:
                raise WaitsForPerson(f"{question.prompt} {self._how_to_answer(question)}")
            else:
                # Its recommended option counts when nobody answers in time.
                self._done.add(question.question_id)
                for line in question_lines(question):
                    self._screen.note(line)

    async def _is_waiting(self) -> bool:
        """Whether the run waits for an answer."""
        if self.is_interactive:
            return True  # What was answered is withdrawn with its event.
        run = await self._server.call("GET", f"/runs/{self._run_id}", FollowedRun)
        return run.status == RunStatus.WAITING

    def _how_to_answer(self, question: FrameQuestion) -> str:
        choice = self._choices.get(question.question_id)
        if choice is not None:
            return f"(POST {choice.requests[0][0]})"
        return f"(POST /runs/{question.run_id}/questions/{question.question_id}/answer)"

    def _withdraw(self) -> None:
        if self._asked is not None:
            self._asked = None
            sys.stderr.write("\n")
            self._screen.release()

    def _read_input(self, follow_task: asyncio.Task[None]) -> None:
        """A line was typed, or Ctrl-D, which leaves the run as it is."""
        try:
            data = os.read(sys.stdin.fileno(), READ_BYTES)
        except OSError:  # The terminal is gone.
            data = b""
        if not data:
            self._is_left = True
            follow_task.cancel()
            return
        for line in data.decode("utf-8", "replace").splitlines():
            task = asyncio.create_task(self._take_line(line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take_line(self, line: str) -> None:
        try:
            async with self._typing:
                question = self._asked
                if question is not None:
                    await self._answer(question, line)
                elif (request := self._transcript.request_of(line)) is not None:
                    await self._server.call("POST", request[0], ObjectWithId, request[1])
        except (LuxxError, httpx.TransportError) as error:
            self._screen.note(f"error: {_reason_of(error)}")
        except BrokenPipeError:
            pass  # The next event meets it too, and ends the command.

    async def _answer(self, question: FrameQuestion, line: str) -> None:
        """Sends an answer; asks again if the line is none, or the server refuses it."""
        answer = parse_answer(question, line)
        if answer is None:
            sys.stderr.write(f"  {wanted_answer(question)}\n")
            self._screen.prompt(PROMPT)
            return
        # Before the request: the stream may show the next question sooner than the response comes.
        self._asked = None
        self._screen.release()
        try:
            await self._send(question, answer)
        except (LuxxError, httpx.TransportError) as error:
            self._screen.note(f"error: {_reason_of(error)}")
        await self._ask_next(is_silent=False)

    async def _send(self, question: FrameQuestion, answer: str | list[str]) -> None:
        """Sends the answer to a question or the request of a choice. What was decided elsewhere is noted."""
        choice = self._choices.get(question.question_id)
        path: str = f"/runs/{question.run_id}/questions/{question.question_id}/answer"
        body: object = {"answer": answer}
        if choice is not None:
            at = [option.label for option in question.options].index(str(answer))
            path, body = choice.requests[at]
        self._done.add(question.question_id)
        try:
            await self._server.call("POST", path, ObjectWithId, body)
        except Conflict as error:
            self._screen.note(f"error: {error.message}")
            if choice is not None and self.is_interactive:
                self._done.discard(question.question_id)
        except (LuxxError, httpx.TransportError):
            self._done.discard(question.question_id)
            raise

    async def _stop(self, follow_task: asyncio.Task[None]) -> None:
        """Pauses the run and waits up to STOP_SECONDS for the end of the stream."""
        self._withdraw()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                try:
                    with suppress(Conflict):  # The run has just ended.
                        await self._server.call("POST", self._subject.stop_path, ObjectWithId)
                    await asyncio.wait([follow_task])
                except (LuxxError, httpx.TransportError) as error:
                    self._screen.note(f"error: {_reason_of(error)}")
        follow_task.cancel()


def _reason_of(error: LuxxError | httpx.TransportError) -> str:
    return error.message if isinstance(error, LuxxError) else "the server does not answer"
