"""OAuth as MCP uses it, without network and database: what is asked, and what an answer must say.

Clients (RFC 7591, client-id metadata documents), PKCE (RFC 7636), the issuer in the answer (RFC 9207) and the
server as the audience of its tokens (RFC 8707). Not here: what servers say of themselves (`metadata`),
sending requests (`http`), keeping tokens (`grants`) and beginning and completing a sign-in (`flows`).
"""

import base64
import hashlib
import secrets
from collections.abc import Sequence
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from luxx.domain.mcp.oauth.metadata import (
    Challenge,
    IssuerMetadata,
    ResourceMetadata,
    SignInFailed,
    decoded,
    scopes_of,
    short,
    union,
)
from luxx.infra.network.hosts import Reach, reach_of_name
from luxx.infra.network.urls import parse_url

CLIENT_NAME = "Luxx"
CALLBACK_PATH = "/ui/mcp/callback"
DOCUMENT_PATH = "/mcp/oauth/client.json"
OFFLINE = "offline_access"
"""The scope with which some authorization servers issue refresh tokens; asked for where they name it."""

MOST_TOKEN_CHARS = 16 * 1024


class ClientIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Luxx as an authorization server knows it. `method`: how it identifies itself at the token endpoint."""

    client_id: str
    client_secret: str = ""
    method: str = "none"

    def __repr__(self) -> str:
        return f"ClientIdentity(client_id={self.client_id!r})"


class IssuedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a token endpoint. `seconds`: how long the access token is valid; None: not said."""

    access: str
    refresh: str = ""
    seconds: float | None = None
    scopes: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return "IssuedTokens()"


class TokenError(msgspec.Struct, frozen=True, kw_only=True):
    """The error of a token or registration endpoint (RFC 6749, section 5.2)."""

    error: str
    error_description: str = ""


def choose_scopes(
    configured: Sequence[str], challenge: Challenge, resource: ResourceMetadata | None, issuer: IssuerMetadata
) -> tuple[str, ...]:
    """The scopes of a first sign-in: the configured ones, else those the server asked for, else all it has.

    With `offline_access`, where the authorization server has that.
    """
    supported = () if resource is None else scopes_of(" ".join(resource.scopes_supported or ()))
    chosen = tuple(configured) or challenge.scopes or supported
    return union(chosen, [OFFLINE] if OFFLINE in (issuer.scopes_supported or ()) else [])


def document_id(public_url: str) -> str:
    """The client id of this installation: the address of its client-id metadata document."""
    return f"{public_url}{DOCUMENT_PATH}"


class ClientFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What Luxx says of itself as a client (RFC 7591)."""

    client_name: str
    client_uri: str
    redirect_uris: list[str]
    grant_types: list[str]
    response_types: list[str]
    token_endpoint_auth_method: str
    application_type: str


class ClientDocument(ClientFacts, frozen=True, kw_only=True):
    """A client-id metadata document. `client_id` is its address."""

    client_id: str


def client_document(public_url: str) -> ClientDocument:
    """The client-id metadata document of this installation."""
    facts = msgspec.structs.asdict(_client_facts(public_url))
    return ClientDocument(client_id=document_id(public_url), **facts)


def _client_facts(public_url: str) -> ClientFacts:
    return ClientFacts(
        client_name=CLIENT_NAME,
        client_uri=public_url,
        redirect_uris=[f"{public_url}{CALLBACK_PATH}"],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
        application_type="web" if public_url.startswith("https:") else "native",
    )


def may_use_document(issuer: IssuerMetadata, public_url: str) -> bool:
    """Whether the authorization server reads client-id metadata documents, and can reach ours."""
    parsed = urlsplit(public_url)
    is_reachable = parsed.scheme == "https" and reach_of_name(parsed.hostname or "") in (None, Reach.PUBLIC)
    return bool(issuer.client_id_metadata_document_supported) and is_reachable


def configured_client(client_id: str, client_secret: str, issuer: IssuerMetadata) -> ClientIdentity:
    """The client that an operator registered by hand."""
    if not client_secret:
        return ClientIdentity(client_id=client_id)
    methods = issuer.token_endpoint_auth_methods_supported
    is_post = methods is not None and "client_secret_basic" not in methods
    method = "client_secret_post" if is_post else "client_secret_basic"
    return ClientIdentity(client_id=client_id, client_secret=client_secret, method=method)


def registration_body(public_url: str, scopes: Sequence[str]) -> bytes:
    """The request of a dynamic registration (RFC 7591)."""
    facts = msgspec.structs.asdict(_client_facts(public_url))
    return msgspec.json.encode(facts | ({"scope": " ".join(scopes)} if scopes else {}))


class _Registered(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


def read_registration(body: bytes) -> ClientIdentity:
    """The registered client. Raises SignInFailed."""
    found = decoded(body, _Registered, "the answer to the registration of Luxx")
    secret = found.client_secret or ""
    method = found.token_endpoint_auth_method or ("client_secret_basic" if secret else "none")
    if not found.client_id or method not in ("none", "client_secret_basic", "client_secret_post"):
        raise SignInFailed("the authorization server registered Luxx in a way that it cannot use")
    return ClientIdentity(
        client_id=found.client_id, client_secret=secret, method=method if secret else "none"
    )


def new_secret() -> str:
    """A random text for a state or a PKCE verifier: 256 bits."""
    return secrets.token_urlsafe(32)


def hash_of_state(state: str) -> str:
    """What is stored of a state, so that the database does not hold it."""
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()


def s256(verifier: str) -> str:
    """The PKCE challenge of a verifier."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class AuthorizationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser is sent to the authorization server with, and what the token request repeats."""

    client: ClientIdentity
    redirect_uri: str
    resource: str
    scopes: tuple[str, ...]
    verifier: str

    def __repr__(self) -> str:
        return f"AuthorizationRequest(resource={self.resource!r})"


