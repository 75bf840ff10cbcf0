"""A client that reaches another process with every request, and tolerates that some of them are down."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from scenarios.client import WAIT_SECONDS, AsyncApiClient, AsyncEventStream
from scenarios.screen import Screen

PATIENCE_SECONDS = 60.0
"""How long a request is retried; a longer failure would mean that the client is locked out."""

PAUSE_SECONDS = 0.1
"""The pause before the next attempt, like that of a browser's event source."""

UNAVAILABLE = frozenset({502, 503})
"""Statuses of a process that cannot serve at the moment, because it stops or its database is away."""


class RoundRobinClient(AsyncApiClient):
    """The administrator, through the round robin. `refused` counts the answers that mean "not now";
    `watching` names the position of each open stream, which helps to find one that never ends."""

    def __init__(self, url: str, token: str = "") -> None:
        super().__init__(url, token)
        self.refused = 0
        self.watching: dict[int, str] = {}

    async def ask_once(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response | None:
        """The answer, or None if there was none or it means "not now"."""
        mark = object()
        self.watching[id(mark)] = f"{method} {path} asked at {time.monotonic():.1f}"
        try:
            response = await self.ask(method, path, body, **more)
        except httpx.TransportError:
            return None
        finally:
            del self.watching[id(mark)]
        if response.status_code in UNAVAILABLE:
            self.refused += 1
            check_refusal(response)
            return None
        return response

    async def ask_until_answered(
        self, method: str, path: str, body: Any = None, **more: Any
    ) -> httpx.Response:
        """Repeats the request until it is answered; only for requests that may be repeated."""
        until = time.monotonic() + PATIENCE_SECONDS
        while (response := await self.ask_once(method, path, body, **more)) is None:
            assert time.monotonic() < until, f"{method} {path}: no answer for {PATIENCE_SECONDS} s"
            await asyncio.sleep(PAUSE_SECONDS)
        return response

    async def send_until_accepted(self, conversation_id: str, content: str, **more: Any) -> str:
        """Sends the message until it is stored exactly once. Returns its run. `content` must be unique in the
        conversation."""
        body = {"conversation_id": conversation_id, "content": content, **more}
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            answer = await self.ask_once(
                "POST", "/messages/stream", body, headers={"accept": "application/json"}
            )
            if answer is not None and answer.status_code == 202:
                return answer.json()["data"]["id"]
            # 409: an earlier attempt was stored after all, or the run before it has not quite ended.
            assert answer is None or answer.status_code == 409, answer.text
            if (run_id := await self._run_of(conversation_id, content)) is not None:
                return run_id
            await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError(f"{content!r} could not be sent for {PATIENCE_SECONDS} s")

    async def _run_of(self, conversation_id: str, content: str) -> str | None:
        """The run of this message if it was stored as the newest of its conversation."""
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
        """The screen at the end of the run, read from as many processes as necessary.

        With `frames`, the client leaves each stream after so many frames and reconnects elsewhere.
        """
        screen = screen or Screen()
        async with asyncio.timeout(timeout):
            while screen.done is None:
                if not await self._read_one_stream(run_id, screen, frames):
                    await asyncio.sleep(PAUSE_SECONDS)
        return screen

    async def _read_one_stream(self, run_id: str, screen: Screen, frames: int) -> bool:
        """Reads one connection. Returns whether it showed anything."""
        screen.attach()
        headers = {**self._authorization()}
        if screen.last_id:
            headers["last-event-id"] = str(screen.last_id)
        frames_before = len(screen.frames)
        self.watching[id(screen)] = f"{run_id} at {screen.last_id}, asked for at {time.monotonic():.1f}"
        try:
            async with self._client.stream("GET", f"/runs/{run_id}/events", headers=headers) as response:
                if response.status_code in UNAVAILABLE:
                    return False
                assert response.status_code == 200, (await response.aread()).decode()
                stream = AsyncEventStream(response, screen)
                self._record_position(run_id, stream)
                async for _ in stream:
                    self._record_position(run_id, stream)
                    if frames and len(screen.frames) >= frames_before + frames and screen.done is None:
                        return True
        except httpx.TransportError:
            pass
        finally:
            self.watching.pop(id(screen), None)
        return len(screen.frames) > frames_before + 1

    def _record_position(self, run_id: str, stream: AsyncEventStream) -> None:
        screen = stream.screen
        last = screen.frames[-1].event if screen.frames else "nothing"
        self.watching[id(screen)] = (
            f"{run_id} at {screen.last_id}, {last} came at {time.monotonic():.1f}, "
            f"asked as {stream.response.headers.get('x-request-id')}"
        )

    @staticmethod
    def _make(url: str) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        # The server speaks plain HTTP; to load the certificates for TLS takes 20 ms.
        return httpx.AsyncClient(
            base_url=url, timeout=WAIT_SECONDS, limits=limits, trust_env=False, verify=False
        )


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Repeats the check until it is true; the caller bounds it by a timeout."""
    while True:
        if await is_so():
            return
        await asyncio.sleep(PAUSE_SECONDS / 2)


def check_refusal(response: httpx.Response) -> None:
    """Checks that a refusal is the envelope with a sentence, and not the page of a proxy."""
    failure = response.json()
    assert failure["success"] is False
    assert failure["code"] == response.status_code
    assert failure["detail"]["kind"]
