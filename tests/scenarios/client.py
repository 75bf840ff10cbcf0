"""A client that signs in, connects a model, sends messages, follows runs and reconnects to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx
from api.server_process import ADMIN_PASSWORD

from scenarios.screen import Frame, FrameReader, Screen

Json = dict[str, Any]

WAIT_SECONDS = 30.0
USERNAME = "admin"


class AsyncEventStream:
    """The frames of one connection. `reader` counts bytes and comments."""

    def __init__(self, response: httpx.Response, screen: Screen) -> None:
        self.response = response
        self.screen = screen
        self.reader = FrameReader()
        self._frames = self._read()
        self._waiting: list[Frame] = []

    def __aiter__(self) -> AsyncIterator[Frame]:
        return self._frames

    async def _read(self) -> AsyncIterator[Frame]:
        async for data in self.response.aiter_raw():
            for frame in self.reader.feed(data):
                self.screen.show(frame)
                yield frame

    async def until(self, event: str, *, timeout: float = WAIT_SECONDS, **step: Any) -> Frame:
        """Reads to the next event of this type whose step has these values."""
        async with asyncio.timeout(timeout):
            async for frame in self._frames:
                if frame.event == event and all(frame.step.get(name) == step[name] for name in step):
                    return frame
        raise AssertionError(f"the stream ended before {event} {step}")

    async def to_the_end(self, timeout: float = WAIT_SECONDS) -> Screen:
        """Reads until the server closes the stream."""
        async with asyncio.timeout(timeout):
            async for _ in self._frames:
                pass
        return self.screen


class AsyncApiClient:
    """The administrator at one server; `reconnect_to` takes the address after a restart."""

    def __init__(self, url: str, token: str = "") -> None:
        self.token = token
        self._client = self._make(url)

    async def __aenter__(self) -> Self:
        if not self.token:
            signed_in = await self.post("/auth/login", {"username": USERNAME, "password": ADMIN_PASSWORD})
            self.token = signed_in["access_token"]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def reconnect_to(self, url: str) -> None:
        await self._client.aclose()
        self._client = self._make(url)

    async def ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> httpx.Response:
        """Returns the response unchecked."""
        return await self._client.request(
            method, path, json=body, params=query, headers={**self._authorization(), **(headers or {})}
        )

    @asynccontextmanager
    async def streaming(
        self, method: str, path: str, headers: dict[str, str] | None = None, **query: Any
    ) -> AsyncIterator[httpx.Response]:
        """A response that is read while it arrives."""
        all_headers = {**self._authorization(), **(headers or {})}
        async with self._client.stream(method, path, params=query, headers=all_headers) as response:
            if response.status_code != 200:
                raise AssertionError((await response.aread()).decode())
            yield response

    async def get(self, path: str, **query: Any) -> Any:
        return _data(await self.ask("GET", path, **query))

    async def post(self, path: str, body: Json | None = None, **query: Any) -> Any:
        return _data(await self.ask("POST", path, body, **query))

    async def connect(self, url: str, provider_type: str = "openai", model: str = "scripted") -> int:
        """Creates a provider with this address. Returns its id."""
        body = {
            "name": url,
            "provider_type": provider_type,
            "base_url": f"{url}/v1" if provider_type == "openai" else url,
            "api_key": "sk-a-key",
            "default_model": model,
        }
        return (await self.post("/providers", body))["id"]

    async def conversation(self, provider_url: str) -> str:
        """Creates a conversation with the model at this address. Returns its id."""
        provider_id = await self.connect(provider_url)
        return (await self.post("/conversations", {"provider_id": provider_id}))["id"]

    @asynccontextmanager
    async def send_and_follow(
        self, conversation_id: str, content: str = "Hello", *, accumulated: bool = False, **more: Any
    ) -> AsyncIterator[AsyncEventStream]:
        """Sends a message and follows its run."""
        body = {"conversation_id": conversation_id, "content": content, **more}
        query = {"accumulated": "1"} if accumulated else {}
        async with self._post_and_follow("/messages/stream", body, query) as stream:
            yield stream

    @asynccontextmanager
    async def invoke_and_follow(
        self, agent_id: int, content: str = "Hello", **more: Any
    ) -> AsyncIterator[AsyncEventStream]:
        """Calls an agent without a conversation and follows its run."""
        body = {"content": content, **more}
        async with self._post_and_follow(f"/agents/{agent_id}/invoke", body, {}) as stream:
            yield stream

    @asynccontextmanager
    async def compress_and_follow(self, conversation_id: str) -> AsyncIterator[AsyncEventStream]:
        """Has a conversation compressed and follows the run."""
        async with self._post_and_follow(f"/conversations/{conversation_id}/compress", {}, {}) as stream:
            yield stream

    @asynccontextmanager
    async def _post_and_follow(
        self, path: str, body: Json, query: Json, screen: Screen | None = None
    ) -> AsyncIterator[AsyncEventStream]:
        headers = {**self._authorization(), "accept": "text/event-stream"}
        async with self._client.stream("POST", path, json=body, params=query, headers=headers) as response:
            if response.status_code != 200:
                raise AssertionError((await response.aread()).decode())
            yield AsyncEventStream(response, screen or Screen())

    @asynccontextmanager
    async def plan_and_follow(self, screen: Screen, **body: Any) -> AsyncIterator[AsyncEventStream]:
        """Asks for a plan and follows its run."""
        async with self._post_and_follow("/tasks/plan", body, {}, screen) as stream:
            yield stream

    async def start_run(self, conversation_id: str, content: str = "Hello", **more: Any) -> Json:
        """Sends a message without following it. Returns the run."""
        body = {"conversation_id": conversation_id, "content": content, **more}
        response = await self.ask("POST", "/messages/stream", body, headers={"accept": "application/json"})
        assert response.status_code == 202, response.text
        return response.json()["data"]

    @asynccontextmanager
    async def follow(
        self, run_id: str, screen: Screen | None = None, *, in_query: bool = False, **query: Any
    ) -> AsyncIterator[AsyncEventStream]:
        """Attaches to a run after the last event that the screen shows."""
        screen = screen or Screen()
        screen.attach()
        headers = self._authorization()
        if screen.last_id and in_query:
            query["last_event_id"] = screen.last_id
        elif screen.last_id:
            headers["last-event-id"] = str(screen.last_id)
        async with self._client.stream(
            "GET", f"/runs/{run_id}/events", params=query, headers=headers
        ) as response:
            if response.status_code != 200:
                raise AssertionError((await response.aread()).decode())
            yield AsyncEventStream(response, screen)

    async def wait_for_end(self, run_id: str, screen: Screen | None = None) -> Screen:
        """The screen at the end of the run, within a long timeout."""
        async with self.follow(run_id, screen) as stream:
            return await stream.to_the_end()

    async def follow_all(self, run_id: str) -> None:
        """Reads the stream of a run with several turns to its end."""
        async with self.streaming("GET", f"/runs/{run_id}/events") as response:
            async for _ in response.aiter_raw():
                pass

    async def until_status(self, run_id: str, status: str, *, last_seq: int = 0) -> None:
        """Waits until the run has this status and at least this many events."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                run = await self.run(run_id)
                if run["status"] == status and run["last_seq"] >= last_seq:
                    return
                await asyncio.sleep(0.05)

    async def cancel(self, run_id: str) -> httpx.Response:
        return await self.ask("POST", f"/runs/{run_id}/cancel")

    async def run(self, run_id: str) -> Json:
        return await self.get(f"/runs/{run_id}")

    async def messages(self, conversation_id: str) -> list[Json]:
        """Oldest first."""
        items: list[Json] = []
        total, number = 1, 1
        while len(items) < total:
            page = await self.get("/messages", conversation_id=conversation_id, page=number, page_size=100)
            assert page["items"] or not page["total"], f"page {number} of {page['total']} messages is empty"
            items, total, number = [*items, *page["items"]], page["total"], number + 1
        return items[::-1]

    async def message(self, conversation_id: str, message_id: str) -> Json:
        matching = [
            message for message in await self.messages(conversation_id) if message["id"] == message_id
        ]
        assert len(matching) == 1, f"{len(matching)} messages have the id {message_id}"
        return matching[0]

    async def answer_shown_by(self, conversation_id: str, screen: Screen) -> Json:
        """The stored message of an ended run; checks that it is what the screen shows."""
        assert screen.done is not None, "the stream ended without done"
        message = await self.message(conversation_id, screen.done["message_id"])
        assert message["steps"] == screen.ordered()
        assert message["text"] == message["content"] == screen.text
        return message

    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    @staticmethod
    def _make(url: str) -> httpx.AsyncClient:
        # Servers end idle connections after 5 seconds; a request on one that ends just then fails.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2)
        # The server speaks plain HTTP; to load the certificates for TLS takes 20 ms.
        return httpx.AsyncClient(
            base_url=url, timeout=WAIT_SECONDS, limits=limits, trust_env=False, verify=False
        )


def _data(response: httpx.Response) -> Any:
    assert response.is_success, f"{response.request.method} {response.request.url}: {response.text}"
    body = response.json()
    assert body["success"] is True
    return body["data"]
