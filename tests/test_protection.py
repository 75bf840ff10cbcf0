"""The protection middleware, by raw ASGI calls and through Litestar; and the routes of the service itself."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
import pytest
from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from litestar.di import Provide
from litestar.params import FromPath
from litestar.response import Stream
from litestar.testing import TestClient

from luxx.api.http.envelope import Failure
from luxx.api.http.security import DETACHED_STREAM_KEY, protection
from luxx.api.routes.service import ProbeController, ServiceInfoController, ServiceState
from luxx.domain.accounts.caller import Peer
from luxx.errors import LuxxError, NotAllowed, Unavailable
from luxx.infra.bus.core import Bus
from luxx.infra.config.schema import AppConfig, Config, FilesConfig, ServerConfig
from luxx.infra.observe import Metrics

Message = dict[str, Any]
Sent = list[Message]


def config(host: str = "127.0.0.1", **server: Any) -> Config:
    return Config(
        app=AppConfig(host=host),
        server=ServerConfig(**{"max_body_mb": 0.001, **server}),
        files=FilesConfig(max_upload_mb=0.01),
    )


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body and answers with its size."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-size", str(size).encode())]})
    await send({"type": "http.response.body", "body": str(size).encode(), "more_body": False})


def call(
    settings: Config,
    method: str = "GET",
    path: str = "/",
    headers: Iterable[tuple[bytes, bytes]] = ((b"host", b"localhost"),),
    body: Iterable[bytes] = (),
    *,
    app: Any = echo,
    kind: str = "http",
    server: tuple[str, int] = ("192.0.2.7", 8000),
    metrics: Metrics | None = None,
    extensions: dict[str, Any] | None = None,
) -> Sent:
    """The messages sent in answer to one raw ASGI call."""
    pieces = [*body]
    arriving: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    ] or [{"type": "http.request", "body": b"", "more_body": False}]
    if kind == "websocket":
        arriving = [{"type": "websocket.connect"}]
    sent: Sent = []

    async def receive() -> Message:
        return arriving.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [*headers],
        "server": server,
        "extensions": extensions,
    }
    asyncio.run(protection(settings, metrics or Metrics())(app)(scope, receive, send))  # type: ignore
    return sent


def status(sent: Sent) -> int:
    return sent[0]["status"]


def failure(sent: Sent) -> Failure:
    return msgspec.json.decode(sent[1]["body"], type=Failure)


def with_host(host: str, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b"host", host.encode("latin-1")), *more]


# --- Host -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "luxx.localhost",
        "127.0.0.1:8000",
        "127.8.8.8",
        "[::1]:8000",
        "localhost.",
    ],
)
def test_loopback_names_are_answered_when_no_hosts_are_listed(host: str) -> None:
    assert status(call(config(), headers=with_host(host))) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "192.0.2.8",
        "127.0.0.1.evil.example",
        "[2001:db8::1]",
        "2130706433",
    ],
)
def test_a_foreign_host_is_refused_with_a_reason(host: str) -> None:
    sent = call(config(), headers=with_host(host))
    assert status(sent) == 403
    assert failure(sent).code == 403
    assert failure(sent).detail == {"kind": "host_not_allowed"}
    assert "server.allowed_hosts" in failure(sent).error


@pytest.mark.parametrize(
    "host", ["", "a b", "localhost/x", "a@localhost", "localhost:port", "[::1", "löcal", "a,b"]
)
def test_a_malformed_host_is_a_bad_request(host: str) -> None:
    sent = call(config(), headers=with_host(host))
    assert (status(sent), failure(sent).detail) == (400, {"kind": "invalid_host"})


def test_no_host_and_two_hosts_are_bad_requests() -> None:
    assert status(call(config(), headers=[])) == 400
    assert status(call(config(), headers=with_host("localhost", (b"host", b"localhost")))) == 400


def test_the_bound_name_and_the_address_of_the_connection_are_answered() -> None:
    assert status(call(config("luxx.internal"), headers=with_host("luxx.internal:8000"))) == 200
    assert status(call(config("0.0.0.0"), headers=with_host("192.0.2.7:8000"))) == 200


def test_a_host_is_not_trusted_because_the_server_name_repeats_it() -> None:
    sent = call(config("0.0.0.0"), headers=with_host("evil.example"), server=("evil.example", 80))
    assert status(sent) == 403


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("luxx.example.org", 200),
        ("LUXX.example.org:9000", 200),
        ("a.wild.example.org", 200),
        ("wild.example.org", 403),
        ("evilwild.example.org", 403),
        ("pinned.example.org:8443", 200),
        ("pinned.example.org", 403),
        ("[2001:db8::1]:80", 200),
        ("localhost", 403),
    ],
)
def test_listed_hosts_are_the_only_ones(host: str, expected: int) -> None:
    listed = ["Luxx.example.org", "*.wild.example.org", "pinned.example.org:8443", "2001:db8::1"]
    assert status(call(config(allowed_hosts=listed), headers=with_host(host))) == expected


def test_a_star_allows_any_host() -> None:
    assert status(call(config(allowed_hosts=["*"]), headers=with_host("any.example"))) == 200


# --- Origin -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "PROPFIND"])
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://localhost:9000",
        "https://localhost.evil.example",
        "localhost:8000",
    ],
)
def test_a_foreign_origin_may_change_nothing(method: str, origin: str) -> None:
    sent = call(config(), method, headers=with_host("localhost:8000", (b"origin", origin.encode())))
    assert (status(sent), failure(sent).detail) == (403, {"kind": "origin_not_allowed"})


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("localhost", "https://LOCALHOST"),
        ("localhost:80", "http://localhost"),
        ("localhost", "https://localhost:443"),
    ],
)
def test_the_own_origin_may_change_things(host: str, origin: str) -> None:
    assert status(call(config(), "POST", headers=with_host(host, (b"origin", origin.encode())))) == 200


def test_a_foreign_origin_may_read_what_the_browser_will_not_show_it() -> None:
    assert (
        status(call(config(), "GET", headers=with_host("localhost", (b"origin", b"http://evil.example"))))
        == 200
    )


# --- sockets ----------------------------------------------------------------------------------------


async def accept(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})


def test_a_socket_from_the_own_page_is_accepted() -> None:
    headers = with_host("localhost:8000", (b"origin", b"http://localhost:8000"))
    assert call(config(), headers=headers, app=accept, kind="websocket") == [{"type": "websocket.accept"}]


@pytest.mark.parametrize(
    "headers",
    [with_host("evil.example"), with_host("localhost", (b"origin", b"http://evil.example")), []],
)
def test_a_foreign_socket_is_refused_before_the_handshake(headers: list[tuple[bytes, bytes]]) -> None:
    [closed] = call(config(), headers=headers, app=accept, kind="websocket")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    extensions: dict[str, Any] = {"websocket.http.response": {}}
    sent = call(config(), headers=headers, app=accept, kind="websocket", extensions=extensions)
    assert [message["type"] for message in sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert failure(sent).success is False


def test_a_scope_that_is_no_request_passes_through() -> None:
    types: list[str] = []

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        types.append(scope["type"])

    call(config(), app=lifespan, kind="lifespan")
    assert types == ["lifespan"]


# --- bodies -----------------------------------------------------------------------------------------

LIMIT = 1048
UPLOAD_LIMIT = 10485


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/messages", LIMIT),
        ("/filesystem", LIMIT),
        ("/files", UPLOAD_LIMIT),
        ("//files/", UPLOAD_LIMIT),
        ("/files/7", LIMIT),
        ("/conversations", LIMIT),
        ("/conversations/import", UPLOAD_LIMIT),
        ("/conversations/import/fork", LIMIT),
    ],
)
def test_a_body_is_refused_past_its_limit_whether_announced_or_chunked(path: str, limit: int) -> None:
    def announced(size: int) -> Sent:
        headers = with_host("localhost", (b"content-length", str(size).encode()))
        return call(config(), "POST", path, headers, [b"x" * size])

    def chunked(size: int) -> Sent:
        headers = with_host("localhost", (b"transfer-encoding", b"chunked"))
        return call(config(), "POST", path, headers, [b"x" * (size - size // 2), b"x" * (size // 2)])

    for send in (announced, chunked):
        assert status(send(limit)) == 200
        refused = send(limit + 1)
        assert status(refused) == 413
        assert failure(refused).detail == {"kind": "too_large"}
        assert (b"connection", b"close") in refused[0]["headers"]


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"", b"9" * 400, b"0x10", "٣".encode()])
def test_an_invalid_length_is_refused(length: bytes) -> None:
    assert status(call(config(), "POST", headers=with_host("localhost", (b"content-length", length)))) == 413


def test_a_chunked_body_is_refused_while_it_arrives_and_never_collected() -> None:
    taken = 0

    def endless() -> Iterable[bytes]:
        for _ in range(100):
            yield b"x" * 500

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        nonlocal taken
        while True:
            await receive()
            taken += 1

    sent = call(config(), "POST", body=endless(), app=counting)
    assert (status(sent), taken) == (413, 2)


def test_an_application_that_swallows_the_cut_still_answers_413() -> None:
    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        try:
            while True:
                await receive()
        except LuxxError:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"fine"})

    sent = call(config(), "POST", body=[b"x" * 2000], app=stubborn)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert status(sent) == 413


def test_a_cut_during_the_answer_ends_it_there() -> None:
    async def eager(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()

    sent = call(config(), "POST", body=[b"x" * 2000], app=eager)
    assert [message["type"] for message in sent] == ["http.response.start"]


# --- answers ----------------------------------------------------------------------------------------


def test_every_answer_carries_the_security_headers_and_an_id_also_a_refusal() -> None:
    ids: set[bytes] = set()
    for sent in (call(config()), call(config(), headers=with_host("evil.example"))):
        headers = dict(sent[0]["headers"])
        assert headers[b"x-content-type-options"] == b"nosniff"
        assert headers[b"referrer-policy"] == b"no-referrer"
        policy = headers[b"content-security-policy"].decode()
        for part in ("default-src 'self'", "img-src 'self' data: blob:", "frame-ancestors 'none'"):
            assert part in policy
        assert "unsafe" not in policy
        ids.add(headers[b"x-request-id"])
    assert len(ids) == 2


def test_a_page_may_set_its_own_content_security_policy() -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        own = [(b"content-security-policy", b"default-src 'none'")]
        await send({"type": "http.response.start", "status": 200, "headers": own})

    headers = call(config(), app=page)[0]["headers"]
    assert [value for name, value in headers if name == b"content-security-policy"] == [b"default-src 'none'"]


def test_an_exception_of_the_application_is_counted_and_raised() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    metrics = Metrics()
    with pytest.raises(RuntimeError, match="broken"):
        call(config(), app=broken, metrics=metrics)
    assert b'luxx_http_requests_total{method="GET",route="unknown",status="500"} 1.0' in metrics.render()


async def test_protection_costs_little() -> None:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Message) -> None:
        return

    headers = with_host("localhost:8000", *[(b"x-%d" % n, b"v") for n in range(8)])

    async def seconds(app: Any) -> float:
        best = 1.0
        for _ in range(20):
            started = time.process_time()
            for _ in range(100):
                await app(
                    {"type": "http", "method": "GET", "path": "/runs", "headers": headers, "server": None},
                    None,
                    send,
                )
            best = min(best, (time.process_time() - started) / 100)
        return best

    plain, guarded = await seconds(bare), await seconds(protection(config(), Metrics())(bare))  # type: ignore
    # About 12 µs on the machine this was written on; the bound allows for a slow and busy one.
    assert guarded - plain < 100e-6


# --- through Litestar -------------------------------------------------------------------------------


@get("/runs/{run_id:int}", sync_to_thread=False)
def read_run(run_id: FromPath[int]) -> dict[str, int]:
    return {"run_id": run_id}


@post("/messages", status_code=200)
async def read_body(request: Request[Any, Any, State]) -> dict[str, int]:
    return {"size": len(await request.body())}


@get("/stream", sync_to_thread=False)
def stream() -> Stream:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d\n" % number

    return Stream(pieces())


def answer_error(_request: Any, error: LuxxError) -> Response[Failure]:
    """Replaces the application's own error handler."""
    code = {Unavailable: 503, NotAllowed: 403}[type(error)]  # type: ignore
    return Response(Failure(error=error.message, code=code, detail=error.detail), status_code=code)


