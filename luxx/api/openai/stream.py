"""Sends answers: waits for a whole one, or streams it. A call that stores nothing ends with its request."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import msgspec
import structlog
from litestar import Request, Response
from litestar.types import Send

from luxx.api.http.envelope import openai_failure
from luxx.api.http.errors import DATABASE_DOWN_ERRORS
from luxx.api.http.event_streams import (
    DISCONNECT_KEY,
    ClientDisconnect,
    OpenStream,
    PreparedResponse,
    Streams,
)
from luxx.api.openai.answer import Answer, AnswerFailure, AnswerReader, CollectedAnswer
from luxx.domain.accounts.caller import Caller
from luxx.errors import LuxxError
from luxx.runs.streams.watch import FrameEncoder, RunWatch
from luxx.wire.run import RunKind

StartWatch = Callable[[FrameEncoder], Awaitable[RunWatch]]
"""Starts a run and watches it with this encoder."""

EndCall = Callable[[str], Awaitable[object]]
"""Ends the call of this id, which stores nothing, once its client was served or is gone."""

CheckAccess = Callable[[str], Awaitable[object]]
"""Raises NotFound for a run that the caller may not see."""

CUT = AnswerFailure(
    status=503,
    message="this server is stopping; send the request again in a moment",
    kind="stopping",
    retryable=True,
)
GONE = AnswerFailure(status=499, message="the client disconnected", kind="disconnected", retryable=False)

logger = structlog.get_logger()


class AnswerStream(OpenStream):
    """The ASGI application that sends the stream of an answer.

    The response starts with the first bytes of the answer, so that a run that fails before gets the status
    of its failure.
    """

    __slots__ = ("_end_call", "_reader")

    def __init__(
        self,
        watch: RunWatch,
        caller: Caller,
        streams: Streams,
        reader: AnswerReader,
        end_call: EndCall | None,
    ) -> None:
        super().__init__(watch, caller, streams)
        self._reader = reader
        self._end_call = end_call

    async def _send(self, send: Send, raw_send: Send) -> None:
        try:
            await self._send_answer(send, raw_send)
        finally:
            if self._end_call is not None:
                await _end_quietly(self._end_call, self.run.id)

    async def _send_answer(self, send: Send, raw_send: Send) -> None:
        watch, reader = self._watch, self._reader
        with watch.attached():
            data = await self._next()
            if reader.failure is not None or not data:
                await _send_failure(send, reader.failure or (CUT if watch.is_cut else GONE))
                return
            await self._start(send)
            while data:
                await raw_send({"type": "http.response.body", "body": data, "more_body": True})
                data = b"" if reader.is_over else await self._next()
        last = b"" if reader.is_over else reader.on_failure(CUT)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _next(self) -> bytes:
        try:
            return await self._watch.next()
        except DATABASE_DOWN_ERRORS as error:
            logger.warning("stream_aborted", error=str(error))
            return b""


async def stream_answer(
    caller: Caller, streams: Streams, start: StartWatch, reader: AnswerReader, end_call: EndCall | None
) -> PreparedResponse:
    """The response that streams an answer. Raises TooMany before it calls `start`, and what that raises."""
    streams.limit.acquire(caller.user_id)
    try:
        watch = await start(reader)
        return PreparedResponse(AnswerStream(watch, caller, streams, reader, end_call))
    except BaseException:
        streams.limit.release(caller.user_id)
        raise


async def collect_answer(
    request: Request[Any, Any, Any],
    start: StartWatch,
    reader: CollectedAnswer,
    end_call: EndCall | None,
    check_access: CheckAccess,
) -> Answer | AnswerFailure:
    """Waits until `reader` has the whole answer; the failure, if there is none. Raises what `check_access`
    raises for a caller who has lost the room meanwhile."""
    scope = cast("dict[str, Any]", request.scope)
    disconnect: ClientDisconnect = scope.get(DISCONNECT_KEY) or ClientDisconnect()
    watch = await start(reader)
    disconnect.add_callback(watch.stop)
    try:
        with watch.attached():
            while not reader.is_over and await watch.next():
                pass
    finally:
        disconnect.remove_callback(watch.stop)
        if end_call is not None:
            await _end_quietly(end_call, watch.run.id)
    if end_call is None and watch.run.kind == RunKind.ROOM:
        await check_access(watch.run.id)
    if reader.answer is not None:
        return reader.answer
    return reader.failure or (CUT if watch.is_cut else GONE)


def failure_response(failure: AnswerFailure) -> Response[Any]:
    """The response for a run without an answer."""
    body = openai_failure(failure.status, failure.message, failure.kind)
    headers = {name.decode(): value.decode() for name, value in _headers(failure)}
    return Response(body, status_code=failure.status, media_type="application/json", headers=headers)


def _headers(failure: AnswerFailure) -> list[tuple[bytes, bytes]]:
    # Luxx has made the call again where that may help: a client that repeats it would double that.
    retry = b"true" if failure.retryable and failure.status == 503 else b"false"
    headers = [(b"x-should-retry", retry)]
    return [*headers, (b"retry-after", b"5")] if failure.status == 429 else headers


async def _send_failure(send: Send, failure: AnswerFailure) -> None:
    body = msgspec.json.encode(openai_failure(failure.status, failure.message, failure.kind))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    start = {
        "type": "http.response.start", "status": failure.status, "headers": [*headers, *_headers(failure)],
    }  # fmt: skip
    await send(start)  # pyright: ignore[reportArgumentType]
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _end_quietly(end_call: EndCall, run_id: str) -> None:
    with suppress(LuxxError, *DATABASE_DOWN_ERRORS):
        await end_call(run_id)
