"""The server of the scripted provider, for tests of Luxx and of its users.

It speaks the dialects of all adapters, replies by the rules of a script (`script.py`), injects faults, and
fails on a call without a rule and on an unused rule. In a test, point a client at `server.url` inside
`async with ScriptedProvider(Script(rules=[…])) as server:`; on the command line, run
`python -m luxx.providers.scripted --script FILE.yaml --port 8099`.
Its prompt cache is that of the real servers: Anthropic caches up to the blocks that a request marks.
"""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from luxx.providers.scripted.dialects import dialect_writer_for, error_body, whole_body
from luxx.providers.scripted.http import (
    ClientConnection,
    ClientDisconnected,
    Received,
    Reply,
    overflow_body,
    parse_request,
    read_request,
)
from luxx.providers.scripted.prompt_cache import NO_CACHE, PromptCache, too_many_marks
from luxx.providers.scripted.script import (
    BYTES_PER_TOKEN,
    Counter,
    Faults,
    Gate,
    Pause,
    Rule,
    RuleMatcher,
    Script,
    ScriptedRequest,
    WireBytes,
    counted_reply,
    usual_count,
    write_stream,
)
from luxx.providers.scripted.vectors import embeddings_body

STOP_SECONDS = 5.0
_T = TypeVar("_T")


class ScriptBroken(AssertionError):
    """The script has no rule for a call, or a rule that no call used."""