async def empty_handler() -> None:
    return


def client_for(
    settings: Config | None = None,
    *,
    is_local: bool = True,
    is_metrics_public: bool = False,
    checks: dict[str, Callable[[], Any]] | None = None,
    metrics: Metrics | None = None,
) -> TestClient[Litestar]:
    counted = metrics or Metrics()
    state = ServiceState(
        bus=Bus("alone"),
        version="1.2.3",
        database="sqlite",
        sandbox="bubblewrap",
        metrics=counted,
        is_metrics_public=is_metrics_public,
        checks={"database": empty_handler, "engine": empty_handler} if checks is None else checks,
    )
    app = Litestar(
        [read_run, read_body, stream, ProbeController, ServiceInfoController],
        dependencies={
            "service_state": Provide(lambda: state, sync_to_thread=False),
            "peer": Provide(lambda: Peer(address="192.0.2.9", is_local=is_local), sync_to_thread=False),
        },
        exception_handlers={LuxxError: answer_error},
        request_max_body_size=None,
    )
    app.asgi_handler = protection(settings or config(), counted)(app.asgi_handler)
    return TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


def test_routes_are_counted_by_their_template_and_unknown_paths_as_one() -> None:
    metrics = Metrics()
    with client_for(metrics=metrics) as client:
        assert client.get("/runs/1").json() == {"run_id": 1}
        client.get("/runs/2")
        for path in ("/a", "/b", "/runs/x/y"):
            answer = client.get(path)
            assert answer.status_code == 404
            assert answer.headers["x-content-type-options"] == "nosniff"
        client.request("BREW", "/runs/1")
        client.get("/runs/1", headers={"host": "evil.example"})
    text = metrics.render().decode()
    for line in (
        'luxx_http_requests_total{method="GET",route="/runs/{run_id}",status="200"} 2.0',
        'luxx_http_requests_total{method="GET",route="unknown",status="404"} 3.0',
        'luxx_http_requests_total{method="OTHER",route="unknown",status="405"} 1.0',
        'luxx_http_requests_total{method="GET",route="refused",status="403"} 1.0',
    ):
        assert line in text


