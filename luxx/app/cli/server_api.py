"""The API client of the commands that use a server: sign-in, calls, token refresh and stream frames."""

import argparse
import asyncio
import getpass
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from luxx.api.http.envelope import Failure, Success
from luxx.app.cli.screen import Screen
from luxx.app.cli.sign_ins import SignInStore, StoredSignIn
from luxx.domain.accounts.passwords import DEFAULT_ADMIN, DEFAULT_PASSWORD
from luxx.errors import (
    ConfigError,
    Conflict,
    InvalidInput,
    LuxxError,
    NotFound,
    NotSignedIn,
    TooLarge,
    Unavailable,
)
from luxx.infra.config.file import load_config

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
DEFAULT_URL = f"http://{LOOPBACK}:8000"
CONNECT_SECONDS = 10.0
JSON_TYPE, DOCUMENT_TYPE = "application/json", "application/yaml"
API_NAMES = re.compile(r" \((?:null|[a-z]+(?:_[a-z]+)+|(?:GET|POST|PUT|DELETE) /[^\s,()]*)\)")
"""Names of fields and routes, which the server gives in brackets to those who call its API."""
SILENCE_SECONDS = 45.0
"""A stream sends at least a comment every 15 s. After three missing ones the client reconnects."""

ConnectionFailed = httpx.TransportError
"""Raised by all requests if the server cannot be reached."""

ATTACH_TRIES = 12
LONGEST_PAUSE_SECONDS = 5.0
"""How often a client tries to attach again without any new event, and the longest pause between two tries."""


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """The options of `connect`."""
    parser.add_argument("--url", help="the server (default: LUXX_URL, or the one of the configuration)")
    parser.add_argument("--username", help="default: the sign-in of `luxx login`")
    parser.add_argument("--password", help="better set in LUXX_PASSWORD, or entered at the prompt")
    parser.add_argument(
        "--token", help="an API key or access token instead of a sign-in; better set in LUXX_TOKEN"
    )


def server_url(options: argparse.Namespace) -> str:
    """The server that the options name, else LUXX_URL, else the one of the configuration.

    Raises InvalidInput for an address that is not a URL, ConfigError for a configuration that was named.
    """
    text: str = options.url or os.environ.get("LUXX_URL") or _configured_url(options.config)
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidInput(f"{text[:200]!r} is not a URL; write it like {DEFAULT_URL}")
    return str(url).rstrip("/")


def _configured_url(config_file: Path | None) -> str:
    try:
        app = load_config(config_file, os.environ, {}).app
    except ConfigError:
        # A client needs no configuration; one that is for a server here may be for another user.
        if config_file is not None:
            raise
        return DEFAULT_URL
    host = LOOPBACK if app.host in ("0.0.0.0", "::", "") else app.host
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{app.port}" if app.port else DEFAULT_URL


class TokenPair(msgspec.Struct, frozen=True, kw_only=True):
    access_token: str
    refresh_token: str = ""

    def to_store(self, username: str) -> StoredSignIn:
        return StoredSignIn(
            username=username, access_token=self.access_token, refresh_token=self.refresh_token
        )


class ObjectWithId(msgspec.Struct, frozen=True, kw_only=True):
    """The id of any object."""

    id: str


