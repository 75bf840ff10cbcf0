"""Each failure between the client and a provider's server has its own error."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from email.utils import format_datetime

import pytest
from provider_calls import ASK, KEY, ask_scripted, calling, target_of

from luxx.errors import (
    ContextTooLong,
    KeyRefused,
    MalformedStream,
    Overloaded,
    ProviderError,
    ProviderFailed,
    ProviderRefused,
    RateLimited,
    StreamInterrupted,
    StreamStalled,
    Unreachable,
)
from luxx.infra.clock import utc_now
from luxx.providers.scripted import Faults, Gate, Rule, Script, ScriptedProvider, Text

HELLO = Text(text="one two three four")


async def ignore(_retry: object) -> None:
    """For streams that must not be retried."""


@asynccontextmanager
async def serving(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]):
    """A TCP server for behaviour that no HTTP server has; gives its URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, ProviderRefused, False),
        (401, KeyRefused, False),
        (403, ProviderRefused, False),
        (404, ProviderRefused, False),
        (408, ProviderFailed, True),
        (413, ContextTooLong, False),
        (422, ProviderRefused, False),
        (429, RateLimited, True),
        (500, ProviderFailed, True),
        (503, Overloaded, True),
        (529, Overloaded, True),
    ],
)
async def test_http_status_has_its_error_with_the_servers_message(
    status: int, kind: type[ProviderError], retryable: bool
) -> None:
    called = await ask_scripted(Rule(status=status, message="the reason"))

    assert type(called.error) is kind
    assert called.error.retryable is retryable
    assert called.error.status == status
    assert "the reason" in called.error.message


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens.",
        "prompt is too long: 300000 tokens > 200000 maximum",
        "the request exceeds the available context size",
    ],
)
async def test_prompt_that_does_not_fit_has_its_own_error(message: str) -> None:
    assert isinstance((await ask_scripted(Rule(status=400, message=message))).error, ContextTooLong)


async def test_retry_after_is_read_as_seconds_and_as_a_date() -> None:
    in_20_s = format_datetime(utc_now() + timedelta(seconds=20), usegmt=True)

    as_seconds = (await ask_scripted(Rule(status=429, headers={"retry-after": "7"}))).error
    as_date = (await ask_scripted(Rule(status=429, headers={"retry-after": in_20_s}))).error

    assert isinstance(as_seconds, RateLimited)
    assert as_seconds.retry_after == 7
    assert isinstance(as_date, RateLimited)
    assert as_date.retry_after is not None
    assert 15 < as_date.retry_after <= 20


async def test_unused_port_is_unreachable() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        async with calling() as caller:
            result = (await caller.call(target_of(url))).error
        assert isinstance(result, Unreachable)


async def test_https_to_a_server_without_tls_is_unreachable() -> None:
    async with ScriptedProvider(Script(rules=[])) as server, calling() as caller:
        result = (await caller.call(target_of(server.url.replace("http:", "https:")))).error
    assert isinstance(result, Unreachable)


@pytest.mark.parametrize("url", ["ftp://host", "not a url", "http://", "http://[::1"])
async def test_invalid_base_url_is_refused(url: str) -> None:
    async with calling() as caller:
        result = (await caller.call(target_of(url))).error
    assert isinstance(result, ProviderRefused)


@pytest.mark.parametrize("faults", [Faults(never_start=True), Faults(stall_at=0)])
async def test_answer_that_never_starts_stalls_and_says_so(faults: Faults) -> None:
    called = await ask_scripted(Rule(reply=[HELLO], faults=faults), idle_timeout_seconds=0.2)

    assert isinstance(called.error, StreamStalled)
    assert "did not start" in called.error.message


async def test_silence_in_the_middle_stalls_and_keeps_what_came() -> None:
    rule = Rule(reply=[HELLO], faults=Faults(stall_at=400))

    called = await ask_scripted(rule, idle_timeout_seconds=0.2, retries=3)

    assert isinstance(called.error, StreamStalled)
    assert "in the middle of its response" in called.error.message
    assert called.text.startswith("one")
    assert called.retries == []


