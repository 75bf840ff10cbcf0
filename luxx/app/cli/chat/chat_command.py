"""`luxx chat`: its options, and its three ways: at a terminal, with one message, and for scripts.

The answer goes to stdout, everything else to stderr. Exit codes: 0 answered; 1 refused, unreachable or the
answer failed; 2 wrong options; 3 the answer waits for a person; 130 stopped with Ctrl-C.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from luxx.app.cli.agent_and_conversation_commands import agent_named
from luxx.app.cli.chat.session import ChatSession
from luxx.app.cli.chat.slash_commands import SlashCommands
from luxx.app.cli.menu import (
    PROMPT,
    FrameQuestion,
    Interrupted,
    Unanswered,
    parse_answer,
    wanted_answer,
)
from luxx.app.cli.runs.transcript import EXIT_STOPPED, EXIT_WAITS
from luxx.app.cli.screen import RunScreen, Screen, is_dumb_terminal, silent_keys
from luxx.app.cli.server_api import ConnectionFailed, ServerApi, add_server_options, connect
from luxx.app.cli.server_commands import provider_named
from luxx.errors import InvalidInput, LuxxError

if TYPE_CHECKING:
    from luxx.app.cli.chat.terminal_input import TerminalInput

RICH_SCREEN = "luxx.app.cli.chat.rich_screen:RichScreen"
TERMINAL_INPUT = "luxx.app.cli.chat.terminal_input:TerminalInput"
"""Loaded when they are needed: their libraries are large, and a server never needs them."""

HINT = "type a message; /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves"


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    add_server_options(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--continue", "-c", dest="continues", action="store_true", help="continue your latest conversation"
    )
    which.add_argument("--conversation", metavar="TITLE|ID", help="continue this conversation")
    which.add_argument(
        "--temporary", action="store_true", help="a chat that is not remembered, and deleted at the end"
    )
    parser.add_argument("--model", help="the model (default: the conversation's, else the provider's)")
    parser.add_argument("--provider", metavar="NAME|ID", help="the provider (default: your default provider)")
    parser.add_argument("--agent", metavar="NAME|ID", help="the agent of the conversation")
    parser.add_argument("--thinking", action=argparse.BooleanOptionalAction, help="let the model think first")
    parser.add_argument(
        "--tools", action=argparse.BooleanOptionalAction, help="all tools you may use, or none"
    )
    parser.add_argument("--attach", metavar="FILE", type=Path, action="append", default=[], help="a file")
    parser.add_argument("--json", action="store_true", help="print the events, one JSON object on each line")
    parser.add_argument(
        "message",
        nargs="*",
        help="send this one message; text on stdin follows it; without both, chat at the terminal",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    return asyncio.run(chat(options))


async def chat(options: argparse.Namespace) -> int:
    """Runs the client with these options and returns the exit code. Raises LuxxError."""
    text = _message(options)
    screen = _screen(options)
    async with connect(options, Screen()) as server:
        return await Chat(server, screen, is_json=options.json).run(options, text)


def _message(options: argparse.Namespace) -> str:
    """The message of the command line, followed by stdin. Raises InvalidInput if there is none."""
    parts = [" ".join(options.message)]
    if not sys.stdin.isatty():
        parts.append(sys.stdin.read().rstrip("\n"))
    text = "\n\n".join(part for part in parts if part.strip())
    if text or (sys.stdin.isatty() and not options.json) or _continues(options):
        return text
    raise InvalidInput("there is no message; write it after the command, or to stdin")


def _continues(options: argparse.Namespace) -> bool:
    return bool(options.continues or options.conversation)


def _screen(options: argparse.Namespace) -> RunScreen:
    are_terminals = sys.stdout.isatty() and sys.stderr.isatty()
    if options.json or not are_terminals or is_dumb_terminal():
        return Screen(keeps_lines=True, folds_thinking=True)
    return resolve_name(RICH_SCREEN)()


class LineInput:
    """Reads lines on a terminal that cannot move its cursor. Blocks the event loop meanwhile."""

    async def read_message(self, _default: str = "") -> str:
        """One message or command; a line that ends in a backslash is continued by the next one."""
        lines = [_read_line("> ")]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append(_read_line("… "))
        return "\n".join(lines)

    async def answer(self, question: FrameQuestion) -> str | list[str]:
        """The answer to a question; asks again after a line that is none."""
        while (answer := parse_answer(question, _read_line(PROMPT))) is None:
            sys.stderr.write(f"  {wanted_answer(question)}\n")
        return answer


def _read_line(prompt: str) -> str:
    """Raises Interrupted for Ctrl-C, Unanswered for Ctrl-D."""
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return input()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise Interrupted from None
    except EOFError:
        sys.stderr.write("\n")
        raise Unanswered from None
    finally:
        signal.signal(signal.SIGINT, previous_handler)


class Chat:
    """One chat, from its options to its exit code."""

    def __init__(self, server: ServerApi, screen: RunScreen, *, is_json: bool) -> None:
        self._screen = screen
        self._is_json = is_json
        self._input: TerminalInput | LineInput | None = None
        if sys.stdin.isatty() and not is_json:
            is_dumb = is_dumb_terminal()
            self._input = LineInput() if is_dumb else resolve_name(TERMINAL_INPUT)(self._names)
        self._session = ChatSession(server, screen, self._input, is_json=is_json)
        self._commands = SlashCommands(self._session)

    async def run(self, options: argparse.Namespace, text: str) -> int:
        await self._apply(options)
        if not options.temporary:
            return await self._talk(text)
        try:
            return await self._talk(text)
        finally:
            await self._session.end_temporary()

    async def _talk(self, text: str) -> int:
        session = self._session
        with silent_keys():
            if text:
                return await session.send(text)
            code = await self._show_conversation()
        if self._input is None or session.is_left or code == EXIT_WAITS:
            return code
        self._screen.note(HINT)
        await self._converse(self._input)
        return EXIT_STOPPED if session.is_left else 0

    async def _apply(self, options: argparse.Namespace) -> None:
        """Sets what the options choose. Raises LuxxError, OSError."""
        session = self._session
        values: dict[str, Any] = {
            "model": options.model,
            "thinking_enabled": options.thinking,
            "tools": options.tools,
        }
        if options.provider:
            values["provider_id"] = (await provider_named(session.server, options.provider)).id
        session.options = {name: value for name, value in values.items() if value is not None}
        if options.temporary:
            await session.begin_temporary()
        elif options.conversation:
            await session.open_named(options.conversation)
        elif options.continues:
            await session.open_latest()
        if options.agent:
            await session.use_agent((await agent_named(session.server, options.agent)).id)
        for file in options.attach:
            await session.attach(file)

    async def _show_conversation(self) -> int:
        """Shows what there is of a conversation that is continued."""
        session = self._session
        if session.conversation is None:
            return 0
        if not self._is_json:
            await session.show_history()
        return await session.follow_open_run()

    async def _converse(self, keyboard: "TerminalInput | LineInput") -> None:
        """Reads and carries out messages and commands until the person leaves."""
        draft, is_interrupted = "", False
        while not (self._commands.has_ended or self._session.is_left):
            try:
                text = await keyboard.read_message(draft)
            except Unanswered:
                return
            except Interrupted:
                if is_interrupted:
                    return
                self._screen.note("Ctrl-C again, or Ctrl-D, leaves")
                draft, is_interrupted = "", True
                continue
            is_interrupted = False
            draft = await self._take(text) if text.strip() else ""

    async def _take(self, text: str) -> str:
        """Carries out a command or sends a message. Returns a message that the server did not take."""
        try:
            with silent_keys():
                if is_command(text):
                    await self._commands.run(text)
                    return ""
                await self._session.send(text)
        except ConnectionFailed:
            self._screen.note(f"error: no server answers at {self._session.server.url}; Enter sends it again")
        except LuxxError as error:
            self._screen.note(f"error: {error.message}")
        except OSError as error:
            self._screen.note(f"error: {error.filename or text}: {error.strerror or error}")
        if not (is_command(text) or self._session.was_accepted):
            return text
        unsent, self._session.unsent = self._session.unsent, ""
        return unsent

    async def _names(self, command: str) -> list[str]:
        return await self._commands.names(command)


def is_command(text: str) -> bool:
    """Whether a message is a command: `/etc/hosts` is none."""
    word = text.strip().partition(" ")[0]
    return word.startswith("/") and "/" not in word[1:] and "\n" not in text.strip()