def authorization_url(endpoint: str, request: AuthorizationRequest, state: str) -> str:
    """The address that a browser opens."""
    query = {
        "response_type": "code",
        "client_id": request.client.client_id,
        "redirect_uri": request.redirect_uri,
        "state": state,
        "code_challenge": s256(request.verifier),
        "code_challenge_method": "S256",
        "resource": request.resource,
    }
    if request.scopes:
        query["scope"] = " ".join(request.scopes)
    address = parse_url(endpoint).text
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"


def check_issuer(given: str | None, issuer: IssuerMetadata) -> None:
    """Raises SignInFailed if the answer is of another issuer than the one asked (RFC 9207)."""
    if given is None and not issuer.authorization_response_iss_parameter_supported:
        return
    if given != issuer.issuer:
        said = "does not say who it is from" if given is None else f"is from {short(given)}"
        raise SignInFailed(
            f"the answer to the sign-in {said}, and {short(issuer.issuer)} was asked; nothing was sent to "
            "either, start the sign-in again"
        )


def code_form(request: AuthorizationRequest, code: str) -> dict[str, str]:
    """The token request of a sign-in."""
    return {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": request.redirect_uri,
        "code_verifier": request.verifier,
        "resource": request.resource,
        **_own(request.client),
    }


def refresh_form(client: ClientIdentity, refresh_token: str, resource: str) -> dict[str, str]:
    """The token request of a refresh."""
    own = _own(client)
    return {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource, **own}


def revocation_form(client: ClientIdentity, token: str, kind: str) -> dict[str, str]:
    """The request that takes back a token (RFC 7009). `kind`: `access_token` or `refresh_token`."""
    return {"token": token, "token_type_hint": kind, **_own(client)}


def _own(client: ClientIdentity) -> dict[str, str]:
    if client.method == "client_secret_basic":
        return {}
    secret = {"client_secret": client.client_secret} if client.method == "client_secret_post" else {}
    return {"client_id": client.client_id, **secret}


def client_headers(client: ClientIdentity) -> dict[str, str]:
    """The headers of a token request with which this client identifies itself."""
    if client.method != "client_secret_basic":
        return {}
    pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


class _TokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    access_token: str
    token_type: str
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


def read_tokens(body: bytes) -> IssuedTokens:
    """The tokens of a successful answer. Raises SignInFailed."""
    found = decoded(body, _TokenAnswer, "the answer of the token endpoint")
    if found.token_type.lower() != "bearer":
        raise SignInFailed("the authorization server issued a token that is no bearer token")
    refresh = found.refresh_token or ""
    for token in (found.access_token, refresh):
        if len(token) > MOST_TOKEN_CHARS or not token.isascii() or any(one < "!" for one in token):
            raise SignInFailed("the authorization server issued a token that cannot be sent")
    if not found.access_token:
        raise SignInFailed("the authorization server issued an empty token")
    try:
        seconds = None if found.expires_in is None else min(max(float(found.expires_in), 0.0), 1e9)
    except ValueError:
        seconds = None
    scopes = None if found.scope is None else scopes_of(found.scope)
    return IssuedTokens(access=found.access_token, refresh=refresh, seconds=seconds, scopes=scopes)


def read_error(body: bytes) -> TokenError | None:
    """The error of a refused request; None if the body has none."""
    try:
        return msgspec.json.decode(body, type=TokenError)
    except (msgspec.MsgspecError, RecursionError):
        return None


def error_text(error: TokenError) -> str:
    """The error in words for a person."""
    return f"{error.error}: {error.error_description}" if error.error_description else error.error