async def test_server_that_does_not_read_the_request_stalls() -> None:
    done = asyncio.Event()

    async def ignore_request(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()
        await done.wait()

    huge = [type(ASK.messages[0])(text="x" * 20_000_000)]
    settings = {"connect_timeout_seconds": 0.2, "idle_timeout_seconds": 0.2}
    async with serving(ignore_request) as url, calling(**settings) as caller:
        called = await caller.call(target_of(url), type(ASK)(model="m", messages=huge))
        done.set()
        result = called.error
    assert isinstance(result, StreamStalled)


@pytest.mark.parametrize("at", [0, 400])
async def test_closed_socket_in_the_body_is_a_drop(at: int) -> None:
    called = await ask_scripted(Rule(reply=[HELLO], faults=Faults(drop_at=at)))

    assert isinstance(called.error, StreamInterrupted)
    assert called.text == ("" if at == 0 else "one")


async def test_closed_socket_before_any_answer_is_a_drop() -> None:
    async def hang_up(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with serving(hang_up) as url, calling() as caller:
        result = (await caller.call(target_of(url))).error
    assert isinstance(result, StreamInterrupted)


async def test_drop_after_a_whole_answer_loses_nothing() -> None:
    called = await ask_scripted(Rule(reply=[HELLO], faults=Faults(drop_at=10**9)))

    assert called.error is None
    assert called.text == HELLO.text


async def test_body_left_open_after_done_ends_the_answer() -> None:
    started = time.monotonic()
    called = await ask_scripted(Rule(reply=[HELLO], faults=Faults(keep_open=True)))

    assert called.error is None
    assert called.text == HELLO.text
    assert time.monotonic() - started < 3


async def test_garbled_bytes_are_garbled() -> None:
    called = await ask_scripted(Rule(reply=[HELLO], faults=Faults(garble_at=400)))

    assert isinstance(called.error, MalformedStream)


async def test_server_that_speaks_no_http_is_garbled() -> None:
    async def mumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await writer.drain()

    async with serving(mumble) as url, calling() as caller:
        result = (await caller.call(target_of(url))).error
    assert isinstance(result, MalformedStream)


async def test_web_page_instead_of_an_answer_is_garbled() -> None:
    rule = Rule(body="<html>Welcome</html>", headers={"content-type": "text/html"})

    error = (await ask_scripted(rule)).error

    assert isinstance(error, MalformedStream)
    assert "base_url" in error.message


async def test_redirect_is_not_followed() -> None:
    rule = Rule(status=302, headers={"location": "http://127.0.0.1:1/elsewhere"})
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        error, requests = (await caller.call(target_of(server.url))).error, len(server.requests)

    assert isinstance(error, ProviderRefused)
    assert "elsewhere" in error.message
    assert requests == 1


async def test_key_is_never_in_a_message() -> None:
    said = f"Incorrect API key provided: {KEY}. Bearer {KEY} was sent"

    for rule in (
        Rule(status=401, message=said),
        Rule(status=302, headers={"location": f"http://x/?key={KEY}"}),
        Rule(body=said),
    ):
        error = (await ask_scripted(rule)).error
        assert error is not None
        assert KEY not in error.message
        assert KEY not in repr(error)


async def test_long_error_is_cut() -> None:
    error = (await ask_scripted(Rule(status=500, message="x" * 100_000))).error

    assert error is not None
    assert len(error.message) < 700


async def test_error_body_that_never_ends_is_cut() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Oops\r\n\r\nbroken")
        await reader.read()

    async with serving(drip) as url, calling(idle_timeout_seconds=0.2) as caller:
        error = (await caller.call(target_of(url))).error

    assert isinstance(error, ProviderFailed)
    assert error.status == 500


async def test_connection_is_used_again_after_a_whole_answer() -> None:
    async with ScriptedProvider(Script(rules=[Rule(reply=[HELLO])])) as server, calling() as caller:
        for _ in range(3):
            assert (await caller.call(target_of(server.url))).error is None
        result = len({id(request.connection) for request in server.requests})
    assert result == 1


async def test_cookies_of_one_answer_are_not_sent_with_the_next_request() -> None:
    rule = Rule(reply=[HELLO], headers={"set-cookie": "user=alice; Path=/"})
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        for _ in range(2):
            await caller.call(target_of(server.url))
        result = [request.headers.get("cookie") for request in server.requests]
    assert result == [None, None]


@pytest.mark.parametrize("moment", ["before the head", "in the body"])
async def test_cancelling_the_reader_closes_the_socket_at_once(moment: str) -> None:
    faults = Faults(never_start=moment == "before the head")
    rule = Rule(reply=[Text(text="begun"), Gate(name="held")], faults=faults)
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        begun = asyncio.Event()

        async def read() -> None:
            async with caller.client.stream_completion(ASK, target_of(server.url), on_retry=ignore) as answer:
                while await answer.read():
                    begun.set()

        task = asyncio.create_task(read())
        if moment == "in the body":
            await asyncio.wait_for(begun.wait(), 5)
        else:
            await server.arrived()
        cancelled_at = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.requests[0].wait_closed(0.5)
        closed_at = server.requests[0].closed_at
        assert closed_at is not None
        result = closed_at - cancelled_at
    assert result < 0.5


async def test_leaving_the_stream_early_closes_the_socket() -> None:
    rule = Rule(reply=[Text(text="begun"), Gate(name="held")])
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        async with caller.client.stream_completion(ASK, target_of(server.url), on_retry=ignore) as answer:
            assert await answer.read()
        await server.requests[0].wait_closed(0.5)


async def test_a_hundred_streams_run_at_once() -> None:
    rule = Rule(reply=[Text(text="a b "), Gate(name="all here"), Text(text="c")])
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        calls = [asyncio.create_task(caller.call(target_of(server.url))) for _ in range(100)]
        await server.arrived(100)
        server.release("all here")
        result = [(await call).text for call in calls]
    assert result == ["a b c"] * 100


async def test_proxy_of_the_environment_is_used_but_not_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = ScriptedProvider(Script(rules=[Rule(reply=[Text(text="by proxy")])]))
    direct = ScriptedProvider(Script(rules=[Rule(reply=[Text(text="direct")])]))
    async with proxy, direct:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with calling() as caller:
            far = await caller.call(target_of("http://models.example"))
            near = await caller.call(target_of(direct.url))
        result = far.text, near.text
    assert result == ("by proxy", "direct")
