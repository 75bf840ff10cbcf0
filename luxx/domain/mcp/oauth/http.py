"""The HTTP of OAuth: to checked addresses, never on to another origin, with bounds on time and size.

Who is asked is named by strangers (a server, its metadata), so each request goes through the address guard.
Not here: what is asked and what an answer means (`requests`).
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Protocol, TypeVar
from urllib.parse import urlencode

import msgspec

from luxx import __version__
from luxx.domain.mcp.oauth.metadata import (
    Challenge,
    IssuerMetadata,
    ResourceMetadata,
    SignInFailed,
    check_endpoint,
    issuer_metadata_urls,
    origin_of,
    read_challenge,
    read_issuer_metadata,
    read_resource_metadata,
    resource_metadata_urls,
    short,
)
from luxx.domain.mcp.oauth.requests import (
    ClientIdentity,
    IssuedTokens,
    client_headers,
    error_text,
    read_error,
    read_registration,
    read_tokens,
    registration_body,
)
from luxx.errors import InvalidInput, ProviderRefused, Unreachable
from luxx.infra.network.fetch import open_tls
from luxx.infra.network.transport import (
    BadResponse,
    ConnectFailed,
    ResponseTimeout,
    WireAnswer,
    WireRequest,
    open_response,
)
from luxx.infra.network.urls import WebUrl, next_url, parse_url

SECONDS = 10.0
"""For one answer, with its redirects. A refresh holds the lease of its grant longer than that."""

MOST_BYTES = 256 * 1024
MOST_REDIRECTS = 3
AT_ONCE = 20
"""Requests of one process; others wait, within their time."""

T = TypeVar("T")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SECRETS = ("code", "code_verifier", "refresh_token", "client_secret")
_PROTOCOL = "2025-11-25"
_JSON = "application/json"
_PROBE = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": _PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "luxx", "version": __version__},
        },
    }
)


class AddressCheck(Protocol):
    """Which addresses of a host may be connected to. Raises ProviderError."""

    async def check_connect(self, host: str, port: int) -> list[str]: ...


class NoAnswer(Unreachable):
    """A server could not be reached, so nothing was carried out."""

    kind = "mcp_unreachable"


class TokensLost(NoAnswer):
    """A request was sent, and whether it was carried out is not known."""


class NotSent(SignInFailed):
    """Nothing was sent, because the address may not be reached."""


class TokenRefused(SignInFailed):
    """The token endpoint refused what it was given; `error` is its code."""

    def __init__(self, message: str, error: str) -> None:
        super().__init__(message)
        self.error = error


class _OAuthAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    challenges: list[str]
    body: bytes


class OAuthHttp:
    """One per process. Tests with their own certificate authority pass `tls`."""

    def __init__(
        self, guard: AddressCheck, *, tls: Callable[[], ssl.SSLContext] = open_tls, seconds: float = SECONDS
    ) -> None:
        self._guard = guard
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._seconds = seconds
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def challenge(self, server_url: str) -> Challenge | None:
        """What the server says to a request without a token; None if it does not refuse it. Raises
        Unreachable."""
        headers = {"Accept": f"{_JSON}, text/event-stream", "MCP-Protocol-Version": _PROTOCOL}
        request = self._request(server_url, headers, _PROBE, _JSON)
        answer = await self._timed(request.url, lambda: self._once(request, most_bytes=0))
        if not isinstance(answer, _OAuthAnswer) or answer.status != 401:
            return None
        return read_challenge(answer.challenges)

    async def resource_metadata(self, server_url: str, challenge: Challenge) -> ResourceMetadata | None:
        """The metadata of a server, from where its challenge says or from a well-known place; None if it has
        none. Raises SignInFailed and Unreachable."""
        urls = resource_metadata_urls(server_url)
        if challenge.resource_metadata:
            check_endpoint(challenge.resource_metadata, "address of the server's metadata")
            if origin_of(challenge.resource_metadata) != origin_of(server_url):
                raise SignInFailed("the server keeps its metadata at another origin, which is not trusted")
            urls = [challenge.resource_metadata]
        for url in urls:
            answer = await self._get(url)
            if answer.status == 200:
                return read_resource_metadata(answer.body, server_url)
        return None

    async def issuer_metadata(self, issuer: str) -> IssuerMetadata:
        """The metadata of an authorization server. Raises SignInFailed and Unreachable."""
        check_endpoint(issuer, "authorization server")
        for url in issuer_metadata_urls(issuer):
            answer = await self._get(url)
            if answer.status == 200:
                return read_issuer_metadata(answer.body, issuer)
        raise SignInFailed(f"the authorization server {origin_of(issuer)} publishes no metadata (RFC 8414)")

    async def register(self, endpoint: str, public_url: str, scopes: tuple[str, ...]) -> ClientIdentity:
        """Registers Luxx as a client. Raises SignInFailed and Unreachable."""
        answer = await self._post(endpoint, registration_body(public_url, scopes), _JSON, {})
        if answer.status not in (200, 201):
            error = read_error(answer.body)
            said = f"status {answer.status}" if error is None else short(error_text(error))
            raise SignInFailed(
                f"the authorization server {origin_of(endpoint)} did not register Luxx ({said}); register it "
                "there by hand, and give the server an oauth client"
            )
        return read_registration(answer.body)

    async def tokens(self, endpoint: str, client: ClientIdentity, form: Mapping[str, str]) -> IssuedTokens:
        """The answer to a token request. Raises TokenRefused, Unreachable if it was not carried out, and
        TokensLost if that is not known."""
        body = urlencode(form).encode()
        answer = await self._post(endpoint, body, "application/x-www-form-urlencoded", client_headers(client))
        if answer.status == 200:
            return read_tokens(answer.body)
        error, origin = read_error(answer.body), origin_of(endpoint)
        if answer.status in (429, 503):
            raise NoAnswer(f"{origin} cannot issue tokens now (status {answer.status}); try again later")
        if answer.status >= 500:
            raise TokensLost(f"{origin} failed to issue tokens (status {answer.status})")
        said = f"status {answer.status}" if error is None else error_text(error)
        for secret in (client.client_secret, *(form[name] for name in _SECRETS if name in form)):
            # Some servers repeat what they were sent.
            said = said.replace(secret, "…") if secret else said
        raise TokenRefused(
            f"{origin} refused the sign-in ({short(said)})", "" if error is None else error.error
        )

    async def revoke(self, endpoint: str, client: ClientIdentity, form: Mapping[str, str]) -> None:
        """Takes back a token. Raises SignInFailed and Unreachable."""
        kind, headers = "application/x-www-form-urlencoded", client_headers(client)
        answer = await self._post(endpoint, urlencode(form).encode(), kind, headers)
        if answer.status == 400:
            # Servers of the official SDK demand both fields, also of a client that has no secret.
            own = {"client_id": client.client_id, "client_secret": client.client_secret}
            answer = await self._post(endpoint, urlencode({**form, **own}).encode(), kind, headers)
        if answer.status != 200:
            raise SignInFailed(f"{origin_of(endpoint)} answered with the status {answer.status}")

    async def _get(self, url: str) -> _OAuthAnswer:
        """The answer, after redirects within its origin."""

        async def follow() -> _OAuthAnswer:
            target = parse_url(url)
            for _ in range(MOST_REDIRECTS + 1):
                request = self._request(target.text, {"Accept": _JSON}, None, "")
                answer = await self._once(request, most_bytes=MOST_BYTES)
                if isinstance(answer, _OAuthAnswer):
                    return answer
                target = answer
            raise SignInFailed(f"{origin_of(url)} redirects more than {MOST_REDIRECTS} times")

        return await self._timed(parse_url(url), follow)

    async def _post(self, url: str, body: bytes, kind: str, headers: dict[str, str]) -> _OAuthAnswer:
        request = self._request(url, {"Accept": _JSON, **headers}, body, kind)
        answer = await self._timed(request.url, lambda: self._once(request, most_bytes=MOST_BYTES))
        if not isinstance(answer, _OAuthAnswer):
            raise SignInFailed(
                f"{origin_of(url)} redirects a request that has secrets, which is not followed"
            )
        return answer

    def _request(self, url: str, headers: dict[str, str], body: bytes | None, kind: str) -> WireRequest:
        try:
            parsed = parse_url(url)
        except InvalidInput as error:
            raise SignInFailed(f"a sign-in needs another address: {error.message}") from error
        sent = {"User-Agent": f"Luxx/{__version__}", "Accept-Encoding": "identity", **headers}
        return WireRequest(url=parsed, headers=sent, form=body, form_type=kind, seconds=self._seconds)

    async def _timed(self, url: WebUrl, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._seconds), self._slots:
                return await ask()
        except TimeoutError as error:
            raise TokensLost(f"{url.authority} did not answer within {self._seconds:g} seconds") from error

    async def _once(self, request: WireRequest, *, most_bytes: int) -> _OAuthAnswer | WebUrl:
        """The answer to one request, or the place in the same origin that it redirects to."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(self._make_tls)
        host = request.url.authority
        try:
            async with open_response(request, self._addresses_of, self._tls) as answer:
                location = answer.value("location")
                if answer.status in _REDIRECTS and location and most_bytes:
                    return _redirected(request.url, location)
                return await _read(answer, most_bytes, host)
        except ProviderRefused as error:
            raise NotSent(error.message, kind=error.kind) from error
        except ConnectFailed as error:
            raise NoAnswer(f"{host} cannot be reached: {error}") from error
        except (ResponseTimeout, BadResponse) as error:
            raise TokensLost(f"{host} did not answer properly") from error

    async def _addresses_of(self, host: str, port: int) -> list[str]:
        return await self._guard.check_connect(host, port)


def _redirected(url: WebUrl, location: str) -> WebUrl:
    try:
        target = next_url(url, location)
    except InvalidInput as error:
        raise SignInFailed(f"{url.authority} redirects to what is no address") from error
    if (target.scheme, target.host, target.port) != (url.scheme, url.host, url.port):
        raise SignInFailed(
            f"{url.authority} redirects to another origin, {target.authority}, which is not followed"
        )
    return target


async def _read(answer: WireAnswer, most_bytes: int, host: str) -> _OAuthAnswer:
    body = bytearray()
    if most_bytes:
        if answer.value("content-encoding").strip().lower() not in ("", "identity"):
            raise SignInFailed(f"{host} answers in an encoding that was not asked for")
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > most_bytes:
                    raise SignInFailed(f"{host} answers with more than {most_bytes // 1024} KiB")
    challenges = answer.values("www-authenticate")
    return _OAuthAnswer(status=answer.status, challenges=challenges, body=bytes(body))
