"""A chat at the terminal: its conversation, the choices for the next message, sending, history.

`runs/follower.py` follows an answer, `slash_commands.py` has the commands that a person types.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from luxx.app.cli.chat.queue import TerminalQueue
from luxx.app.cli.chat.typed_keys import TypedKeys
from luxx.app.cli.menu import Menu
from luxx.app.cli.runs.answer import AnswerTranscript, SentMessage, newest_run
from luxx.app.cli.runs.follower import RunFollower
from luxx.app.cli.screen import Piece, PieceKind, RunScreen, is_dumb_terminal
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import find_named
from luxx.errors import InvalidInput, NotFound
from luxx.wire.message import MAX_ATTACHED_TEXT, MAX_ATTACHMENTS

HISTORY_MESSAGES = 20
IMAGE_TYPES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
"""The types of images by their first bytes; WebP is recognized apart."""


Follow = Callable[[RunFollower], Coroutine[Any, Any, int]]


class ChatConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a conversation that the chat needs."""

    id: str
    title: str = ""
    run_id: str | None = None
    agent_id: int | None = None
    temporary_minutes: int | None = None
    comparing_id: str | None = None


class ConversationPage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[ChatConversation]


class HistoryStep(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    name: str = ""


class HistoryMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    parent_id: str | None = None
    role: str
    model: str | None = None
    text: str = ""
    steps: list[HistoryStep] = []
    attachments: list[dict[str, Any]] = []


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[HistoryMessage]
    has_more: bool = False


class UploadedFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class UploadedFiles(msgspec.Struct, frozen=True, kw_only=True):
    files: list[UploadedFile]


class MessageAttachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text with its content, an image with its data, or another file that was uploaded."""

    name: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET


class ChatSession:
    """`menu` None: nobody is there to be asked."""

    def __init__(
        self, server: ServerApi, screen: RunScreen, menu: Menu | None, *, is_json: bool = False
    ) -> None:
        self.server = server
        self.screen = screen
        self.conversation: ChatConversation | None = None
        self.options: dict[str, Any] = {}
        """The options of the next messages: model, provider_id, tools, thinking_enabled."""
        self.agent_id: int | None = None
        """The agent of a conversation that does not exist yet."""
        self.attachments: list[tuple[Path, MessageAttachment]] = []
        self.skills: list[str] = []
        """Those that the next message activates."""
        self.thinking = ""
        """What the model thought for the last answer."""
        self._is_temporary = False
        self._temporary: list[ChatConversation] = []
        self.is_left = False
        self.was_accepted = False
        self.unsent = ""
        """What was typed while an answer was shown and not sent."""
        self.queue = TerminalQueue(server, screen, lambda: self.options)
        self._menu = menu
        self._is_json = is_json
        # A terminal that cannot move its cursor gives its lines to the next prompt.
        self._reads_keys = menu is not None and not is_json and not is_dumb_terminal()

    # The conversation

    async def open_latest(self) -> None:
        """Continues the conversation with the latest activity. Raises NotFound."""
        page = await self.server.call("GET", "/conversations", ConversationPage, sort="updated")
        if not page.items:
            raise NotFound("you have no conversation yet; leave out --continue")
        self.conversation = page.items[0]

    async def open_named(self, title_or_id: str) -> None:
        """Continues the conversation with this id or title. Raises NotFound, InvalidInput if several fit."""
        text = title_or_id.strip()
        query = {"q": text[:300], "page_size": "100"}
        found = (await self.server.call("GET", "/conversations", ConversationPage, **query)).items
        conversation = find_named(found, text, lambda one: one.title, "conversations")
        if conversation is None and len(found) == 1:
            conversation = found[0]
        if conversation is None:
            try:
                conversation = await self.server.call(
                    "GET", f"/conversations/{quote(text, safe='')}", ChatConversation
                )
            except (NotFound, InvalidInput) as error:
                raise NotFound(f"there is no conversation {text[:100]!r} of yours") from error
        self.conversation = conversation

    async def begin_temporary(self) -> None:
        """Begins a chat that is deleted at the end; so is each that follows it."""
        self._is_temporary = True
        await self._create()

    async def end_temporary(self) -> None:
        """Deletes the temporary chats that were begun, and that the server has not deleted."""
        for conversation in self._temporary:
            with suppress(NotFound):
                await self.server.call("DELETE", f"/conversations/{conversation.id}", type(None))
        if self._temporary:
            self.screen.note("the temporary chat is deleted")

    async def _create(self) -> ChatConversation:
        body: dict[str, Any] = {} if self.agent_id is None else {"agent_id": self.agent_id}
        if self._is_temporary:
            body["is_temporary"] = True
        created = await self.server.call("POST", "/conversations", ChatConversation, body)
        if self._is_temporary:
            self._temporary.append(created)
            self.screen.note(
                "temporary chat: not remembered, and deleted when this command ends or after "
                f"{created.temporary_minutes} minutes without use"
            )
        self.conversation = created
        return created

    async def show_history(self) -> None:
        """Shows the last messages of the conversation."""
        assert self.conversation is not None
        query = {"conversation_id": self.conversation.id, "limit": str(HISTORY_MESSAGES)}
        page = await self.server.call("GET", "/messages", HistoryPage, **query)
        if page.has_more:
            self.screen.note("… older messages are left out")
        compared = self.conversation.comparing_id
        for message in reversed(page.items):
            if compared is not None and message.parent_id == compared and message.model:
                self.screen.note(f"answer of {message.model}:")
            self._show_message(message)
        if compared is not None:
            self.screen.note(
                "two models answer the last message; the next one is refused until an answer is kept: on the "
                f"page, or by PUT /conversations/{self.conversation.id} with its id as selected_leaf_id"
            )

    def _show_message(self, message: HistoryMessage) -> None:
        if message.role == "user":
            self.screen.user_message(message.text)
            names = ", ".join(str(one.get("name", "")) for one in message.attachments)
            if names:
                self.screen.note(f"with {names}")
            return
        called = [step.name for step in message.steps if step.type == "tool_call"]
        if called:
            self.screen.note(f"used {', '.join(called)}")
        self.screen.show(Piece(PieceKind.TEXT, message.text))
        self.screen.end_line()

    async def follow_open_run(self) -> int:
        """Follows the answer that is being written, and asks its open questions; of two that are compared,
        one after the other. Returns an exit code."""
        code = 0
        while self.conversation is not None and self.conversation.run_id is not None and not self.is_left:
            run_id = self.conversation.run_id
            code = await self.follow_run(run_id)
            if self.conversation.comparing_id is None:
                break
            path = f"/conversations/{self.conversation.id}"
            self.conversation = await self.server.call("GET", path, ChatConversation)
            if self.conversation.run_id == run_id:
                break
        return code

    async def follow_run(self, run_id: str) -> int:
        """Follows a run of the conversation. Returns an exit code."""
        assert self.conversation is not None
        return await self._show_answers(self.conversation, lambda follower: follower.follow(run_id))

    # Messages

    async def send(self, text: str) -> int:
        """Sends a message and shows its answer. Returns an exit code.

        Raises LuxxError, and httpx's TransportError if the server cannot be reached; `was_accepted` says
        whether it has the message.
        """
        self.was_accepted = False
        is_new = self.conversation is None
        conversation = self.conversation or await self._create()
        body = {"content": text, **self.options}
        if self.attachments:
            body["attachments"] = [attachment for _, attachment in self.attachments]
        if self.skills:
            body["skills"] = self.skills
        message = SentMessage(self.server, conversation.id, body)
        if not is_new:
            await message.remember_newest_run()
        try:
            return await self._show_answers(conversation, lambda follower: follower.send(message))
        finally:
            self.was_accepted = message.is_accepted
            if message.is_accepted:
                self.attachments, self.skills = [], []

    async def _show_answers(self, conversation: ChatConversation, follow: Follow) -> int:
        """Shows an answer, and those to the messages that waited for its end."""
        code, run_id = await self._show_answer(conversation, follow)
        return await self._show_next(conversation, run_id, code)

    async def resume_queue(self, conversation: ChatConversation) -> None:
        """Lets the queue go on, and shows the answers to the messages that waited."""
        newest = await newest_run(self.server, conversation.id)
        await self.queue.resume(conversation.id)
        await self._show_next(conversation, newest, 0)

    async def _show_next(self, conversation: ChatConversation, run_id: str, code: int) -> int:
        while self.queue.has_given and not self.is_left:
            run = await self.queue.next_run(conversation.id, run_id)
            if run is None:
                break
            await self._show_question(conversation.id, run.message_id or "")
            code, run_id = await self._show_answer(conversation, lambda one, id_=run.id: one.follow(id_))
        return code

    async def _show_question(self, conversation_id: str, before: str) -> None:
        """Shows the message of the person that an answer with this id belongs to."""
        query = {"conversation_id": conversation_id, "limit": str(HISTORY_MESSAGES)}
        page = await self.server.call("GET", "/messages", HistoryPage, **query)
        asked = next((one for one in page.items if one.role == "user" and one.id < before), None)
        if asked is not None:
            self._show_message(asked)

    async def _show_answer(self, conversation: ChatConversation, follow: Follow) -> tuple[int, str]:
        """The exit code, and the run that was followed."""
        transcript = AnswerTranscript(conversation.id)
        if not self._reads_keys:
            follower = RunFollower(self.server, self.screen, transcript, self._menu, is_json=self._is_json)
            return await self._follow(follower, transcript, follow)
        assert self._menu is not None
        tasks: set[asyncio.Task[None]] = set()

        def send(line: str) -> None:
            task = asyncio.create_task(self.queue.take_line(conversation.id, line))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        keys = TypedKeys(self.screen.show_typed, send)
        keys.text, self.unsent = self.unsent, ""
        with keys:
            follower = RunFollower(self.server, self.screen, transcript, keys.between(self._menu))
            try:
                return await self._follow(follower, transcript, follow)
            finally:
                if tasks:
                    await asyncio.wait(tasks)
                self.unsent = keys.text

    async def _follow(
        self, follower: RunFollower, transcript: AnswerTranscript, follow: Follow
    ) -> tuple[int, str]:
        try:
            return await follow(follower), transcript.run_id
        finally:
            self.thinking, self.is_left = transcript.thinking, follower.is_left

    async def attach(self, path: Path) -> None:
        """Adds a file to the next message. Raises InvalidInput, OSError."""
        if len(self.attachments) >= MAX_ATTACHMENTS:
            raise InvalidInput(f"a message has at most {MAX_ATTACHMENTS} attachments")
        data = await asyncio.to_thread(lambda: path.expanduser().read_bytes())
        if (media_type := image_type(data)) is not None:
            attachment = MessageAttachment(name=path.name, data=data, media_type=media_type)
        elif (content := text_of(data)) is not None:
            attachment = MessageAttachment(name=path.name, content=content)
        else:
            uploaded = await self.server.upload(path.name, data, UploadedFiles)
            attachment = MessageAttachment(file_id=uploaded.files[0].id)
        self.attachments.append((path, attachment))

    async def use_agent(self, agent_id: int | None) -> None:
        """The agent of the next messages, in this conversation or the one that is created for them."""
        self.agent_id = agent_id
        if self.conversation is not None:
            path = f"/conversations/{self.conversation.id}"
            self.conversation = await self.server.call("PUT", path, ChatConversation, {"agent_id": agent_id})


def image_type(data: bytes) -> str | None:
    """The media type of an image by its first bytes."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in IMAGE_TYPES.items() if data.startswith(start)), None)


def text_of(data: bytes) -> str | None:
    """The content of a text file that fits into a message, or None."""
    if b"\0" in data:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if len(text) <= MAX_ATTACHED_TEXT else None
