"""Sends a message and follows its answer, or follows one that is written already, with server-sent events.

It knows only the HTTP API. A lost connection is made again; nothing is repeated or lost. `session.py` has the
conversation, `transcript.py` what is shown.
"""

import asyncio
import signal
import sys
from contextlib import aclosing, suppress
from typing import Any, Protocol

import httpx
import msgspec

from luxx.app.cli.chat.transcript import StreamFrame, Transcript
from luxx.app.cli.menu import FrameQuestion, ListedQuestion, question_lines
from luxx.app.cli.screen import FINISH_NOTES, Piece, note
from luxx.app.cli.server_api import (
    ATTACH_TRIES,
    LONGEST_PAUSE_SECONDS,
    ObjectWithId,
    ServerApi,
    with_pauses,
)
from luxx.errors import LuxxError, Unavailable
from luxx.wire.event import DoneStatus

EXIT_FAILED = 1
EXIT_WAITS = 3
EXIT_STOPPED = 130
STOP_SECONDS = 5.0
HINT_SECONDS = 1.0
POLL_TRIES = 5
POLL_SECONDS = 0.4
QUESTION_COLOR = "#d7af5f"

_decode = msgspec.json.Decoder(StreamFrame).decode


class QuestionPage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[ListedQuestion]


class ConversationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a conversation's execution status that the client needs."""

    run: ObjectWithId | None


class Unanswered(Exception):
    """The person at the menu typed Ctrl-D."""


class Interrupted(Exception):
    """The person typed Ctrl-C."""


class WaitsForAnswer(LuxxError):
    """The run waits for an answer that nobody gives here. The message says how to give it."""


class ChatScreen(Protocol):
    """Where an answer is shown."""

    def show(self, piece: Piece) -> None: ...
    def note(self, text: str) -> None: ...
    def user_message(self, text: str) -> None: ...
    def wait_for_answer(self) -> None: ...
    def end_line(self) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...


class Menu(Protocol):
    """Asks the person at the terminal."""

    async def answer(self, question: FrameQuestion) -> str | list[str]:
        """Raises Unanswered, Interrupted."""
        ...


