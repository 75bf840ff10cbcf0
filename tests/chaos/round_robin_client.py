"""A person who meets another process with every request, and bears that some of them are not there."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from scenarios.client import WAIT_SECONDS, AsyncApiClient, AsyncEventStream
from scenarios.screen import Screen

PATIENCE_SECONDS = 60.0
"""How long the same is tried again: longer, and somebody is kept out for good."""

PAUSE_SECONDS = 0.1
"""Before the next try, as a browser's event source waits before it comes back."""

AWAY = frozenset({502, 503})
"""What a process may say that cannot just now: it stops, or its database is away."""


class RoundRobinClient(AsyncApiClient):
    """The admin, through the round robin. `refused` counts the answers that said "not now"; `watching` tells
    of each stream that is open where it stands, for whoever looks for one that never ends."""

    def __init__(self, url: str, token: str = "") -> None:
        super().__init__(url, token)
        self.refused = 0
        self.watching: dict[int, str] = {}

    async def ask_once(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response | None:
        """The answer, or None where there was none, or only that there cannot be one now."""
        mark = object()
        self.watching[id(mark)] = f"{method} {path} asked at {time.monotonic():.1f}"
        try:
            response = await self.ask(method, path, body, **more)
        except httpx.TransportError:
            return None
        finally:
            del self.watching[id(mark)]
        if response.status_code in AWAY:
            self.refused += 1
            check_refusal(response)
            return None
        return response

    async def ask_until_answered(
        self, method: str, path: str, body: Any = None, **more: Any
    ) -> httpx.Response:
        """An answer, however often it takes; only for what may be asked twice."""
        until = time.monotonic() + PATIENCE_SECONDS
        while (response := await self.ask_once(method, path, body, **more)) is None:
            assert time.monotonic() < until, f"{method} {path}: no answer for {PATIENCE_SECONDS} s"
            await asyncio.sleep(PAUSE_SECONDS)
        return response

    async def send_until_accepted(self, conversation_id: str, content: str, **more: Any) -> str:
        """The run of a message that is there exactly once; `content` must be unique in the conversation."""
        body = {"conversation_id": conversation_id, "content": content, **more}
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            answer = await self.ask_once(
                "POST", "/messages/stream", body, headers={"accept": "application/json"}
            )
            if answer is not None and answer.status_code == 202:
                return answer.json()["data"]["id"]
            # 409: an earlier try came through after all, or what went before has not quite ended.
            assert answer is None or answer.status_code == 409, answer.text
            if (run_id := await self._run_of(conversation_id, content)) is not None:
                return run_id
            await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError(f"{content!r} could not be sent for {PATIENCE_SECONDS} s")

    async def _run_of(self, conversation_id: str, content: str) -> str | None:
        """The run of this message, the newest of its conversation, if it arrived."""
        listed = await self.ask_until_answered(
            "GET", "/messages", conversation_id=conversation_id, page_size=4
        )
        said = [m for m in listed.json()["data"]["items"] if m["role"] == "user" and m["text"] == content]
        if not said:
            return None
        runs = await self.ask_until_answered("GET", "/runs", subject_id=conversation_id)
        return runs.json()["data"]["items"][0]["id"]

    async def follow_to_end(
        self,
        run_id: str,
        screen: Screen | None = None,
        *,
        frames: int = 0,
        timeout: float | None = PATIENCE_SECONDS,
    ) -> Screen:
        """The screen at the run's end, over as many processes as it takes.

        With `frames`, it leaves each stream after so many and comes back elsewhere.
        """
        screen = screen or Screen()
        async with asyncio.timeout(timeout):
            while screen.done is None:
                if not await self._read_one_stream(run_id, screen, frames):
                    await asyncio.sleep(PAUSE_SECONDS)
        return screen

    async def _read_one_stream(self, run_id: str, screen: Screen, frames: int) -> bool:
        """One connection; whether it showed anything."""
        screen.attach()
        headers = {**self._authorization()}
        if screen.last_id:
            headers["last-event-id"] = str(screen.last_id)
        seen = len(screen.frames)
        self.watching[id(screen)] = f"{run_id} at {screen.last_id}, asked for at {time.monotonic():.1f}"
        try:
            async with self._client.stream("GET", f"/runs/{run_id}/events", headers=headers) as response:
                if response.status_code in AWAY:
                    return False
                assert response.status_code == 200, (await response.aread()).decode()
                stream = AsyncEventStream(response, screen)
                self._note(run_id, stream)
                async for _ in stream:
                    self._note(run_id, stream)
                    if frames and len(screen.frames) >= seen + frames and screen.done is None:
                        return True
        except httpx.TransportError:
            pass
        finally:
            self.watching.pop(id(screen), None)
        return len(screen.frames) > seen + 1

    def _note(self, run_id: str, stream: AsyncEventStream) -> None:
        screen = stream.screen
        last = screen.frames[-1].event if screen.frames else "nothing"
        self.watching[id(screen)] = (
            f"{run_id} at {screen.last_id}, {last} came at {time.monotonic():.1f}, "
            f"asked as {stream.response.headers.get('x-request-id')}"
        )

    @staticmethod
    def _make(url: str) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS, limits=limits, trust_env=False)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Asks again and again; bound it by a timeout."""
    while True:
        if await is_so():
            return
        await asyncio.sleep(PAUSE_SECONDS / 2)


def check_refusal(response: httpx.Response) -> None:
    """That a refusal is the envelope with a sentence, and not somebody else's page."""
    failure = response.json()
    assert failure["success"] is False
    assert failure["code"] == response.status_code
    assert failure["detail"]["kind"]
