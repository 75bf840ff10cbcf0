"""The way to a remote MCP server: its address, where connections go, and what authorizes requests.

Not here: HTTP and WebSocket themselves (`http`, `websocket`), which are loaded with the SDK.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from luxx.domain.mcp.inbox import Secrets
from luxx.domain.mcp.models import Credential, ServerTransport
from luxx.domain.mcp.sign_in import Authorization, Grants, NeedsSignIn, RefusedRequest, RefusedStranger
from luxx.errors import InvalidInput, ProviderError, ToolFailed
from luxx.infra.network.hosts import DEFAULT_PORTS, canonical_host
from luxx.infra.network.urls import host_part
from luxx.providers.addresses import AddressGuard, Endpoint

MOST_ADDRESSES = 4
"""How many addresses of a name are tried."""

UNSENT, LOST = "luxx-unsent", "luxx-lost"
"""In `data` of an error that stands for a missing answer: whether the server may have got the request."""

SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
"""The schemes of servers, and those that have the same ports."""


class LinkProblem(Exception):
    """A request has no answer. The message is a predicate that follows the server's name. `is_sent`: the
    server may have received the request."""

    def __init__(self, message: str, *, is_sent: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_sent = is_sent


class RemoteAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is, in canonical form. `endpoint` has the scheme http or https also for WebSocket."""

    scheme: str
    endpoint: Endpoint

    @property
    def url(self) -> str:
        return f"{self.scheme}:{self.endpoint.url.partition(':')[2]}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.endpoint.host_port}"


def parse_server_url(text: str, transport: ServerTransport) -> RemoteAddress:
    """Parses the URL of a remote server. Raises InvalidInput."""
    schemes = ("ws", "wss") if transport is ServerTransport.WEBSOCKET else ("http", "https")
    example = f"{schemes[1]}://example.com/mcp"
    if not text:
        raise InvalidInput(f"a server with the transport {transport} needs its url, such as {example}")
    if any(letter.isspace() or letter == "\\" or not 32 < ord(letter) < 127 for letter in text):
        raise InvalidInput(
            "the url must be plain ASCII without spaces and backslashes; percent-encode others"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"the url is not valid; write it like {example}") from error
    scheme = parts.scheme.lower()
    if scheme not in schemes:
        raise InvalidInput(f"the url must begin with {schemes[0]}:// or {schemes[1]}://")
    if "@" in parts.netloc or "#" in text:
        raise InvalidInput("the url must contain no user name, password or fragment (#…); use headers")
    if not parts.hostname or port == 0:
        raise InvalidInput(f"the url needs a host and no port 0; write it like {example}")
    web_scheme = SCHEMES[scheme]
    endpoint = Endpoint(
        scheme=web_scheme,
        host=canonical_host(host_part(parts.netloc)),
        port=DEFAULT_PORTS[web_scheme] if port is None else port,
        path=parts.path,
        query=parts.query,
    )
    return RemoteAddress(scheme=scheme, endpoint=endpoint)


class Link:
    """The way to one server for one user, or for all (None). `problem`: why the last request had no answer.

    `sign_in`: that its user has to sign in first, or that it needs a credential. `headers`: those of its row.
    """

    def __init__(
        self,
        *,
        server_id: str,
        name: str,
        transport: ServerTransport,
        url: str,
        headers: Mapping[str, str],
        credential: Credential,
        user_id: int | None,
        guard: AddressGuard,
        grants: Grants,
    ) -> None:
        self.transport = transport
        self.address = parse_server_url(url, transport)
        self.headers = dict(headers)
        self.problem: LinkProblem | None = None
        self.sign_in: NeedsSignIn | RefusedStranger | None = None
        self._server_id = server_id
        self._name = name
        self._credential = credential
        self._user_id = user_id
        self._guard = guard
        self._grants = grants
        self._sent_header = ""

    @property
    def secrets(self) -> Secrets:
        """What answers must not contain: the values of headers, and the token that was sent last."""
        values = [*self.headers.values(), self._sent_header]
        return Secrets(f"={secret}" for value in values for secret in {value, value.rpartition(" ")[2]})

    def hidden(self, text: str) -> str:
        """A text of the server without secrets."""
        return self.secrets.hidden(text)

    async def addresses(self) -> list[str]:
        """The only addresses to connect to. Raises LinkProblem."""
        endpoint = self.address.endpoint
        try:
            found = await self._guard.check_connect(endpoint.host, endpoint.port)
        except ProviderError as error:
            raise self.failed(LinkProblem(f"cannot be reached: {error.message}")) from error
        return found[:MOST_ADDRESSES]

    async def authorization(self) -> Authorization | None:
        """What authorizes the next request besides its headers. Raises LinkProblem."""
        if self._credential is Credential.NONE:
            return None
        try:
            return self._sent(await self._grants.authorization(self._server_id, self._user_id))
        except ToolFailed as error:
            raise self._unauthorized(error) from error

    async def refused(self, refusal: RefusedRequest) -> Authorization:
        """What authorizes a request that was refused. Raises LinkProblem."""
        if self._credential is Credential.NONE:
            advice = "give it a header Authorization, or a credential if it uses OAuth"
            problem = LinkProblem(f"refused the request (status {refusal.status}): {advice}")
            self.sign_in = RefusedStranger(problem.message) if refusal.status == 401 else None
            raise self.failed(problem)
        try:
            authorization = await self._grants.refused(self._server_id, self._user_id, refusal)
        except ToolFailed as error:
            raise self._unauthorized(error) from error
        self._sent(authorization)
        return authorization

    def failed(self, problem: LinkProblem) -> LinkProblem:
        """Records the problem and returns it."""
        self.problem = problem
        return problem

    def _sent(self, authorization: Authorization | None) -> Authorization | None:
        self._sent_header = "" if authorization is None else authorization.header
        return authorization

    def _unauthorized(self, error: ToolFailed) -> LinkProblem:
        self.sign_in = error if isinstance(error, NeedsSignIn) else None
        return self.failed(LinkProblem(error.message))
