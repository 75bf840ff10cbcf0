"""The questions of a run at the terminal: asks what is open, one after the other, and sends the answers."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol
from urllib.parse import urljoin

from msgspec.structs import replace

from luxx.app.cli.mcp_sign_in import begin_sign_in
from luxx.app.cli.menu import (
    CHOICE,
    PROMPT,
    Choice,
    FrameQuestion,
    Interrupted,
    Menu,
    Unanswered,
    parse_answer,
    question_lines,
    wanted_answer,
)
from luxx.app.cli.runs.elicitation import TypedForm
from luxx.app.cli.runs.transcript import FollowedRun, RunTranscript
from luxx.app.cli.screen import Piece, RunScreen, note, write_below
from luxx.app.cli.server_api import ObjectWithId, ServerApi
from luxx.errors import Conflict, LuxxError
from luxx.wire.run import ElicitationChoice, QuestionKind, RunStatus


class WaitsForPerson(Exception):
    """A question is open that nobody at this terminal can answer. The message says how to answer it."""


class Follower(Protocol):
    """What the questions need of `RunFollower`."""

    @property
    def is_ending(self) -> bool: ...

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...
    async def attempt(self, request: Awaitable[object]) -> None: ...
    def interrupt(self) -> None: ...
    def give_up(self) -> None: ...


class RunQuestions:
    """Asks with a menu or, without one, by typed lines if the terminal is interactive."""

    def __init__(
        self,
        server: ServerApi,
        screen: RunScreen,
        transcript: RunTranscript,
        follower: Follower,
        menu: Menu | None,
        *,
        is_interactive: bool,
        approves: bool,
    ) -> None:
        self._server = server
        self._screen = screen
        self._subject = transcript.subject
        self._transcript = transcript
        self._follower = follower
        self._menu = menu
        self._is_interactive = is_interactive
        self._approves = approves
        self._asked: FrameQuestion | None = None
        """The question in the menu."""
        self._choices: dict[str, Choice] = {}
        self._done: set[str] = set()
        """The questions that were answered here."""
        self._form: TypedForm | None = None
        """The values that are typed for an MCP server."""
        self._menu_task: asyncio.Task[None] | None = None
        self.waiting: WaitsForPerson | None = None

    async def end(self) -> None:
        """Waits for the menu to close."""
        if self._menu_task is not None:
            await asyncio.wait([self._menu_task])

    async def take_line(self, line: str) -> bool:
        """Answers the question in the menu, asking again if the line is no answer; False: none is asked."""
        question = self._asked
        if question is None:
            return False
        if (answer := parse_answer(question, line)) is None:
            write_below(f"  {wanted_answer(question)}\n{PROMPT}")
        else:
            # Before the request: the next question may come sooner than its response.
            self._close_menu()
            await self._answer(question, answer)
        return True

    async def ask_next(self, *, is_silent: bool) -> None:
        """Withdraws what was answered elsewhere, then asks what is open. Raises WaitsForPerson."""
        transcript = self._transcript
        choices = {choice.question.question_id: choice for choice in transcript.choices()}
        open_ids = transcript.questions.keys() | choices.keys()
        if self._asked is not None and self._asked.question_id not in open_ids:
            self._form = None
            self.withdraw()
        # The rest of the log may have the answer.
        if self._asked is not None or self._follower.is_ending or not transcript.is_caught_up:
            return
        self._choices = choices
        asked = [choice.question for choice in choices.values() if is_silent or not choice.is_settled]
        questions = transcript.questions
        if transcript.has_old_questions and not (is_silent and await self._is_waiting()):
            questions = {}  # They may have an answer that is not in the log yet.
        waiting = [*questions.values(), *asked]
        for question in (one for one in waiting if one.question_id not in self._done):
            if self._approves and question.kind == CHOICE and question.options[0].label == "approve":
                await self._send(question, question.options[0].label)
                continue
            if question.kind == QuestionKind.SIGN_IN and (question := await self._begun(question)) is None:
                await self.ask_next(is_silent=is_silent)
                return
            lines = [note(line, self._subject.question_color) for line in question_lines(question)]
            if self._is_interactive:
                self._open_menu(question, lines)
                return
            for line in lines if self._subject.shows_all_questions or not question.required else []:
                self._screen.show(line)
            if question.required:
                raise self._waits(question)
            # Its recommended option counts when nobody answers in time.
            self._done.add(question.question_id)

    async def _begun(self, question: FrameQuestion) -> FrameQuestion | None:
        """The question with the address of a sign-in that begins now, because its own is not one; None if it
        was answered meanwhile."""
        address = urljoin(self._server.url, question.authorization_url)
        self._asked = question  # Nobody else asks it meanwhile.
        try:
            address = await begin_sign_in(self._server, question.server) or address
        except LuxxError as error:
            self._screen.note(f"error: {error.message}")
        finally:
            self._asked = None
        if question.question_id not in self._transcript.questions:
            return None
        return replace(question, authorization_url=address)

    async def _is_waiting(self) -> bool:
        """Whether the run waits for an answer."""
        if self._is_interactive:
            return True  # What was answered is withdrawn with its event.
        run = await self._server.call("GET", f"/runs/{self._transcript.run_id}", FollowedRun)
        return run.status == RunStatus.WAITING

    def _waits(self, question: FrameQuestion) -> WaitsForPerson:
        choice = self._choices.get(question.question_id)
        path = self._transcript.answer_path(question) if choice is None else choice.requests[0][0]
        return WaitsForPerson(self._transcript.waiting(question, path))

    def _open_menu(self, question: FrameQuestion, lines: list[Piece]) -> None:
        self._asked = question
        self._screen.ask(lines)
        if self._menu is not None:
            self._screen.end_line()
            self._menu_task = self._follower.start(self._ask(self._menu, question))
        else:
            write_below(PROMPT)

    async def _ask(self, menu: Menu, question: FrameQuestion) -> None:
        try:
            answer = await menu.answer(question)
        except Interrupted:
            self._follower.interrupt()
            return
        except Unanswered:
            self.waiting = self._waits(question)
            self._follower.give_up()
            return
        except asyncio.CancelledError:
            if question.question_id not in self._transcript.questions:
                self._screen.note("the question was answered elsewhere")
            raise
        finally:
            self._close_menu()
        await self._answer(question, answer)

    def withdraw(self) -> None:
        if self._asked is not None and self._menu_task is not None:
            self._menu_task.cancel()
        elif self._asked is not None:
            write_below("\n")
            self._close_menu()

    def _close_menu(self) -> None:
        self._asked = None
        self._screen.release()

    async def _answer(self, question: FrameQuestion, answer: str | list[str]) -> None:
        """Sends an answer; it is asked for again if the server does not take it."""
        values = None
        if self._form is not None:
            if problem := self._form.take(answer):
                self._screen.note(f"error: {problem}")
        elif question.requested_schema and answer == ElicitationChoice.ACCEPT:
            self._form = TypedForm(question)
        if self._form is not None:
            if (field := self._form.next_question) is not None:
                self._open_menu(
                    field, [note(one, self._subject.question_color) for one in question_lines(field)]
                )
                return
            question, answer, values = self._form.question, ElicitationChoice.ACCEPT.value, self._form.values
            self._form = None
        await self._follower.attempt(self._send(question, answer, values))
        await self.ask_next(is_silent=False)

    async def _send(
        self, question: FrameQuestion, answer: str | list[str], values: dict[str, Any] | None = None
    ) -> None:
        """Sends the answer to a question or the request of a choice. What was decided elsewhere is noted."""
        choice = self._choices.get(question.question_id)
        path: str = self._transcript.answer_path(question)
        body: object = {"answer": answer} if values is None else {"answer": answer, "arguments": values}
        if choice is not None:
            at = [option.label for option in question.options].index(str(answer))
            path, body = choice.requests[at]
        self._done.add(question.question_id)
        try:
            await self._server.call("POST", path, ObjectWithId, body)
        except Conflict as error:
            self._screen.note(f"error: {error.message}")
            if choice is not None and self._is_interactive:
                self._done.discard(question.question_id)
        except Exception:
            self._done.discard(question.question_id)
            raise