class ScriptedProvider:
    """Serves one script. `async with` serves in the running event loop, `with` in its own thread.

    Leaving the block without an exception calls `check`. `requests` are in order of arrival; without
    `keeps_requests` none is kept. Patterns are searched in the first `searched_characters` of a text.
    `embeddings` are those of the script; a test may change them.
    With `api_key`, a request without this bearer token is refused. `counter` counts the tokens of a request's
    body and of what is replied, and replies report them.
    """

    def __init__(
        self,
        script: Script,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keeps_requests: bool = True,
        searched_characters: int | None = None,
        api_key: str | None = None,
        counter: Counter | None = None,
    ) -> None:
        self.requests: list[Received] = []
        self.unscripted: list[str] = []
        self.embeddings = script.embeddings
        self._keeps_requests = keeps_requests
        self._bearer = None if api_key is None else f"Bearer {api_key}"
        self._counter = counter
        self._script = script
        self._rules = RuleMatcher(script.rules, searched_characters)
        self._host = host
        self._port = port
        self._cache = PromptCache()
        self._gates: dict[str, asyncio.Event] = {}
        self._gate_reached: dict[str, asyncio.Event] = {}
        self._arrival = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The root, `http://host:port`; an OpenAI client may use it with or without `/v1`."""
        return f"http://{self.host_port}"

    @property
    def host_port(self) -> str:
        """Where it listens."""
        return f"{self._host}:{self._port}"

    def check(self) -> None:
        """Raises ScriptBroken with every call that has no rule and every unused rule."""
        problems = [f"no rule for this call: {call}" for call in self.unscripted]
        problems += [f"unused rule: {name}" for name in self._rules.unused()]
        if problems:
            raise ScriptBroken("; ".join(problems))

    def release(self, gate: str) -> None:
        """Opens a gate for good, from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._gate(gate).set)

    async def reached(self, gate: str, timeout: float = 10.0) -> None:
        """Waits until a reply reaches this gate. Raises TimeoutError. Only in the server's own loop."""
        async with asyncio.timeout(timeout):
            await self._gate_reached.setdefault(gate, asyncio.Event()).wait()

    async def arrived(self, count: int = 1, timeout: float = 10.0) -> None:
        """Waits until `count` requests arrived. Raises TimeoutError. Only in the server's own loop."""
        async with asyncio.timeout(timeout):
            while len(self.requests) < count:
                self._arrival.clear()
                await self._arrival.wait()

    def wait_closed(self, received: Received, timeout: float) -> None:
        """Like `Received.wait_closed`, for a test that does not run in the server's loop."""
        self._in_thread(received.wait_closed(timeout), timeout)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self._serve), self._host, self._port, backlog=2048
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes all sockets and ends all replies; does not call `check`."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if kind is None:
            self.check()

    def __enter__(self) -> Self:
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever, name="scripted-provider", daemon=True)
        self._thread.start()
        self._in_thread(self.start(), STOP_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._in_thread(self.stop(), STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()
        if kind is None:
            self.check()

    def _in_thread(self, work: Coroutine[Any, Any, _T], timeout: float) -> _T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout + 1)

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def _serve(self, connection: ClientConnection) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (received := await read_request(connection)) is not None:
                if self._keeps_requests:
                    self.requests.append(received)
                self._arrival.set()
                await self._answer(received)
                received.is_answered = True
        except (ClientDisconnected, ConnectionError):
            pass
        except asyncio.CancelledError:
            pass  # From `stop`; if it propagated, the event loop would log an error.
        finally:
            connection.writer.close()
            self._tasks.discard(task)

    async def _answer(self, received: Received) -> None:
        path = received.path.partition("?")[0]
        if self._bearer is not None and received.headers.get("authorization") != self._bearer:
            body = error_body(None, 401, "this server needs its API key")
            return await self._send_json(received, 401, body)
        if await self._answer_without_rule(received, path):
            return None
        request = parse_request(received.method, received.path, received.body)
        if request is not None and self._counter is not None:
            request = msgspec.structs.replace(request, tokens=self._counter(received.body.decode()))
        window = self._script.window
        if request is not None and window is not None and request.tokens + request.max_tokens > window:
            received.rule = "overflow"
            return await self._send_json(received, 400, overflow_body(request, window))
        rule = self._rules.find_rule(request) if request is not None else None
        if request is None or rule is None:
            call = f"{received.method} {received.path}"
            if request is not None:
                call += f" (model {request.model!r}, last user message {request.user[:200]!r})"
            self.unscripted.append(call)
            body = error_body(request, 500, f"The script has no rule for this call: {call}")
            return await self._send_json(received, 500, body)
        received.rule = rule.name
        use = self._cache.use(request, received.body) if self._script.caches else NO_CACHE
        if (refusal := too_many_marks(use)) is not None:
            return await self._send_json(received, 400, refusal)
        if self._script.caches or window is not None or self._counter is not None:
            if self._counter is not None:
                use = use.scaled(request.tokens, len(received.body) // BYTES_PER_TOKEN)
            received.tokens, received.cached_tokens = request.tokens, use.read
            count = self._counter or usual_count
            reply = counted_reply(rule.reply, request.tokens, use.read, use.written, count)
            rule = msgspec.structs.replace(rule, reply=reply)
        if rule.status != 200 or rule.body is not None:
            return await self._send_failure(received, request, rule)
        if not request.stream:
            body = msgspec.json.encode(whole_body(request, rule.reply))
            return await self._send(received, 200, rule.headers, body, rule.faults)
        return await self._send_stream(received, request, rule)

    async def _pass(self, received: Received, gate: str) -> None:
        self._gate_reached.setdefault(gate, asyncio.Event()).set()
        await received.connection.wait_for(self._gate(gate).wait())

    async def _answer_without_rule(self, received: Received, path: str) -> bool:
        """Answers a request for the models or for embeddings."""
        if received.method == "GET" and path.endswith("/models"):
            await self._send_json(received, self._script.models_status, self._models(path))
            return True
        vectors = self.embeddings
        body = None if vectors is None else embeddings_body(path, received.body, vectors)
        if vectors is None or body is None:
            return False
        received.rule = "embeddings"
        if vectors.gate:
            await self._pass(received, vectors.gate)
        if vectors.status >= 400:
            body = error_body(None, vectors.status, "scripted failure")
        await self._send_json(received, vectors.status, body)
        return True

    async def _send_stream(self, received: Received, request: ScriptedRequest, rule: Rule) -> None:
        is_array = request.dialect == "gemini_array"
        kind = "application/json" if is_array else "text/event-stream; charset=utf-8"
        reply = Reply(received.connection, rule.faults)
        await reply.begin(200, {"content-type": kind, **rule.headers}, size=None)
        dialect_writer = dialect_writer_for(request, is_crlf=rule.crlf)
        for action in write_stream(rule.reply, dialect_writer):
            match action:
                case Gate():
                    await self._pass(received, action.name)
                case Pause():
                    await received.connection.wait_for(asyncio.sleep(action.seconds))
                case WireBytes():
                    if rule.delay and action.is_delta:
                        await received.connection.wait_for(asyncio.sleep(rule.delay))
                    await reply.write(action.data)
        await reply.finish()

    async def _send_failure(self, received: Received, request: ScriptedRequest, rule: Rule) -> None:
        body = rule.body.encode() if rule.body is not None else b""
        if rule.body is None and rule.status >= 400:
            body = msgspec.json.encode(error_body(request, rule.status, rule.message))
        await self._send(received, rule.status, rule.headers, body, rule.faults)

    async def _send_json(self, received: Received, status: int, value: Any) -> None:
        await self._send(received, status, {}, msgspec.json.encode(value), Faults())

    async def _send(
        self, received: Received, status: int, headers: dict[str, str], body: bytes, faults: Faults
    ) -> None:
        reply = Reply(received.connection, faults)
        await reply.begin(status, {"content-type": "application/json", **headers}, size=len(body))
        await reply.write(body)
        await reply.finish()

    def _models(self, path: str) -> dict[str, Any]:
        if "/v1beta/" in path:
            return {"models": [{"name": f"models/{name}"} for name in self._script.models]}
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "type": "model"} for name in self._script.models],
        }
