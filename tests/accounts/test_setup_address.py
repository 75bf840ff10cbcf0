"""The one-time address that sets the first password, and the default password behind a hidden forwarder."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from api.server_process import ServerProcess

from luxx.app.serve import local_address
from luxx.domain.accounts.setup import SetupClaims
from luxx.infra.secrets import derive_key
from luxx.web.files import WebFiles

ADMIN = {"username": "admin", "password": "admin123"}
NEW = "a-password-of-the-owner"
ADDRESS = re.compile(r"Set the administrator's password: (http://\S+/setup\?token=\S+)")
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
RUN = Path(__file__).parents[2] / "run.py"
# The secret of the servers in `conftest.py`.
SECRET = "a secret of the tests, long enough"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A real server at its first start, with the published default password."""
    with ServerProcess(tmp_path, LUXX_ADMIN_PASSWORD="") as running:
        yield running


def client(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=30, trust_env=False)


def printed(server: ServerProcess) -> str:
    """The one-time address in the server's output."""
    return server.await_line(ADDRESS)[1]


def answer_to(server: ServerProcess, head: str, body: str) -> str:
    """The whole answer to this request."""
    where = urlsplit(server.url)
    with socket.create_connection((str(where.hostname), int(where.port or 0)), 30) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = b""
        while not answer.endswith(b"}"):
            piece = connection.recv(65_536)
            if not piece:
                break
            answer += piece
    return answer.decode()


def log_in_as_forwarded(server: ServerProcess, version: str, *lines: str) -> str:
    """The answer to a log-in with the default password and these additional header lines."""
    port = urlsplit(server.url).port
    host = next((line for line in lines if line.startswith("Host:")), f"Host: 127.0.0.1:{port}")
    more = [line for line in lines if not line.startswith("Host:")]
    head = [f"POST /auth/login {version}", host, *more, "Content-Type: application/json", ""]
    return answer_to(server, "\r\n".join(head), json.dumps(ADMIN))


SIGNS = [
    ("HTTP/1.0", ["Connection: close"]),
    ("HTTP/1.0", []),
    ("HTTP/1.1", ["Host: luxx.example"]),
    ("HTTP/1.1", ["Host: 203.0.113.9"]),
    ("HTTP/1.1", ["Host: localhost.luxx.example"]),
    ("HTTP/1.1", ["Via: 1.1 proxy"]),
    ("HTTP/1.1", ["Forwarded: for=127.0.0.1"]),
    ("HTTP/1.1", ["X-Forwarded-For: 127.0.0.1"]),
    ("HTTP/1.1", ["X-Forwarded-Server: front"]),
    ("HTTP/1.1", ["X-Forwarded-Port: 443"]),
    ("HTTP/1.1", ["X-Real-IP: 127.0.0.1"]),
    ("HTTP/1.1", ["True-Client-IP: 127.0.0.1"]),
    ("HTTP/1.1", ["CF-Connecting-IP: 127.0.0.1"]),
    ("HTTP/1.1", ["CF-Ray: 1"]),
    ("HTTP/1.1", ["X-Client-IP: 127.0.0.1"]),
    ("HTTP/1.1", ["X-Cluster-Client-IP: 127.0.0.1"]),
    ("HTTP/1.1", ["X-Envoy-Internal: true"]),
    ("HTTP/1.1", ["Referer: https://luxx.example/ui/"]),
    ("HTTP/1.1", ["Referer: nonsense"]),
]