class AnswerFollower:
    """One answer. `menu` None: nobody is there to be asked."""

    def __init__(
        self,
        server: ServerApi,
        screen: ChatScreen,
        menu: Menu | None,
        conversation_id: str,
        *,
        is_json: bool = False,
    ) -> None:
        self._server = server
        self._screen = screen
        self._menu = menu
        self._conversation_id = conversation_id
        self._is_json = is_json
        self.transcript = Transcript()
        self.is_left = False
        """Whether the person left with a second Ctrl-C."""
        self.is_accepted = False
        """Whether the server has the message."""
        self._run_before = ""
        """The newest run of the conversation before the message, to recognize a newer one."""
        self._asked = ""
        """The id of the question that the menu waits for; empty once it is answered here."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_task: asyncio.Task[None] | None = None
        self._menu_task: asyncio.Task[None] | None = None
        self._menu_error: Exception | None = None
        self._follow_task: asyncio.Task[None] | None = None

    async def send(self, body: dict[str, Any], *, is_new: bool) -> int:
        """Returns an exit code. `is_new`: the conversation has no run yet.

        Raises LuxxError if the server did not accept the message, WaitsForAnswer.
        """
        if not is_new:
            self._run_before = await self._newest_run()
        self._screen.wait_for_answer()
        return await self._run({"conversation_id": self._conversation_id, **body})

    async def attach(self, run_id: str) -> int:
        """Shows an answer that is being written from its beginning. Returns and raises like `send`."""
        self.transcript.run_id = run_id
        self.is_accepted = True
        return await self._run(None)

    async def _run(self, body: dict[str, Any] | None) -> int:
        self._follow_task = asyncio.create_task(self._follow(body))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            await asyncio.wait([self._follow_task])
        finally:
            self._follow_task.cancel()
            loop.remove_signal_handler(signal.SIGINT)
            for task in (*self._tasks, self._stop_task, self._menu_task):
                if task is not None:
                    task.cancel()
            if self._menu_task is not None:
                await asyncio.wait([self._menu_task])
            self._screen.end_line()
        if self._menu_error is not None:
            raise self._menu_error
        if not self._follow_task.cancelled():
            self._follow_task.result()
        return self._outcome()

    def _outcome(self) -> int:
        transcript, screen = self.transcript, self._screen
        if transcript.status == DoneStatus.FAILED:
            screen.note(f"error: {transcript.error or 'the answer failed'}")
            return EXIT_FAILED
        if self._stop_task is not None or transcript.status == DoneStatus.STOPPED:
            screen.note("stopped")
            return EXIT_STOPPED
        if transcript.status == DoneStatus.MAX_ITERATIONS_REACHED:
            screen.note("the model reached its tool call limit and was asked to finish")
        if transcript.finish in FINISH_NOTES:
            screen.note(f"the answer {FINISH_NOTES[transcript.finish]}")
        return 0

    # The stream

    async def _follow(self, body: dict[str, Any] | None) -> None:
        """Sends the message and reads its stream to the end. Resumes the stream after a lost connection."""
        transcript, tries = self.transcript, 0
        while not transcript.is_over:
            seq_before = transcript.last_seq
            try:
                if self.is_accepted and not transcript.run_id:
                    transcript.run_id = await self._find_sent_run()
                await self._listen(None if self.is_accepted else body)
            except httpx.TransportError as error:
                if not self.is_accepted and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise
            except Unavailable:
                if not self.is_accepted:
                    raise
            self.is_accepted = True
            tries = 0 if transcript.last_seq > seq_before else tries + 1
            if tries > ATTACH_TRIES:
                raise Unavailable(
                    "the connection was lost and the server does not answer; the answer goes on with it, and "
                    f"`luxx chat --conversation {self._conversation_id}` follows it"
                )
            if not transcript.is_over:
                if tries == 1:
                    self._screen.note("the connection was lost; connecting again")
                await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, 0.1 * 2**tries))

    async def _listen(self, body: dict[str, Any] | None) -> None:
        transcript = self.transcript
        if body is not None:
            events = self._server.events("POST", "/messages/stream", body)
        else:
            path = f"/runs/{transcript.run_id}/events"
            events = self._server.events("GET", path, after=transcript.last_seq)
        async with aclosing(events), aclosing(with_pauses(events, transcript.poll_delay)) as paused_events:
            async for event in paused_events:
                frame = None if event is None else self._receive(*event)
                if transcript.subagents and (frame is None or frame.type == "subagent_assigned"):
                    await self._poll_subagent_questions()
                if not transcript.is_over:
                    self._update_menu()

    def _receive(self, seq: int, data: bytes) -> StreamFrame:
        frame = msgspec.structs.replace(_decode(data), seq=seq)
        self.is_accepted = True
        is_first_state = frame.run is not None and not self.transcript.run_id
        if self._is_json and (seq > self.transcript.last_seq or is_first_state):
            sys.stdout.write(f'{{"seq":{seq},{data[1:].decode()}\n' if seq else f"{data.decode()}\n")
            sys.stdout.flush()
        pieces = self.transcript.receive(frame)
        for piece in [] if self._is_json else pieces:
            self._screen.show(piece)
        return frame

    async def _poll_subagent_questions(self) -> None:
        """Adds the questions of subagents, which are in the event logs of their own runs."""
        page = await self._server.call("GET", "/questions", QuestionPage, status="open", page_size="100")
        for listed in reversed(page.items):
            if listed.subject_id == self._conversation_id and listed.run_id != self.transcript.run_id:
                self.transcript.add_question(listed.as_frame())

    # Questions

    def _update_menu(self) -> None:
        """Withdraws what was answered elsewhere, then asks what is open. Raises WaitsForAnswer."""
        questions = self.transcript.questions
        if self._menu_task is not None and not self._menu_task.done():
            if self._asked and self._asked not in questions:
                self._menu_task.cancel()
            return
        # The rest of the log may have the answer.
        if not questions or not self.transcript.is_caught_up or self._stop_task is not None:
            return
        question = next(iter(questions.values()))
        for line in question_lines(question):
            self._screen.show(note(line, QUESTION_COLOR))
        if self._menu is not None:
            self._asked = question.question_id
            self._menu_task = asyncio.create_task(self._ask(self._menu, question))
        elif question.required:
            raise self._waits(question)
        else:
            del questions[question.question_id]  # Its recommended option counts when nobody answers in time.

    def _waits(self, question: FrameQuestion) -> WaitsForAnswer:
        return WaitsForAnswer(
            f"the answer waits for a person; `luxx chat --conversation {self._conversation_id}` at a "
            f"terminal asks you, or give it with POST {self._answer_path(question)}"
        )

    def _answer_path(self, question: FrameQuestion) -> str:
        run_id = question.run_id or self.transcript.run_id
        return f"/runs/{run_id}/questions/{question.question_id}/answer"

    async def _ask(self, menu: Menu, question: FrameQuestion) -> None:
        self._screen.hold()
        try:
            answer = await menu.answer(question)
        except Interrupted:
            self._interrupt()
            return
        except Unanswered:
            self._fail(self._waits(question))
            return
        except asyncio.CancelledError:
            if question.question_id not in self.transcript.questions:
                self._screen.note("the question was answered elsewhere")
            raise
        finally:
            self._screen.release()
        # From now on no event withdraws the question: that would cancel the request with the answer.
        self._asked = ""
        self.transcript.questions.pop(question.question_id, None)
        await self._send_answer(question, answer)
        task = asyncio.create_task(self._ask_next())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_answer(self, question: FrameQuestion, answer: str | list[str]) -> None:
        """Sends the answer; the question is asked again if the server does not take it."""
        try:
            await self._server.call("POST", self._answer_path(question), ObjectWithId, {"answer": answer})
        except httpx.TransportError:
            self._screen.note("error: the server does not answer")
            self.transcript.questions[question.question_id] = question
        except LuxxError as error:
            self._screen.note(f"error: {error.message}")
            if error.kind == "invalid_input":
                self.transcript.questions[question.question_id] = question

    async def _ask_next(self) -> None:
        """Asks the next question although no event comes."""
        try:
            self._update_menu()
        except WaitsForAnswer as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._menu_error = error
        if self._follow_task is not None:
            self._follow_task.cancel()

    # Stopping

    def _interrupt(self) -> None:
        """Ctrl-C: cancels the run; again: leaves at once."""
        if self._stop_task is None:
            self._stop_task = asyncio.create_task(self._stop())
        elif self._follow_task is not None:
            self.is_left = True
            self._follow_task.cancel()

    async def _stop(self) -> None:
        """Cancels the run and waits up to STOP_SECONDS for the end of the stream."""
        assert self._follow_task is not None
        if self._menu_task is not None:
            self._menu_task.cancel()
        loop = asyncio.get_running_loop()
        hint = loop.call_later(HINT_SECONDS, self._screen.note, "waiting for the end; Ctrl-C again leaves")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    with suppress(LuxxError, httpx.TransportError):
                        run_id = self.transcript.run_id or await self._newest_run()
                        if run_id != self._run_before:
                            await self._server.call("POST", f"/runs/{run_id}/cancel", ObjectWithId)
                    await asyncio.wait([self._follow_task])
        finally:
            hint.cancel()
        self._follow_task.cancel()

    async def _find_sent_run(self) -> str:
        """The run of a message whose stream broke before its first frame; polls until the run exists."""
        for _ in range(POLL_TRIES):
            newest = await self._newest_run()
            if newest != self._run_before:
                return newest
            await asyncio.sleep(POLL_SECONDS)
        self.is_accepted = False
        raise LuxxError("the connection was lost before the server accepted the message; send it again")

    async def _newest_run(self) -> str:
        """The id of the conversation's newest run, subagents' runs excluded, or an empty string."""
        path = f"/conversations/{self._conversation_id}/execution-status"
        status = await self._server.call("GET", path, ConversationStatus)
        return status.run.id if status.run is not None else ""
