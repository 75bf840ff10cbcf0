"""nginx and Caddy as documented, before a real server: streams, sockets, uploads, addresses of clients."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from api.client import ApiClient
from api.conftest import connect
from api.server_process import ADMIN_PASSWORD, ServerProcess
from api.socket_client import SECONDS, SocketClient, new_ticket
from api.streams import stream_message, stream_run
from process_environment import free_port
from websockets.sync.client import connect as connect_socket

from deployment.proxies import NAME, PROXIES, ReverseProxy, reverse_proxy
from luxx.app.cli.doctor.machine import examine_proxy
from luxx.infra.config.schema import AppConfig, Config, ServerConfig
from luxx.providers.scripted import Counts, Finish, Gate, Rule, Script, ScriptedProvider, Text, When

pytestmark = pytest.mark.heavy

UPLOAD_MB = 40
BEFORE, AFTER = "before", "after"


class Site(NamedTuple):
    """A server behind a proxy that it trusts, and its model."""

    server: ServerProcess
    proxy: ReverseProxy
    model: ScriptedProvider


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    """A model that stops in the middle of each answer until the test opens the gate that it names."""
    rules = [
        Rule(
            when=When(user=f"{proxy} {name}"),
            reply=[Text(text=BEFORE), Gate(name=f"{proxy} {name}"), Text(text=AFTER), Counts(), Finish()],
        )
        for proxy in PROXIES
        for name in ("stream", "resume", "openai", "limit")
    ]
    provider = ScriptedProvider(Script(rules=[*rules, Rule(reply=[Text(text="Hello."), Finish()])]))
    provider.__enter__()
    yield provider
    provider.__exit__(GeneratorExit, None, None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("server"),
        LUXX_SERVER__ALLOWED_HOSTS=f"{NAME},127.0.0.1",
        LUXX_SERVER__TRUSTED_PROXIES="127.0.0.1",
        LUXX_FILES__MAX_UPLOAD_MB=str(UPLOAD_MB),
    ) as running:
        yield running


@pytest.fixture(scope="module", params=PROXIES)
def site(
    request: pytest.FixtureRequest,
    server: ServerProcess,
    model: ScriptedProvider,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    address = server.url.removeprefix("http://")
    with reverse_proxy(request.param, [address], tmp_path_factory.mktemp(request.param)) as proxy:
        yield Site(server, proxy, model)


@contextmanager
def through(proxy: ReverseProxy, server: ServerProcess, **headers: str) -> Iterator[ApiClient]:
    """A client that reaches the server through the proxy, from 127.0.0.2."""
    with ApiClient(server, None) as person:
        person.http.close()
        person.http = proxy.client(**headers)
        yield person


@pytest.fixture(scope="module")
def operator(server: ServerProcess, model: ScriptedProvider) -> Iterator[ApiClient]:
    """The administrator, without a proxy, with the scripted model as the default provider."""
    with ApiClient(server, None).sign_in() as person:
        host = model.url.removeprefix("http://")
        person.good("PUT", "/admin/allowed-hosts", json={"hosts": [host]})
        connect(person, model)
        yield person


@pytest.fixture(scope="module")
def admin(site: Site, operator: ApiClient) -> Iterator[ApiClient]:
    """The same user, signed in through the proxy."""
    with through(site.proxy, site.server) as person:
        yield person.sign_in()


def new_chat(person: ApiClient) -> str:
    chat_id: str = person.good("POST", "/conversations", json={})["id"]
    return chat_id


# --- streams ----------------------------------------------------------------------------------------


def test_an_answer_arrives_while_the_model_writes_it(site: Site, admin: ApiClient) -> None:
    name = f"{site.proxy.kind} stream"
    with stream_message(admin, new_chat(admin), name) as stream:
        while stream.until("process_step")["step"].get("delta") != BEFORE:
            pass
        site.model.release(name)
        frames = stream.read_to_end()
    assert frames[-1]["type"] == "done"
    assert AFTER in str(frames)


def test_a_stream_that_was_cut_continues_after_the_last_event(site: Site, admin: ApiClient) -> None:
    name = f"{site.proxy.kind} resume"
    with stream_message(admin, new_chat(admin), name) as stream:
        run_id = stream.until("run")["run_id"]
        stream.until("process_step")
    whole = stream_run(admin, run_id)
    with whole as stream:
        stream.until("process_step")
        site.model.release(name)
        stream.until("done")
        logged = [frame["seq"] for frame in stream.received if frame["seq"]]
    with stream_run(admin, run_id, **{"last-event-id": str(logged[0])}) as stream:
        assert [frame["seq"] for frame in stream.frames() if frame["seq"]] == logged[1:]
    assert len(logged) > 1


def test_a_stream_of_the_openai_api_arrives_word_by_word_over_http_2(site: Site, admin: ApiClient) -> None:
    name = f"{site.proxy.kind} openai"
    messages = [{"role": "user", "content": name}]
    body = json.dumps({"model": "scripted/scripted", "stream": True, "messages": messages})
    command = [
        *("curl", "--no-progress-meter", "--no-buffer", "--http2", "--include"),
        *("--cacert", str(site.proxy.certificate.chain), "--resolve", f"{NAME}:{site.proxy.port}:127.0.0.1"),
        *("-H", f"Authorization: Bearer {admin.token}", "-H", "Content-Type: application/json"),
        *("--max-time", "30", "--data", body, f"{site.proxy.url}/v1/chat/completions"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        assert curl.stdout.readline().startswith("HTTP/2 200")
        while BEFORE not in curl.stdout.readline():
            assert curl.poll() is None
        site.model.release(name)
        assert AFTER in curl.stdout.read()


def test_a_socket_opens_with_the_origin_of_the_site_and_carries_messages(
    site: Site, admin: ApiClient
) -> None:
    ticket = new_ticket(admin)
    with connect_socket(
        f"wss://{NAME}:{site.proxy.port}/ws?token={ticket}",
        sock=site.proxy.connect(),
        ssl=site.proxy.certificate.trust(),
        origin=site.proxy.url,
        open_timeout=SECONDS,
        close_timeout=1.0,
    ) as connection:
        socket = SocketClient(connection)
        session = new_chat(admin)
        assert socket.subscribe(session)["session_id"] == session
        socket.send({"type": "ping"})
        assert socket.until(type="pong")


# --- uploads ----------------------------------------------------------------------------------------


def test_an_upload_up_to_the_limit_of_luxx_passes_and_a_larger_one_is_refused_by_luxx(
    site: Site, admin: ApiClient
) -> None:
    data = bytes(UPLOAD_MB * 1024 * 1024 - 2000)
    name = f"{site.proxy.kind}.bin"
    uploaded = admin.good("POST", "/files", files={"file": (name, data)})
    assert uploaded["size"] == len(data)
    assert admin.ask("GET", f"/files/{uploaded['id']}").content == data
    admin.bad("POST", "/files", 413, files={"file": (name, data + bytes(4000))})
    admin.good("DELETE", f"/files/{uploaded['id']}")


# --- addresses, names and TLS -----------------------------------------------------------------------


def test_the_address_of_a_client_is_recorded_and_cannot_be_chosen(site: Site, admin: ApiClient) -> None:
    with through(site.proxy, site.server, **{"x-forwarded-for": "203.0.113.9"}) as person:
        person.sign_in("admin", ADMIN_PASSWORD)
    (entry,) = admin.good("GET", "/admin/audit", params={"action": "sign_in", "page_size": 1})["items"]
    assert entry["address"] == "127.0.0.2"


def test_a_client_of_the_proxy_is_not_on_this_machine(site: Site) -> None:
    with site.proxy.client(source="127.0.0.1") as http:
        assert http.get("/ready").status_code == 200
        assert http.get("/metrics").status_code == 403


def test_http_is_redirected_to_https(site: Site) -> None:
    url = f"http://127.0.0.1:{site.proxy.plain_port}/docs?q=1"
    redirect = httpx.get(url, headers={"host": NAME}, trust_env=False)
    assert redirect.status_code in (301, 308)
    assert redirect.headers["location"].startswith(f"https://{NAME}")
    assert redirect.headers["location"].endswith("/docs?q=1")


@pytest.mark.parametrize("trusted", ["", "127.0.0.1"])
def test_the_default_password_is_refused_through_a_proxy(trusted: str, tmp_path: Path) -> None:
    settings = {
        "LUXX_SERVER__ALLOWED_HOSTS": f"{NAME},127.0.0.1",
        "LUXX_SERVER__TRUSTED_PROXIES": trusted,
        "LUXX_ADMIN_PASSWORD": "",
    }
    body = {"username": "admin", "password": "admin123"}
    with ServerProcess(tmp_path, **settings) as server:
        address = server.url.removeprefix("http://")
        for kind in PROXIES:
            with reverse_proxy(kind, [address], tmp_path) as proxy, proxy.client("127.0.0.1") as http:
                for headers in ({}, {"x-forwarded-for": "127.0.0.1"}):
                    refused = http.post("/auth/login", json=body, headers=headers)
                    assert refused.json()["detail"]["kind"] == "default_password", refused.text
        assert httpx.post(f"{server.url}/auth/login", json=body, trust_env=False).is_success
        app = AppConfig(port=int(address.rpartition(":")[2]))
        proxies = ServerConfig(trusted_proxies=[trusted] if trusted else [], allowed_hosts=[NAME])
        (finding,) = asyncio.run(examine_proxy(Config(app=app, server=proxies)))
        assert finding.text.startswith(
            "X-Forwarded-For of 127.0.0.1 is used" if trusted else "4 requests had"
        )
        assert server.output.count("untrusted_proxy") == (0 if trusted else 1)


# --- several servers --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PROXIES)
def test_requests_go_on_while_one_of_the_servers_is_down(
    kind: str, server: ServerProcess, tmp_path: Path
) -> None:
    servers = [f"127.0.0.1:{free_port()}", server.url.removeprefix("http://")]
    with reverse_proxy(kind, servers, tmp_path) as proxy, through(proxy, server) as person:
        person.sign_in()
        for _ in range(5):
            new_chat(person)
            person.good("GET", "/auth/me")


def test_nginx_limits_the_connections_of_one_address(
    server: ServerProcess, operator: ApiClient, model: ScriptedProvider, tmp_path: Path
) -> None:
    changes = [("limit_conn luxx_clients 256;", "limit_conn luxx_clients 1;")]
    address = server.url.removeprefix("http://")
    with reverse_proxy("nginx", [address], tmp_path, changes) as proxy, through(proxy, server) as person:
        person.sign_in()
        with stream_message(person, new_chat(person), "nginx limit") as stream:
            stream.until("process_step")
            assert person.http.get("/auth/me").status_code == 503
            with proxy.client(source="127.0.0.3") as other:
                assert other.get("/ready").status_code == 200
            model.release("nginx limit")
            stream.until("done")
