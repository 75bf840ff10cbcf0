"""What MCP servers and authorization servers say of themselves, and what of it can be used.

Challenges (RFC 6750), metadata of the server (RFC 9728) and of its authorization server (RFC 8414 and OIDC
discovery). Pure. Not here: the requests of OAuth (`requests`), and sending anything (`http`).
"""

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from luxx.errors import Conflict, InvalidInput
from luxx.infra.network.hosts import Reach, reach_of_name
from luxx.infra.network.urls import WebUrl, parse_url

T = TypeVar("T")

MOST_SCOPES = 100
MOST_SCOPE_CHARS = 200

_PARAMETER = re.compile(r'([a-zA-Z_]{1,40})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.){0,4000})"|([^\s",]{1,4000}))')
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class SignInFailed(Conflict):
    """A sign-in cannot go on; the message says why."""

    kind = "mcp_sign_in_failed"


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says in `WWW-Authenticate`: where its metadata are, and which scopes a call needs."""

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""

    @property
    def needs_more_scopes(self) -> bool:
        return self.error == "insufficient_scope"


def read_challenge(values: Iterable[str]) -> Challenge:
    """The challenge of the scheme Bearer among the values of the header; an empty one if there is none."""
    for value in values:
        scheme, _, parameters = value[:8000].strip().partition(" ")
        if scheme.lower() == "bearer":
            found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(parameters)}
            return Challenge(
                resource_metadata=found.get("resource_metadata", ""),
                scopes=scopes_of(found.get("scope", "")),
                error=found.get("error", ""),
            )
    return Challenge()


def scopes_of(text: str) -> tuple[str, ...]:
    """The scopes of a space-separated text, each once, without what cannot be one."""
    found = dict.fromkeys(one for one in text[:20_000].split() if _SCOPE.fullmatch(one))
    return tuple(one for one in found if len(one) <= MOST_SCOPE_CHARS)[:MOST_SCOPES]


def union(*groups: Iterable[str]) -> tuple[str, ...]:
    """All scopes of the groups, each once, in their order."""
    return tuple(dict.fromkeys(one for group in groups for one in group))[:MOST_SCOPES]


class ResourceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What an MCP server says of itself: the audience of its tokens, and who issues them."""

    resource: str
    authorization_servers: list[str] = []
    scopes_supported: list[str] | None = None


class IssuerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What an authorization server says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_response_iss_parameter_supported: bool | None = None


def origin_of(url: str) -> str:
    """Scheme, host and port, in one form. Raises InvalidInput."""
    parsed = parse_url(url)
    return f"{parsed.scheme}://{parsed.authority}"


def web_url(server_url: str) -> str:
    """The address at which a server is asked about sign-ins: without its query, and http in place of ws."""
    scheme, separator, rest = server_url.partition(":")
    scheme = {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme)
    return f"{scheme}{separator}{rest.partition('?')[0]}"


def resource_metadata_urls(server_url: str) -> list[str]:
    """Where the metadata of a server may be if its challenge does not say: for its path, then at the root."""
    parsed = parse_url(server_url)
    root = f"{parsed.scheme}://{parsed.authority}/.well-known/oauth-protected-resource"
    path = parsed.target.partition("?")[0].rstrip("/")
    return list(dict.fromkeys([f"{root}{path}", root]))


def issuer_metadata_urls(issuer: str) -> list[str]:
    """Where the metadata of an authorization server may be: RFC 8414, then OIDC with both places."""
    parsed = parse_url(issuer)
    root = f"{parsed.scheme}://{parsed.authority}"
    path = parsed.target.partition("?")[0].rstrip("/")
    known = [
        f"{root}/.well-known/{name}{path}" for name in ("oauth-authorization-server", "openid-configuration")
    ]
    return list(dict.fromkeys([*known, f"{root}{path}/.well-known/openid-configuration"]))


def read_resource_metadata(body: bytes, server_url: str) -> ResourceMetadata:
    """The metadata, if they are about this server. Raises SignInFailed."""
    found = decoded(body, ResourceMetadata, "the server's metadata")
    if not _is_of(found.resource, server_url):
        raise SignInFailed(
            f"the server's metadata are about another resource, {short(found.resource)}; its operator must "
            "correct them"
        )
    if not found.authorization_servers:
        raise SignInFailed("the server's metadata name no authorization server")
    for issuer in found.authorization_servers[:1]:
        check_endpoint(issuer, "authorization server")
    return found


def _is_of(resource: str, server_url: str) -> bool:
    """Whether a token for the resource may be sent to the server: same origin, and the path or one above."""
    try:
        wanted, given = parse_url(server_url), parse_url(resource)
    except InvalidInput:
        return False
    path, above = (one.target.partition("?")[0].rstrip("/") for one in (wanted, given))
    is_same = (wanted.scheme, wanted.host, wanted.port) == (given.scheme, given.host, given.port)
    return is_same and (path == above or path.startswith(f"{above}/"))


def read_issuer_metadata(body: bytes, issuer: str) -> IssuerMetadata:
    """The metadata, if they are of this issuer and it has what Luxx needs. Raises SignInFailed."""
    found = decoded(body, IssuerMetadata, "the authorization server's metadata")
    if found.issuer.rstrip("/") != issuer.rstrip("/"):
        raise SignInFailed(
            f"the authorization server {short(issuer)} says that it is {short(found.issuer)}; the sign-in "
            "was stopped, because an attacker may stand between"
        )
    if "S256" not in (found.code_challenge_methods_supported or ()):
        raise SignInFailed(
            f"the authorization server {short(issuer)} does not support PKCE with S256, without which a "
            "sign-in is not safe"
        )
    check_endpoint(found.authorization_endpoint, "authorization endpoint")
    check_endpoint(found.token_endpoint, "token endpoint")
    if found.registration_endpoint:
        check_endpoint(found.registration_endpoint, "registration endpoint")
    if found.revocation_endpoint:
        check_endpoint(found.revocation_endpoint, "revocation endpoint")
    return found


def check_endpoint(url: str, noun: str) -> WebUrl:
    """A URL that strangers named: https, or http at an address that only an administrator can allow. Raises
    SignInFailed."""
    try:
        parsed = parse_url(url)
    except InvalidInput as error:
        raise SignInFailed(f"the {noun} is no usable address: {error.message}") from error
    if parsed.scheme != "https" and reach_of_name(parsed.host) in (None, Reach.PUBLIC):
        raise SignInFailed(f"the {noun} {short(url)} is not encrypted (https), so no sign-in is made there")
    return parsed


def decoded(body: bytes, kind: type[T], noun: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SignInFailed(f"{noun} cannot be read: {reason.replace('`', '')}") from error


def short(text: str) -> str:
    shown = "".join(one if one.isprintable() else " " for one in text[:201])
    return shown if len(shown) <= 200 else f"{shown[:200]}…"
