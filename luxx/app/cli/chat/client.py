"""`luxx chat`: a terminal client that uses only the HTTP API, with server-sent events.

It prints the answer to stdout and everything else to stderr. Exit codes: 0 answered; 1 refused, unreachable
or the answer failed (it prints the reason); 2 wrong options; 130 stopped with Ctrl-C (with one message only).
"""

import argparse
import asyncio
import signal
import sys
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from luxx.app.cli.chat.server_api import (
    ATTACH_TRIES,
    LONGEST_PAUSE_SECONDS,
    ObjectWithId,
    ServerApi,
    add_server_options,
    ask,
    connect,
    with_pauses,
)
from luxx.app.cli.chat.transcript import (
    FrameQuestion,
    ListedQuestion,
    Transcript,
    Unanswered,
    read_answer,
)
from luxx.app.cli.screen import Screen
from luxx.errors import InvalidInput, LuxxError, Unavailable
from luxx.wire.event import DoneStatus

EXIT_STOPPED = 130
STOP_SECONDS = 5.0
POLL_TRIES = 5
POLL_SECONDS = 0.4


class QuestionPage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[ListedQuestion]


class ConversationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a conversation's execution status that the client needs."""

    run: ObjectWithId | None


@dataclass(slots=True, eq=False)
class ChatClient:
    """One conversation. `send` sends a message and shows its answer while it arrives."""

    _server: ServerApi
    _screen: Screen
    _conversation_id: str
    _extras: dict[str, Any]
    _last_run: str = ""

    async def open(self) -> None:
        """Reads the id of the newest run, to recognize a newer one."""
        self._last_run = await self._newest_run()

    async def send(self, text: str) -> int:
        """Returns an exit code. Raises LuxxError if the server did not accept the message."""
        transcript = Transcript()
        follow_task = asyncio.create_task(self._follow(text, transcript))
        stop_tasks: list[asyncio.Task[None]] = []

        def interrupt() -> None:
            if stop_tasks:
                follow_task.cancel()
            else:
                stop_tasks.append(asyncio.create_task(self._stop(transcript, follow_task)))

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            await asyncio.wait([follow_task])
        finally:
            follow_task.cancel()
            loop.remove_signal_handler(signal.SIGINT)
            self._screen.end_line()
            self._last_run = transcript.run_id or self._last_run
        if not follow_task.cancelled():
            follow_task.result()
        return self._outcome(transcript, is_stopped=bool(stop_tasks))

    def _outcome(self, transcript: Transcript, *, is_stopped: bool) -> int:
        if transcript.status == DoneStatus.FAILED:
            self._screen.note(f"error: {transcript.error or 'the answer failed'}")
            return 1
        if is_stopped or transcript.status == DoneStatus.STOPPED:
            self._screen.note("stopped")
            return EXIT_STOPPED
        if transcript.status == DoneStatus.MAX_ITERATIONS_REACHED:
            self._screen.note("the model reached its tool call limit and was asked to finish")
        return 0

    async def _follow(self, text: str, transcript: Transcript) -> None:
        """Sends the message and reads its stream to the end. Resumes the stream after a lost connection."""
        body = {"conversation_id": self._conversation_id, "content": text, **self._extras}
        tries = 0
        is_sent = False
        while not transcript.is_over:
            seq_before = transcript.last_seq
            try:
                if is_sent and not transcript.run_id:
                    transcript.run_id = await self._find_sent_run()
                await self._listen(transcript, None if is_sent else body)
            except httpx.TransportError as error:
                if not is_sent and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise
            except Unavailable:
                if not is_sent:
                    raise
            is_sent = True
            tries = 0 if transcript.last_seq > seq_before else tries + 1
            if tries > ATTACH_TRIES:
                raise Unavailable("the connection was lost and the server does not answer; the run continues")
            if not transcript.is_over:
                await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, 0.1 * 2**tries))

    async def _listen(self, transcript: Transcript, body: object) -> None:
        if body is not None:
            frames = self._server.frames("POST", "/messages/stream", body)
        else:
            path = f"/runs/{transcript.run_id}/events"
            frames = self._server.frames("GET", path, after=transcript.last_seq)
        async with aclosing(frames), aclosing(with_pauses(frames, transcript.poll_delay)) as paused_frames:
            async for frame in paused_frames:
                for piece in () if frame is None else transcript.receive(frame):
                    self._screen.show(piece)
                if transcript.subagents and (frame is None or frame.type == "subagent_assigned"):
                    await self._poll_subagent_questions(transcript)
                for question in list(transcript.questions.values()):
                    await self._answer(transcript, question)

    async def _poll_subagent_questions(self, transcript: Transcript) -> None:
        """Adds the questions of subagents, which are in the event logs of their own runs."""
        page = await self._server.call("GET", "/questions", QuestionPage, status="open", page_size="100")
        for listed in reversed(page.items):
            if listed.subject_id == self._conversation_id and listed.run_id != transcript.run_id:
                for piece in transcript.add_question(listed.as_frame()):
                    self._screen.show(piece)

    async def _answer(self, transcript: Transcript, question: FrameQuestion) -> None:
        """Reads an answer at the terminal and sends it. Raises LuxxError if the run keeps waiting for one."""
        path = f"/runs/{question.run_id or transcript.run_id}/questions/{question.question_id}/answer"
        self._screen.end_line()
        try:
            await self._server.call("POST", path, ObjectWithId, {"answer": read_answer(question)})
        except Unanswered:
            if question.required or sys.stdin.isatty():
                raise LuxxError(f"the run waits for an answer; give it with POST {path}") from None
        except KeyboardInterrupt:
            transcript.questions.clear()  # The signal handler stops the run.
        except LuxxError as error:
            self._screen.note(f"error: {error.message}")
            if error.kind == "invalid_input":
                return
        transcript.questions.pop(question.question_id, None)

    async def _find_sent_run(self) -> str:
        """The run of a message whose stream broke before its first frame; polls until the run exists."""
        for _ in range(POLL_TRIES):
            newest = await self._newest_run()
            if newest != self._last_run:
                return newest
            await asyncio.sleep(POLL_SECONDS)
        raise LuxxError("the connection was lost before the server accepted the message; send it again")

    async def _newest_run(self) -> str:
        """The id of the conversation's newest run, subagents' runs excluded, or an empty string."""
        path = f"/conversations/{self._conversation_id}/execution-status"
        status = await self._server.call("GET", path, ConversationStatus)
        return status.run.id if status.run is not None else ""

    async def _stop(self, transcript: Transcript, follow_task: asyncio.Task[None]) -> None:
        """Cancels the run and waits up to STOP_SECONDS for the end of the stream."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                with suppress(LuxxError, httpx.TransportError):
                    run_id = transcript.run_id or await self._newest_run()
                    if run_id != self._last_run:
                        await self._server.call("POST", f"/runs/{run_id}/cancel", ObjectWithId)
                await asyncio.wait([follow_task])
        follow_task.cancel()


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    add_server_options(parser)
    parser.add_argument(
        "--conversation", metavar="ID", help="continue this conversation instead of a new one"
    )
    parser.add_argument("--model")
    parser.add_argument("--provider", type=int, metavar="ID")
    parser.add_argument("--thinking", action=argparse.BooleanOptionalAction, help="let the model think first")
    parser.add_argument(
        "--tools", action=argparse.BooleanOptionalAction, help="all tools you may use, or none"
    )
    parser.add_argument("message", nargs="*", help="send this one message; without it, read stdin or prompt")


async def chat(options: argparse.Namespace) -> int:
    """Runs the client with these options and returns the exit code. Raises LuxxError."""
    screen = Screen()
    async with connect(options, screen) as server:
        return await _run_chat(server, screen, options)


async def _run_chat(server: ServerApi, screen: Screen, options: argparse.Namespace) -> int:
    text = " ".join(options.message) or ("" if sys.stdin.isatty() else sys.stdin.read())
    if options.message == [] and not sys.stdin.isatty() and not text.strip():
        raise InvalidInput("there is no message: stdin is empty")
    client = await _open_conversation(server, screen, options)
    if text:
        return await client.send(text)
    while True:
        try:
            text = ask(input, "> ")
        except KeyboardInterrupt:
            return 0
        if text.strip():
            try:
                await client.send(text)
            except LuxxError as error:
                screen.note(f"error: {error.message}")


async def _open_conversation(server: ServerApi, screen: Screen, options: argparse.Namespace) -> ChatClient:
    values = {
        "model": options.model,
        "provider_id": options.provider,
        "thinking_enabled": options.thinking,
        "tools": options.tools,
    }
    extras = {name: value for name, value in values.items() if value is not None}
    if options.conversation:
        conversation = await server.call("GET", f"/conversations/{options.conversation}", ObjectWithId)
    else:
        conversation = await server.call("POST", "/conversations", ObjectWithId, {})
    client = ChatClient(server, screen, conversation.id, extras)
    await client.open()
    if sys.stdin.isatty():
        screen.note(f"conversation {conversation.id}; Ctrl-C stops an answer, Ctrl-D ends")
    return client
