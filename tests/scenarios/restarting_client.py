"""A client whose server is killed and started again during its run, and which reconnects to it."""

import asyncio
from typing import Any

import httpx
from api.server_process import ServerProcess

from scenarios.client import AsyncApiClient, AsyncEventStream
from scenarios.screen import Screen

MOST_STREAMS = 500
"""The most connections of one client for one run: more means that streams close without an end of the run."""


SOON_SECONDS = 15.0
"""The time from a start until the run is driven again."""


class RestartingClient(AsyncApiClient):
    """The test calls `kill`, `stop` and `start`; sending and following tolerate that the server is down."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server.url)
        self.server = server
        self.deaths = 0
        self._is_up = asyncio.Event()
        self._is_up.set()

    async def kill(self) -> None:
        """kill -9."""
        self._is_up.clear()
        self.deaths += 1
        await asyncio.to_thread(self.server.kill)

    async def stop(self) -> None:
        """SIGTERM."""
        self._is_up.clear()
        await asyncio.to_thread(self.server.stop)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)
        await self.reconnect_to(self.server.url)
        self._is_up.set()

    async def kill_and_start(self) -> None:
        await self.kill()
        await self.start()

    async def follow_to_end(self, run_id: str, screen: Screen | None = None) -> Screen:
        """The screen at the end of the run, over as many restarts as necessary."""
        screen = screen or Screen()
        for _ in range(MOST_STREAMS):
            if screen.done is not None:
                return screen
            await self._is_up.wait()
            try:
                async with self.follow(run_id, screen) as stream:
                    await stream.to_the_end()
            except httpx.TransportError:
                pass
        raise AssertionError(f"{MOST_STREAMS} streams of {run_id} ended without its end")

    async def send_until_accepted(self, conversation_id: str, content: str, **more: Any) -> str:
        """Sends the message until it is stored exactly once. Returns its run. `content` must be unique in the
        conversation."""
        for _ in range(MOST_STREAMS):
            await self._is_up.wait()
            try:
                return (await self.start_run(conversation_id, content, **more))["id"]
            except httpx.TransportError:
                pass
            await self._is_up.wait()
            try:
                if await self._count_sent(conversation_id, content):
                    return (await self.get("/runs", subject_id=conversation_id))["items"][0]["id"]
            except httpx.TransportError:
                pass
        raise AssertionError(f"{content!r} could not be sent")

    async def _count_sent(self, conversation_id: str, content: str) -> int:
        messages = await self.messages(conversation_id)
        return sum(message["role"] == "user" and message["text"] == content for message in messages)


def finished_text(message: dict[str, Any]) -> str:
    """The text of the steps that no crash interrupted."""
    return "".join(s["content"] for s in message["steps"] if s["type"] == "text" and s["status"] == "done")


async def check_completed(ann: RestartingClient, conversation: str, screen: Screen) -> dict[str, Any]:
    """The message of a run that continued after crashes; checks that it is complete and what the client
    shows."""
    message = await ann.answer_shown_by(conversation, screen)
    assert screen.done is not None
    assert screen.done["status"] == "completed"
    assert message["status"] == "complete"
    run = await ann.run(screen.run_id)
    assert (run["status"], run["last_seq"]) == ("completed", screen.last_id)
    assert (await ann.get(f"/conversations/{conversation}"))["run_id"] is None
    assert [m["role"] for m in await ann.messages(conversation)] == ["user", "assistant"]
    fresh = await ann.wait_for_end(screen.run_id)
    assert fresh.ordered() == screen.ordered()
    return message


async def read_until_text(stream: AsyncEventStream, text: str) -> None:
    while text not in stream.screen.text:
        await stream.until("process_step", timeout=5)
