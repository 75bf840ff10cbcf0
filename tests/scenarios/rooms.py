"""Rooms for scenarios: created, started and followed at a real server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from luxx.providers.scripted import Counts, Rule, Text, When
from scenarios.client import AsyncApiClient, AsyncEventStream, Json
from scenarios.screen import Frame, Screen

USUAL = Counts(prompt=10, completion=5)


def says(name: str, *texts: str, **more: Any) -> list[Rule]:
    """The seat of this name says these texts, one in each of its turns."""
    return [
        Rule(
            name=f"{name} {number}",
            when=When(system=f"You are {name} in", call=number),
            reply=[*(Text(text=f"{word} ") for word in text.split()), USUAL],
            **more,
        )
        for number, text in enumerate(texts, 1)
    ]


def replies(name: str, number: int, *reply: Any, **more: Any) -> Rule:
    """The reply of a seat in its call of this number."""
    return Rule(
        name=f"{name} {number}", when=When(system=f"You are {name} in", call=number), reply=[*reply], **more
    )


class RoomScreen(Screen):
    """What a client shows of a room's run. Checks that the text of each message grew to what was stored.

    Over a new connection it keeps the text of open messages, as `Screen` does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[str] = set()
        self.texts: dict[str, str] = {}
        self.whole: dict[str, str] = {}

    def attach(self) -> None:
        """A new connection: open messages come again as snapshots."""
        super().attach()
        self.kept = self.texts.keys() - self.whole.keys()

    def show(self, frame: Frame) -> None:
        if not self._is_attached:
            assert frame.event == "run", f"a stream begins with run, not {frame}"
            self._is_attached = True
        self.frames.append(frame)
        if frame.id is not None:
            # The stream of a resumed run begins after its pause.
            assert frame.id == self.last_id + 1 or not self.last_id, f"after {self.last_id} came {frame}"
            self.last_id = frame.id
        if frame.event == "message_chunk":
            self._grow(frame.data)
        elif frame.event == "message_end":
            msg_id, content = frame.data["msg_id"], frame.data["content"]
            assert msg_id not in self.whole, f"a second end of {msg_id}"
            shown = content if msg_id in self.kept else self.texts.get(msg_id, content)
            assert shown == content, f"{msg_id} grew to {shown[-80:]!r} and ended as {content[-80:]!r}"
            self.whole[msg_id] = content

    def _grow(self, data: Json) -> None:
        msg_id = data["msg_id"]
        assert msg_id not in self.whole, f"a chunk of a message that has ended: {data}"
        assert data.get("is_snapshot") or msg_id not in self.kept, f"a chunk after kept text: {data}"
        self.kept.discard(msg_id)
        if data.get("is_snapshot") and not data["content"]:
            # Its text is dropped: it begins anew, or `message_end` has it.
            self.texts.pop(msg_id, None)
            return
        so_far = "" if data.get("is_snapshot") else self.texts.get(msg_id, "")
        self.texts[msg_id] = so_far + data["content"]


async def new_room(ann: AsyncApiClient, provider_url: str, *names: str, **more: Any) -> Json:
    """A room with seats of these names, whose models are at this address."""
    provider_id = await ann.connect(provider_url)
    seats = [{"name": name, "role": f"{name}'s role", "provider_id": provider_id} for name in names]
    return await ann.post("/chat-rooms", {"title": "Talk", "task": "Find it out", "agents": seats, **more})


@asynccontextmanager
async def joined(
    ann: AsyncApiClient, url: str, room: Json, right: str | None, name: str
) -> AsyncIterator[AsyncApiClient]:
    """Another user at the server of this address, as a member of the room or, with None, not a member."""
    secret = "a long password 1"
    created = await ann.ask("POST", "/auth/users", {"username": name, "password": secret})
    assert created.is_success, created.text
    if right is not None:
        await ann.post(f"/chat-rooms/{room['id']}/members", {"username": name, "right": right})
    signed_in = await ann.post("/auth/login", {"username": name, "password": secret})
    async with AsyncApiClient(url, signed_in["access_token"]) as person:
        yield person


@asynccontextmanager
async def started(ann: AsyncApiClient, room_id: str, path: str = "start") -> AsyncIterator[AsyncEventStream]:
    """Starts or resumes the room and follows its run."""
    async with ann.streaming("POST", f"/chat-rooms/{room_id}/{path}") as response:
        yield AsyncEventStream(response, RoomScreen())


async def run_to_the_end(ann: AsyncApiClient, room_id: str, path: str = "start") -> list[Frame]:
    """All frames of the room's run from its start to its end or pause."""
    async with started(ann, room_id, path) as stream:
        return (await stream.to_the_end()).frames


def order(frames: list[Frame], *without: str) -> list[str]:
    """The types of the logged events, without these types and without steps and costs."""
    left_out = {"process_step", "cost_update", *without}
    return [frame.event for frame in frames if frame.id is not None and frame.event not in left_out]


def said(frames: list[Frame]) -> list[tuple[str, str]]:
    """Who said what, in the order of the `message` events."""
    messages = [frame.data["message"] for frame in frames if frame.event == "message"]
    return [(message["sender_name"], message["content"].strip()) for message in messages]


async def until_said(stream: AsyncEventStream, number: int) -> None:
    """Reads until this many messages were stored."""
    while len(said(stream.screen.frames)) < number:
        await stream.until("message")