@pytest.mark.heavy
def test_the_default_password_is_refused_if_a_proxy_is_detected(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, LUXX_ADMIN_PASSWORD="", LUXX_SERVER__ALLOWED_HOSTS="*") as server:
        let_in = [
            (version, lines)
            for version, lines in SIGNS
            if '"default_password"' not in log_in_as_forwarded(server, version, *lines)
        ]
        assert let_in == []
        refused = log_in_as_forwarded(server, "HTTP/1.0", "Connection: close")
        assert refused.startswith("HTTP/1.1 403")
        assert "luxx user passwd admin" in refused
        assert "the address that the server prints at its start" in refused
        port = urlsplit(server.url).port
        for host in ("127.0.0.1", "localhost", "LOCALHOST.", "127.0.0.2", "[::1]"):
            for more in (
                [],
                ["Connection: close"],
                [f"Origin: http://{host}:{port}"],
                [f"Referer: http://{host}:{port}/ui/"],
            ):
                answer = log_in_as_forwarded(server, "HTTP/1.1", f"Host: {host}:{port}", *more)
                assert answer.startswith("HTTP/1.1 200"), (host, more, answer)


def test_after_a_password_is_set_a_detected_proxy_does_not_matter(server: ServerProcess) -> None:
    with client(server) as http:
        token = http.post("/auth/login", json=ADMIN).json()["data"]["access_token"]
        forwarded = {"authorization": f"Bearer {token}", "via": "1.1 proxy"}
        assert http.get("/auth/me", headers=forwarded).status_code == 403
        body = {"current_password": "admin123", "new_password": NEW}
        changed = http.post("/auth/password", json=body, headers={"authorization": f"Bearer {token}"})
        assert changed.status_code == 200
        assert http.get("/auth/me", headers=forwarded).status_code == 200
        body = {"username": "admin", "password": NEW}
        assert http.post("/auth/login", json=body, headers={"via": "1.1 proxy"}).status_code == 200