def test_a_chunked_body_past_the_limit_is_answered_413_through_litestar() -> None:
    with client_for() as client:
        assert client.post("/messages", content=(b"x" * 100 for _ in range(10))).json() == {"size": 1000}
        answer = client.post("/messages", content=(b"x" * 100 for _ in range(11)))
    assert answer.status_code == 413
    assert answer.json()["detail"] == {"kind": "too_large"}


def test_a_stream_arrives_whole_and_with_headers() -> None:
    with client_for() as client:
        answer = client.get("/stream")
    assert answer.text == "0\n1\n2\n"
    assert "content-security-policy" in answer.headers


# --- the service's own routes -----------------------------------------------------------------------


def test_the_root_describes_the_service_to_programs() -> None:
    with client_for() as client:
        answer = client.get("/")
    assert answer.json() == {
        "success": True,
        "message": "",
        "data": {
            "name": "Luxx",
            "version": "1.2.3",
            "docs": "/docs",
            "openapi": "/openapi.json",
            "ui": "/ui/",
        },
    }


def test_the_root_sends_a_browser_to_the_web_ui() -> None:
    with client_for() as client:
        answer = client.get("/", headers={"accept": "text/html,*/*;q=0.8"}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/")


def test_health_names_the_backends_in_force() -> None:
    with client_for() as client:
        assert client.get("/health").json()["data"] == {
            "status": "ok",
            "version": "1.2.3",
            "sandbox": "bubblewrap",
            "sandbox_backends": [],
            "document_readers": "none",
            "mcp_servers": {"running": 0, "starting": 0, "not_started": 0, "failed": 0},
            "database": "sqlite",
            "bus": "none",
        }


def test_ready_when_every_part_answers() -> None:
    with client_for() as client:
        answer = client.get("/ready")
    assert answer.status_code == 200
    assert answer.json()["data"] == {"status": "ready", "checks": {"database": "ok", "engine": "ok"}}


def test_not_ready_names_the_part_that_fails_but_not_its_secrets() -> None:
    async def broken() -> None:
        raise OSError("postgresql://luxx:secret@db is away")

    with client_for(checks={"database": broken, "engine": empty_handler}) as client:
        answer = client.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["detail"]["checks"] == {"database": "failed", "engine": "ok"}
    assert "secret" not in answer.text


def test_a_part_that_hangs_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luxx.api.routes.service.CHECK_SECONDS", 0.01)

    async def hangs() -> None:
        await asyncio.Event().wait()

    with client_for(checks={"engine": hangs}) as client:
        assert client.get("/ready").status_code == 503


def test_metrics_are_for_this_machine_unless_made_public() -> None:
    with client_for() as client:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        assert "luxx_runs_active" in answer.text
    with client_for(is_local=False) as client:
        refused = client.get("/metrics")
        assert refused.status_code == 403
        assert "observability.metrics_public" in json.loads(refused.text)["error"]
    with client_for(is_local=False, is_metrics_public=True) as client:
        assert client.get("/metrics").status_code == 200


def test_a_detached_stream_has_the_request_and_nothing_of_the_framework() -> None:
    known: set[str] = set()

    async def go_on(scope: Any, send: Any) -> None:
        known.update(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"later", "more_body": False})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"kept": "by the framework"}
        scope["route_handler"] = app
        scope[DETACHED_STREAM_KEY] = go_on

    sent = call(config(), app=app)
    assert sent[-1]["body"] == b"later"
    assert (b"x-content-type-options", b"nosniff") in sent[0]["headers"]
    assert not known & {"state", "route_handler", DETACHED_STREAM_KEY}
    # A server writes them to its access log when the answer begins.
    assert {"method", "path", "query_string", "headers", "server"} <= known
