"""Many rows at once: conversations with messages as Luxx stores them, written by Core inserts."""

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection, insert

from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search_index import index_messages, index_title
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import table_of
from luxx.wire.message import AssistantContent, UserContent
from luxx.wire.turn import Step, StepType, Usage, step_id

BATCH = 1000
_messages, _conversations = table_of(MessageRow), table_of(ConversationRow)
_encode = msgspec.json.Encoder().encode
_usage = _encode(Usage(prompt_tokens=120, completion_tokens=80)).decode()


class TextGenerator:
    """Generates texts that never repeat, the same for the same seed; words are distributed as in a
    language."""

    def __init__(self, seed: int = 7, *, rare_every: int = 0) -> None:
        """With `rare_every`, one message of that many has a rare word."""
        self._rare_every = rare_every
        self._random = random.Random(seed)
        letters = "abcdefghijklmnoprstuvw"
        self._words = ["".join(self._random.choices(letters, k=2 + n % 8)) for n in range(5000)]
        self._weights = [1 / (rank + 1) for rank in range(5000)]
        self._count = 0

    def words(self, count: int) -> str:
        return " ".join(self._random.choices(self._words, self._weights, k=count))

    def content(self) -> tuple[str, str]:
        """A role and its stored JSON; roles alternate, and every fifth answer used a tool."""
        self._count += 1
        is_rare = self._rare_every and self._count % self._rare_every == 1
        phrase = f"common {'rare 机器学习 ' if is_rare else ''}{self.words(35)}"
        if self._count % 2:
            return "user", _encode(UserContent(text=phrase)).decode()
        parts: list[dict[str, Any]] = [{"type": StepType.THINKING, "content": self.words(40)}]
        if self._count % 10 == 0:
            call = {"name": "file_read", "id_ref": f"call_{self._count}"}
            parts += [
                {"type": StepType.TOOL_CALL, "arguments": '{"path": "notes.txt"}', **call},
                {"type": StepType.TOOL_RESULT, "content": self.words(50), "success": True, **call},
            ]
        parts.append({"type": StepType.TEXT, "content": phrase})
        steps = [Step(id=step_id(at), index=at, **part) for at, part in enumerate(parts)]
        return "assistant", _encode(AssistantContent(steps=steps)).decode()


def seed(
    connection: Connection, text_generator: TextGenerator, lengths: Iterable[int], *, user_id: int = 1
) -> list[str]:
    """Adds a conversation of each length, whose messages form one chain. Returns the ids of the
    conversations."""
    ids: list[str] = []
    pending: list[dict[str, Any]] = []
    for length in lengths:
        path = list(_path(text_generator, length, user_id))
        ids.append(_conversation(connection, text_generator, path, user_id))
        pending += path
        if len(pending) >= BATCH:
            _store(connection, pending)
            pending = []
    _store(connection, pending)
    return ids


def _conversation(
    connection: Connection, text_generator: TextGenerator, path: list[dict[str, Any]], user_id: int
) -> str:
    id_, title, now = new_id(), f"About {text_generator.words(4)}", utc_now()
    for message in path:
        message["conversation_id"] = id_
    row = {
        "id": id_, "user_id": user_id, "title": title, "tags": '["seeded"]', "created_at": now,
        "updated_at": now, "selected_leaf_id": path[-1]["id"] if path else None,
    }  # fmt: skip
    connection.execute(insert(_conversations), row)
    index_title(connection, user_id=user_id, conversation_id=id_, title=title)
    return id_


def _path(text_generator: TextGenerator, length: int, user_id: int) -> Iterator[dict[str, Any]]:
    parent: str | None = None
    for _ in range(length):
        role, content = text_generator.content()
        id_ = new_id()
        yield {
            "id": id_, "user_id": user_id, "parent_id": parent,
            "role": role, "content": content, "usage": _usage if role == "assistant" else None,
            "created_at": utc_now(),
        }  # fmt: skip
        parent = id_


def _store(connection: Connection, rows: list[dict[str, Any]]) -> None:
    waiting = iter(rows)
    while batch := list(islice(waiting, BATCH)):
        connection.execute(insert(_messages), batch)
        index_messages(connection, batch)