def test_the_printed_address_sets_the_password_once_for_any_peer(
    server: ServerProcess, tmp_path: Path
) -> None:
    address = printed(server)
    (token,) = parse_qs(urlsplit(address).query)["token"]
    forwarded = {**BROWSER, "X-Forwarded-For": "203.0.113.9"}
    with client(server) as http:
        signed_in = http.post("/auth/login", json=ADMIN).json()["data"]
        shown = http.get(address, headers=forwarded)
        assert shown.status_code == 200
        assert shown.headers["content-type"].startswith("text/html")
        assert shown.headers["cache-control"] == "no-store"
        assert shown.headers["referrer-policy"] == "no-referrer"
        assert "<script" not in shown.text
        (style,) = re.findall(r"<style>(.*?)</style>", shown.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert f"style-src 'sha256-{digest}';" in shown.headers["content-security-policy"]
        (hidden,) = re.findall(r'name="token" value="([^"]*)"', shown.text)
        assert hidden == token
        form = {"token": hidden, "password": NEW, "password_again": NEW}
        wrong = http.post("/setup", data=form | {"password_again": "other-password"}, headers=forwarded)
        assert (wrong.status_code, "the two passwords differ" in wrong.text) == (400, True)
        short = http.post("/setup", data=form | {"password": "short"}, headers=forwarded)
        assert (short.status_code, f'value="{token}"' in short.text) == (400, True)
        published = dict.fromkeys(("password", "password_again"), "admin123")
        refused = http.post("/setup", data=form | published, headers=forwarded)
        assert (refused.status_code, "published default" in refused.text) == (400, True)
        foreign = http.post("/setup", data=form, headers=forwarded | {"Origin": "https://evil.example"})
        assert foreign.status_code == 403
        response = http.post("/setup", data=form, headers=forwarded | {"Origin": server.url})
        assert (response.status_code, "is set" in response.text) == (200, True)

        again = http.post("/setup", data=form, headers=BROWSER)
        assert (again.status_code, "used already" in again.text) == (403, True)
        by_program = http.post("/setup", json={"token": token, "password": NEW + "2"})
        assert by_program.json()["detail"]["kind"] == "setup_token_used"
        assert http.get(address, headers=BROWSER).status_code == 403

        old = {"authorization": f"Bearer {signed_in['access_token']}"}
        assert http.get("/auth/me", headers=old).status_code == 401, "its sign-ins have ended"
        assert http.post("/auth/login", json=ADMIN).status_code == 401
        body = {"username": "admin", "password": NEW}
        user = http.post("/auth/login", json=body, headers={"X-Forwarded-For": "203.0.113.9"}).json()["data"]
        assert user["user"]["must_change_password"] is False
        headers = {"authorization": f"Bearer {user['access_token']}"}
        query = {"action": "password_change", "outcome": "done"}
        (entry,) = http.get("/admin/audit", params=query, headers=headers).json()["data"]["items"]
        assert (entry["username"], entry["detail"]["name"]) == ("setup address", "admin")
        assert token not in http.get("/metrics").text
    assert server.output.count(token) == 1, "only the line that was meant for the operator has it"
    server.stop()
    with ServerProcess(tmp_path, LUXX_ADMIN_PASSWORD="") as later, client(later) as http:
        assert http.get("/health").status_code == 200
        later.stop()
        assert ADDRESS.search(later.output) is None


@pytest.mark.parametrize(
    ("languages", "is_chinese"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", True),
        ("fr, ZH-tw;q=0.7", True),
        ("en-GB,en;q=0.9,zh;q=0.8", False),
        ("fr", False),
    ],
)
async def test_the_page_is_in_the_language_that_the_browser_prefers(
    account_server, languages: str, is_chinese: bool
) -> None:
    await account_server.operator.ensure_first_user()
    token = await account_server.password_setup.token()
    headers = {"Accept": "text/html", "Accept-Language": languages}
    page = await account_server.ask("GET", f"/setup?token={token}", **headers)
    assert ('<html lang="zh">' in page.text, "设置管理员的密码" in page.text) == (is_chinese, is_chinese)
    assert ("<label>密码" in page.text, "<label>Password" in page.text) == (is_chinese, not is_chinese)
    short = {"token": token, "password": "short"}
    refused = await account_server.ask("POST", "/setup", short, **headers)
    assert (refused.status_code, "密码至少需要 8 个字符" in refused.text) == (400, is_chinese)
    unknown = await account_server.ask("GET", "/setup?token=x", **headers)
    assert (unknown.status_code, "此设置地址无效" in unknown.text) == (403, is_chinese)


def test_a_client_sets_the_password_by_json(server: ServerProcess) -> None:
    (token,) = parse_qs(urlsplit(printed(server)).query)["token"]
    with client(server) as http:
        state = http.get("/setup", params={"token": token}).json()
        assert (state["success"], state["data"]["username"]) == (True, "admin")
        wrong = http.post("/setup", json={"token": token, "password": "short"}).json()
        assert list(wrong["detail"]["fields"]) == ["$.password"]
        done = http.post("/setup", json={"token": token, "password": NEW}).json()
        assert done["data"]["must_change_password"] is False
        assert http.post("/auth/login", json={"username": "admin", "password": NEW}).status_code == 200


def test_a_configured_first_password_prints_no_address(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.stop()
        assert "Luxx listens on" in server.output
        assert "/setup" not in server.output


async def test_a_token_is_valid_for_a_day_and_only_with_all_claims(account_server) -> None:
    assert await account_server.password_setup.token() is None
    await account_server.operator.ensure_first_user()
    token = await account_server.password_setup.token()
    claims = jwt.decode(token, options={"verify_signature": False})
    assert set(claims) == set(SetupClaims.__struct_fields__)
    assert claims["exp"] - claims["iat"] == 24 * 3600
    access = (await account_server.enter("admin", "admin123"))["access_token"]
    assert (await account_server.ask("GET", "/auth/me", token=token)).status_code == 401

    async def kind(tried: object) -> str:
        answer = await account_server.ask(
            "POST", "/setup", {"token": tried, "password": NEW}, address="203.0.113.9"
        )
        assert answer.status_code in (400, 403)
        return str(answer.json()["detail"]["kind"])

    key = derive_key(SECRET, "setup")
    for missing in claims:
        part = {name: value for name, value in claims.items() if name != missing}
        assert await kind(jwt.encode(part, key, algorithm="HS256")) == "setup_token_invalid"
    for bad in (
        "",
        "x",
        access,
        token[:-4],
        token + "x",
        jwt.encode(claims, "k" * 32, algorithm="HS256"),
    ):
        assert await kind(bad) == "setup_token_invalid"
    for wrong in ({"typ": "access"}, {"sub": 1}):
        assert await kind(jwt.encode(claims | wrong, key, algorithm="HS256")) == "setup_token_invalid"
    for other in ({"pwd": "0" * 64}, {"sub": "2"}, {"sub": "x"}):
        assert await kind(jwt.encode(claims | other, key, algorithm="HS256")) == "setup_token_used"
    assert await kind(7) == "invalid_input"
    account_server.clock.ahead = timedelta(hours=24, seconds=1)
    assert await kind(token) == "setup_token_expired"


async def test_of_two_concurrent_uses_of_an_address_one_sets_the_password(account_server) -> None:
    await account_server.operator.ensure_first_user()
    first_token, other = [await account_server.password_setup.token() for _ in range(2)]
    answers = await asyncio.gather(
        *(
            account_server.ask("POST", "/setup", {"token": token, "password": NEW})
            for token in (first_token, other, first_token)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200, 403, 403]


async def test_wrong_addresses_are_limited_like_log_ins_and_a_good_one_is_not(build_server) -> None:
    account_server = build_server(limits={"logins_per_minute": 3})
    await account_server.operator.ensure_first_user()
    token = await account_server.password_setup.token()
    for _ in range(5):
        assert (await account_server.ask("GET", f"/setup?token={token}")).status_code == 200
    codes = [
        (await account_server.ask("GET", "/setup?token=x", address="203.0.113.9")).status_code
        for _ in range(5)
    ]
    assert codes == [403, 403, 403, 429, 429]
    page = await account_server.ask("GET", "/setup?token=x", address="203.0.113.9", Accept="text/html")
    assert (page.status_code, int(page.headers["retry-after"]) > 0) == (429, True)


@pytest.mark.parametrize(
    ("host", "port", "allowed", "address"),
    [
        ("127.0.0.1", 8000, [], "http://127.0.0.1:8000"),
        ("0.0.0.0", 8000, [], "http://127.0.0.1:8000"),
        ("::", 8000, [], "http://[::1]:8000"),
        ("10.1.2.3", 80, ["*"], "http://10.1.2.3:80"),
        ("0.0.0.0", 8000, ["luxx.example", "127.0.0.1"], "http://127.0.0.1:8000"),
        ("0.0.0.0", 8000, ["luxx.example"], "http://luxx.example:8000"),
        ("0.0.0.0", 8000, ["luxx.example:81"], "http://luxx.example:81"),
    ],
)
def test_the_address_is_one_under_which_the_server_answers(
    host: str, port: int, allowed: list[str], address: str
) -> None:
    assert local_address(host, port, allowed) == address


def test_a_start_on_a_terminal_prints_the_address_of_the_web_ui_only(tmp_path: Path) -> None:
    if WebFiles().problem() is not None:
        pytest.skip("the web UI is not built: make ui")
    master, terminal = pty.openpty()
    environ = {**os.environ, "LUXX_LOCAL__ENABLED": "false", "LUXX_APP__PORT": "0", "LUXX_ADMIN_PASSWORD": ""}
    command = [sys.executable, str(RUN), "--data-dir", str(tmp_path)]
    process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=terminal, stderr=subprocess.DEVNULL)
    os.close(terminal)
    shown = ""
    try:
        while "luxx chat" not in shown:
            shown += os.read(master, 4096).decode()
    finally:
        process.terminate()
        process.wait(30)
    with contextlib.suppress(OSError):  # the terminal has no writer any more
        while piece := os.read(master, 4096):
            shown += piece.decode()
    os.close(master)
    assert len(re.findall(r"listens on http://127\.0\.0\.1:\d+", shown)) == 1
    assert "/setup" not in shown
