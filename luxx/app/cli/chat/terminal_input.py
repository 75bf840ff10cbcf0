"""What a person types in `luxx chat`: messages with line editing, history and completion, and menus.

Loaded only by a chat at a terminal, because prompt_toolkit is large.
"""

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import has_completions
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.output.color_depth import ColorDepth

from luxx.app.cli.chat.slash_commands import COMMANDS
from luxx.app.cli.menu import (
    PROMPT,
    FrameQuestion,
    Interrupted,
    Unanswered,
    parse_answer,
    wanted_answer,
)
from luxx.app.cli.sign_ins import user_directory
from luxx.errors import LuxxError

MESSAGE_PROMPT = "> "
CONTINUATION = "… "
HISTORY_FILE = "chat-history"
NEW_LINE_MARK = "\\"

Names = Callable[[str], Awaitable[list[str]]]


class SlashCompleter(Completer):
    """Completes commands, and their arguments: files, and names that the server knows."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[str, list[str]] = {}
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """The commands only: names need the server."""
        text = document.text_before_cursor
        for command in COMMANDS.values():
            if text.startswith("/") and command.name.startswith(text):
                yield Completion(command.name, -len(text), display_meta=command.help_text)

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        command, space, argument = document.text_before_cursor.partition(" ")
        if not space:
            for completion in self.get_completions(document, complete_event):
                yield completion
        elif command == "/attach":
            for completion in self._paths.get_completions(Document(argument), complete_event):
                yield completion
        elif command in COMMANDS:
            word = argument.rpartition(" ")[2] if command == "/tools" else argument
            for name in await self._names_of(command):
                if name.casefold().startswith(word.casefold()):
                    yield Completion(name, -len(word))

    async def _names_of(self, command: str) -> list[str]:
        if command not in self._known:
            try:
                self._known[command] = await self._names(command)
            except (LuxxError, OSError):
                return []  # A completion is no place for an error.
        return self._known[command]

    def forget(self) -> None:
        """The names may differ when they are needed again."""
        self._known.clear()


class TerminalInput:
    """Reads messages and answers. `names` gives the names that may follow a command."""

    def __init__(self, names: Names) -> None:
        self._completer = SlashCompleter(names)
        output = create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr)
        depth = ColorDepth.MONOCHROME if os.environ.get("NO_COLOR") else None
        self._messages: PromptSession[str] = PromptSession(
            output=output,
            color_depth=depth,
            history=FileHistory(_history_file()),
            completer=self._completer,
            complete_while_typing=True,
            reserve_space_for_menu=4,
            multiline=True,
            prompt_continuation=CONTINUATION,
            key_bindings=_message_keys(),
            editing_mode=EditingMode.EMACS,
            enable_open_in_editor=True,
        )
        self._answers: PromptSession[str] = PromptSession(output=output, color_depth=depth)

    async def read_message(self, default: str = "") -> str:
        """One message or command. Raises Interrupted for Ctrl-C, Unanswered for Ctrl-D."""
        self._completer.forget()
        return await self._read(self._messages, MESSAGE_PROMPT, default)

    async def answer(self, question: FrameQuestion) -> str | list[str]:
        """The answer to a question; asks again after a line that is none."""
        while True:
            answer = parse_answer(question, await self._read(self._answers, PROMPT))
            if answer is not None:
                return answer
            sys.stderr.write(f"  {wanted_answer(question)}\n")
            sys.stderr.flush()

    async def _read(self, session: PromptSession[str], prompt: str, default: str = "") -> str:
        try:
            return await session.prompt_async(prompt, default=default)
        except KeyboardInterrupt:
            raise Interrupted from None
        except EOFError:
            raise Unanswered from None


def _history_file() -> str:
    """The file of what was typed, which only this user can read."""
    path = user_directory("XDG_STATE_HOME", ".local/state") / HISTORY_FILE
    with suppress(OSError):  # A chat works without its history.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        path.chmod(0o600)
        return str(path)
    return os.devnull


def _message_keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=~has_completions)
    def send(event: KeyPressEvent) -> None:
        """Sends the message, unless its last character asks for another line."""
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith(NEW_LINE_MARK):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("enter", filter=has_completions)
    def complete(event: KeyPressEvent) -> None:
        """Takes the chosen completion; without a chosen one, sends the message."""
        buffer = event.current_buffer
        state = buffer.complete_state
        if state is not None and state.current_completion is not None:
            buffer.complete_state = None
        else:
            buffer.cancel_completion()
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def add_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
