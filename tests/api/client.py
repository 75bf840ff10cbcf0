"""A user of the API: sends requests and checks what every answer must fulfil."""

import re
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from api.schema import Document
from api.server_process import ADMIN_PASSWORD, ServerProcess

PASSWORD = "a-password-of-a-test-1"
KEY = "sk-a-key-that-nobody-may-see-again-7f3d"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
INSIDES = ("Traceback", 'File "', "site-packages", "sqlalchemy", "psycopg", "sqlite3", "litestar", "msgspec")
TIMEOUT = httpx.Timeout(30.0)


NOT_OWN = {
    *("/admin/audit", "/admin/processes", "/admin/tenants", "/auth/users", "/mcp/changes", "/mcp/servers"),
    *("/messages", "/search", "/tool-calls", "/usage"),
}
"""Lists of others, of one conversation, or of what a request itself adds to."""


class ApiClient:
    """A client of one server, signed in or not. Requests fail the test if an answer has the wrong shape."""

    def __init__(self, server: ServerProcess, document: Document | None, token: str = "") -> None:
        self.server = server
        self.document = document
        self.user: dict[str, Any] = {}
        self.refresh_token = ""
        # The server speaks plain HTTP; to load the certificates for TLS takes 20 ms.
        self.http = httpx.Client(base_url=server.url, timeout=TIMEOUT, trust_env=False, verify=False)
        self.token = token

    @property
    def token(self) -> str:
        return self._token

    @token.setter
    def token(self, token: str) -> None:
        self._token = token
        self.http.headers.pop("authorization", None)
        if token:
            self.http.headers["authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Any answer, a success or a failure, after a check of its shape."""
        response = self.http.request(method, path, **more)
        check_shape(response)
        if self.document is not None:
            self.document.check(response)
        return response

    @staticmethod
    def quoted(text: str) -> str:
        """The text as one segment of a path."""
        return "" if text in (".", "..") else quote(text, safe="")

    def good(self, method: str, path: str, **more: Any) -> Any:
        """The `data` of a request that must succeed."""
        response = self.ask(method, path, **more)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        return response.json()["data"]

    def bad(self, method: str, path: str, status: int, **more: Any) -> dict[str, Any]:
        """The failure of a request that must be refused with this status."""
        response = self.ask(method, path, **more)
        assert response.status_code == status, (
            f"{method} {path}: {response.status_code} {response.text[:500]}"
        )
        failure: dict[str, Any] = response.json()
        return failure

    def cancel(self, run_id: str, seconds: float = 20) -> None:
        """Cancels a run and returns once it is cancelled: a busy server answers before that."""
        self.good("POST", f"/runs/{run_id}/cancel")
        until = time.monotonic() + seconds
        while (status := self.good("GET", f"/runs/{run_id}")["status"]) != "cancelled":
            assert time.monotonic() < until, status
            time.sleep(0.05)

    def good_document(self) -> dict[str, Any]:
        """The server's own OpenAPI document."""
        content: dict[str, Any] = self.ask("GET", "/openapi.json").json()
        return content

    def register(self, username: str) -> Self:
        signed_in = self.good(
            "POST", "/auth/register", json={"username": username, "password": PASSWORD, "email": None}
        )
        return self._take(signed_in)

    def sign_in(self, username: str = "admin", password: str = ADMIN_PASSWORD) -> Self:
        return self._take(self.good("POST", "/auth/login", json={"username": username, "password": password}))

    def state(self) -> dict[str, Any]:
        """Everything that this user can see, to compare before and after a request."""
        answers = {path: self.good("GET", path) for path in ("/auth/me", "/settings", "/tenant")}
        assert self.document is not None
        for path in self.document.lists - NOT_OWN:
            answers[path] = self.good("GET", f"{path}?page_size=100")
        for conversation in answers["/conversations"]["items"]:
            path = f"/messages?conversation_id={conversation['id']}&page_size=100"
            answers[path] = self.good("GET", path)
        for room in answers["/chat-rooms"]["items"]:
            for part in ("", "/members", "/messages"):
                path = f"/chat-rooms/{room['id']}{part}"
                answers[path] = self.good("GET", path)
        if self.user.get("permission_level") == 4:
            answers["users"] = self.good("GET", "/auth/users?page_size=100")
            if self.user["tenant_id"] == 1:
                answers["hosts"] = self.good("GET", "/admin/allowed-hosts")
        return answers

    def _take(self, signed_in: dict[str, Any]) -> Self:
        self.token = signed_in["access_token"]
        self.refresh_token = signed_in["refresh_token"]
        self.user = signed_in["user"]
        return self


_documents: list[Document] = []


def document_of(server: ServerProcess) -> Document:
    """The OpenAPI document, which is the same of every server: a test process asks for it once."""
    if not _documents:
        with ApiClient(server, None) as nobody:
            _documents.append(Document(nobody.good_document()))
    return _documents[0]


def check_shape(response: httpx.Response) -> None:
    """Checks what every answer must fulfil: the envelope, the headers, no internals and no key."""
    at = f"{response.request.method} {response.request.url}: {response.status_code}"
    assert response.headers["x-content-type-options"] == "nosniff", at
    assert response.headers["referrer-policy"] == "no-referrer", at
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"], at
    assert KEY not in response.text, f"{at} shows a key"
    assert response.status_code != 500, f"{at} {response.text}"
    if response.is_error:
        check_failure(response)
    path = response.request.url.path
    is_document = path.endswith(("/openapi.json", "/export")) or path.startswith("/v1/")
    if response.is_success and is_json(response) and response.content and not is_document:
        content = response.json()
        assert set(content) == {"success", "data", "message"}, f"{at} {response.text[:300]}"
        assert content["success"] is True
        assert isinstance(content["message"], str)
        check_times(content["data"], at)


def is_json(response: httpx.Response) -> bool:
    return response.headers.get("content-type", "").startswith("application/json")


def check_failure(response: httpx.Response) -> None:
    """Checks the envelope of a failure: one sentence, the status as its code, the kind in its detail."""
    at = f"{response.request.method} {response.request.url}: {response.status_code}"
    if response.request.method == "HEAD":
        return
    assert is_json(response), f"{at} {response.headers.get('content-type')}"
    content = response.json()
    if response.request.url.path.startswith("/v1/"):
        content = as_envelope(content, response.status_code)
    assert set(content) == {"success", "error", "code", "detail"}, f"{at} {response.text[:300]}"
    assert content["success"] is False
    assert content["code"] == response.status_code
    assert re.fullmatch(r"[a-z][a-z0-9_]+", content["detail"]["kind"]), f"{at} {content}"
    sentence = content["error"]
    assert isinstance(sentence, str), at
    assert len(sentence) >= 10, at
    assert "\n" not in sentence, f"{at} {sentence!r}"
    assert not [word for word in INSIDES if word in response.text], f"{at} shows insides: {response.text}"


def as_envelope(content: dict[str, Any], status: int) -> dict[str, Any]:
    """A failure of `/v1`, which has the form of OpenAI's, as an envelope."""
    assert set(content) == {"error"}, content
    error = content["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    fields = {} if error["param"] is None else {"fields": {f"$.{error['param']}": error["message"]}}
    return {
        "success": False,
        "error": error["message"],
        "code": status,
        "detail": {"kind": error["code"], **fields},
    }


def check_times(value: Any, at: str) -> None:
    """Checks that every `…_at` is ISO 8601 in UTC with a Z."""
    if isinstance(value, dict):
        for name, inner in value.items():
            # A schema of arguments has a dict for the field of this name.
            if name.endswith("_at") and inner is not None and not isinstance(inner, dict):
                assert TIME.fullmatch(inner), f"{at}: {name} is {inner!r}"
            check_times(inner, at)
    elif isinstance(value, list):
        for inner in value:
            check_times(inner, at)