class ServerApi:
    """Sends requests. Refreshes an expired token once per request, and then stores a stored one again."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self.url = url
        self._tokens: TokenPair | None = None
        self._store: SignInStore | None = None
        """Where the tokens are from, if they are stored."""

    async def sign_in(self, username: str, password: str) -> TokenPair:
        body = {"username": username, "password": password}
        self._tokens = await self.call("POST", "/auth/login", TokenPair, body)
        return self._tokens

    def use_stored(self, sign_in: StoredSignIn, store: SignInStore) -> None:
        """Signs in with what `luxx login` has stored."""
        self._tokens = TokenPair(access_token=sign_in.access_token, refresh_token=sign_in.refresh_token)
        self._store = store

    def use_token(self, access_token: str) -> None:
        """Signs in with an access token or an API key, which is not refreshed."""
        self._tokens = TokenPair(access_token=access_token)

    async def call(self, method: str, path: str, kind: type[T], body: object = None, **query: str) -> T:
        """The `data` of the response. `body`: bytes are sent unchanged, other values as JSON.

        Raises LuxxError with the server's message, httpx.TransportError.
        """
        return _decoded(await self._answer(method, path, body, query), Success[kind]).data

    async def send_document(self, path: str, document: bytes, kind: type[T]) -> T:
        """Sends a document in YAML or JSON; the `data` of the response. Raises the errors of `call`."""
        return _decoded(await self._answer("POST", path, document, {}, DOCUMENT_TYPE), Success[kind]).data

    async def upload(self, name: str, data: bytes, kind: type[T], path: str = "/files", **fields: str) -> T:
        """Uploads a file, to the workspace by default, with other fields of the form; the `data` of the
        response. Raises the errors of `call`."""
        form = httpx.Request("POST", "http://form", data=fields, files={"file": (name, data)})
        answer = await self._answer("POST", path, form.read(), {}, form.headers["content-type"])
        return _decoded(answer, Success[kind]).data

    async def document(self, path: str, **query: str) -> str:
        """The text of a response without the envelope. Raises the errors of `call`."""
        return (await self._answer("GET", path, None, query)).text

    async def content(self, path: str, **query: str) -> bytes:
        """The bytes of a response without the envelope. Raises the errors of `call`."""
        return (await self._answer("GET", path, None, query)).content

    async def _answer(
        self, method: str, path: str, body: object, query: dict[str, str], body_type: str = JSON_TYPE
    ) -> httpx.Response:
        for is_last in (False, True):
            request = self._request(method, path, body, query, {"accept": JSON_TYPE}, body_type)
            response = await self._http.send(request)
            if await self._is_accepted(response, is_last=is_last):
                return response
        raise AssertionError("unreachable: the second try returns or raises")

    async def events(
        self, method: str, path: str, body: object = None, after: int = 0
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """The events of a stream until it ends: the number of each (0: it is not logged) and its JSON.

        Raises the errors of `call`.
        """
        headers = {"accept": "text/event-stream", **({"last-event-id": str(after)} if after else {})}
        for is_last in (False, True):
            request = self._request(method, path, body, {}, headers)
            response = await self._http.send(request, stream=True)
            try:
                if not response.is_success:
                    await response.aread()
                if await self._is_accepted(response, is_last=is_last):
                    async for event in _read_events(response):
                        yield event
                    return
            finally:
                await response.aclose()

    def _request(
        self,
        method: str,
        path: str,
        body: object,
        query: dict[str, str],
        headers: dict[str, str],
        body_type: str = JSON_TYPE,
    ) -> httpx.Request:
        if self._tokens is not None:
            headers["authorization"] = f"Bearer {self._tokens.access_token}"
        if body is not None:
            headers["content-type"] = body_type
        content = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        return self._http.build_request(method, path, content=content, params=query, headers=headers)

    async def _is_accepted(self, response: httpx.Response, *, is_last: bool) -> bool:
        """Whether the response is a success. Returns False after refreshing an expired token."""
        if response.is_success:
            return True
        error = _error_of(response, self.url)
        tokens = self._tokens
        if is_last or error.kind != "token_expired" or tokens is None or not tokens.refresh_token:
            raise self._with_advice(error)
        if self._store is None:
            await self._refresh(tokens)
        else:
            await self._refresh_stored(tokens, self._store)
        return False

    async def _refresh(self, tokens: TokenPair) -> TokenPair:
        self._tokens = None  # A refresh is sent without the expired token.
        try:
            body = {"refresh_token": tokens.refresh_token}
            tokens = await self.call("POST", "/auth/refresh", TokenPair, body)
        finally:
            self._tokens = tokens
        return tokens

    async def _refresh_stored(self, tokens: TokenPair, store: SignInStore) -> None:
        """Refreshes the stored tokens, unless another command has done so in the meantime."""
        async with store.lock():
            stored = store.find(self.url)
            if stored is not None and stored.access_token != tokens.access_token:
                self.use_stored(stored, store)
                return
            fresh = await self._refresh(tokens)
            if stored is not None:  # Else it was signed out in the meantime.
                store.save(self.url, fresh.to_store(stored.username))

    def _with_advice(self, error: LuxxError) -> LuxxError:
        """A refused sign-in that is stored is reported with what to do."""
        if self._store is None or not isinstance(error, NotSignedIn):
            return error
        return NotSignedIn(
            f"your sign-in to {self.url} has ended; sign in again with `luxx login --url {self.url}`",
            kind=error.kind,
        )


@asynccontextmanager
async def open_server(url: str) -> AsyncGenerator[ServerApi]:
    """A client that is not signed in. Raises InvalidInput for an impossible address, Unavailable."""
    try:
        is_local = _is_local(url)
        async with httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=not is_local,
        ) as http:
            yield ServerApi(http, url)
    except httpx.TransportError as error:
        raise Unavailable(
            f"no server answers at {url}; start one with `luxx serve`, or give --url"
        ) from error


@asynccontextmanager
async def connect(options: argparse.Namespace, screen: Screen) -> AsyncGenerator[ServerApi]:
    """A client that is signed in, by the options of `add_server_options`. Raises LuxxError."""
    url = server_url(options)
    async with open_server(url) as server:
        store = SignInStore()
        if token := options.token or os.environ.get("LUXX_TOKEN"):
            server.use_token(token)
        elif not (options.username or options.password) and (stored := store.find(url)) is not None:
            server.use_stored(stored, store)
        else:
            await _sign_in(server, screen, options, is_local=_is_local(url))
        yield server


def _is_local(url: str) -> bool:
    return httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")


async def _sign_in(server: ServerApi, screen: Screen, options: argparse.Namespace, *, is_local: bool) -> None:
    username, password = options.username, options.password or os.environ.get("LUXX_PASSWORD")
    if not username and not password and is_local:
        with suppress(NotSignedIn):
            await server.sign_in(DEFAULT_ADMIN, DEFAULT_PASSWORD)
            screen.note(
                f"signed in as {DEFAULT_ADMIN} with the default password; "
                "change it before other people use this server"
            )
            return
    if not (username and password) and not sys.stdin.isatty():
        raise InvalidInput(
            "you are not signed in; use `luxx login`, or give --username, and the password in LUXX_PASSWORD"
        )
    username = username or ask(input, "username: ")
    await server.sign_in(username, password or ask(getpass.getpass, "password: "))


def ask(read: Callable[[str], str], prompt: str) -> str:
    """Reads a line and blocks the event loop. Raises KeyboardInterrupt for Ctrl-C and for Ctrl-D."""
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return read(prompt)
    except EOFError:
        sys.stderr.write("\n")
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def _decoded(response: httpx.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError as error:
        raise LuxxError("the response is not from a Luxx server; is the address right?") from error


def _error_of(response: httpx.Response, url: str) -> LuxxError:
    try:
        failure = msgspec.json.decode(response.content, type=Failure)
    except msgspec.DecodeError:
        kind = Unavailable if response.status_code >= 500 else LuxxError
        return kind(f"{url} answered {response.status_code} and is not a Luxx server; is the address right?")
    detail = failure.detail if isinstance(failure.detail, dict) else {}
    kind = str(detail.get("kind", "error"))
    problem = API_NAMES.sub("", failure.error)
    if failure.code == 401:
        return NotSignedIn(problem, kind=kind)
    error_type = Unavailable if failure.code >= 500 else ERROR_TYPES.get(failure.code, LuxxError)
    return error_type(problem, kind=kind, detail=detail)


ERROR_TYPES: dict[int, type[InvalidInput | NotFound | Conflict]] = {
    400: InvalidInput,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
}
"""The errors by their HTTP status."""


async def _read_events(response: httpx.Response) -> AsyncGenerator[tuple[int, bytes], None]:
    """Splits at line feeds only, because JSON text may contain other line separators."""
    buffer, seq = bytearray(), 0
    async for piece in response.aiter_bytes():
        buffer += piece
        *lines, rest = bytes(buffer).split(b"\n")
        buffer = bytearray(rest)
        for line in lines:
            field, _, value = line.partition(b": ")
            if field == b"id":
                seq = int(value)
            elif field == b"data":
                yield seq, value
                seq = 0


async def with_pauses(
    frames: AsyncGenerator[T, None], seconds: Callable[[], float | None]
) -> AsyncGenerator[T | None, None]:
    """The frames, and None after each pause of `seconds()`; if that is None, it waits for the next frame."""
    next_frame: asyncio.Future[T | None] | None = None
    try:
        while True:
            next_frame = next_frame or asyncio.ensure_future(anext(frames, None))
            done, _ = await asyncio.wait({next_frame}, timeout=seconds())
            if not done:
                yield None
                continue
            frame, next_frame = next_frame.result(), None
            if frame is None:
                return
            yield frame
    finally:
        if next_frame is not None:
            next_frame.cancel()
            await asyncio.wait({next_frame})
