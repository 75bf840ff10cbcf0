"""Parses URLs so that every later parser sees the same host, and the list of allowed hosts."""

import re
from collections.abc import Iterable
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from luxx.errors import InvalidInput
from luxx.infra.network.hosts import (
    DEFAULT_PORTS,
    Reach,
    canonical_host,
    is_literal,
    join_host_port,
    reach_of_name,
)

MAX_URL = 4096
_BAD = re.compile(r"[\s\\\x00-\x20\x7f\ud800-\udfff]")
# Characters of a target that are not percent-encoded on the wire; `%` keeps existing encodings.
_UNENCODED = "!$%&'()*+,-./:;=?@[]_|~^"
# Lower ports belong to services that must not receive HTTP requests, such as mail and SSH.
_FIRST_FREE_PORT = 1024


class WebUrl(msgspec.Struct, frozen=True, kw_only=True):
    """`host` is canonical; `target` is the path with its query. A fragment is dropped."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The host, with the port unless it is the scheme's default."""
        host_port = join_host_port(self.host, self.port)
        return host_port.rpartition(":")[0] if DEFAULT_PORTS[self.scheme] == self.port else host_port

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def target_on_the_wire(self) -> bytes:
        """The target with all other characters percent-encoded."""
        return quote(self.target, safe=_UNENCODED).encode()


def parse_url(text: str) -> WebUrl:
    """The URL in `text`. Raises InvalidInput with a sentence that says what is wrong with it."""
    text = text.strip()
    if not text or len(text) > MAX_URL:
        raise InvalidInput(f"a URL has 1 to {MAX_URL:,} characters")
    if _BAD.search(text):
        raise InvalidInput("a URL contains no spaces, control characters or backslashes; percent-encode them")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"'{_shown(text)}' is not a valid URL") from error
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise InvalidInput(f"'{_shown(text)}' does not begin with http:// or https://")
    if "@" in parts.netloc:
        raise InvalidInput("the URL contains a user name or password; remove it")
    if not parts.hostname:
        raise InvalidInput(f"'{_shown(text)}' has no host")
    port = DEFAULT_PORTS[scheme] if port is None else port
    if port < _FIRST_FREE_PORT and port not in DEFAULT_PORTS.values():
        raise InvalidInput(f"port {port} is not allowed: the port must be 80, 443, or 1024 and above")
    target = parts.path or "/"
    if not target.startswith("/"):
        raise InvalidInput(f"'{_shown(text)}' is not a valid URL")
    if parts.query:
        target += f"?{parts.query}"
    return WebUrl(scheme=scheme, host=canonical_host(host_part(parts.netloc)), port=port, target=target)


def next_url(url: WebUrl, location: str) -> WebUrl:
    """The target of a redirect. Raises InvalidInput."""
    try:
        return parse_url(urljoin(url.text, location))
    except ValueError as error:
        raise InvalidInput(f"'{_shown(location)}' is not a valid URL") from error


def host_part(netloc: str) -> str:
    """The host without its port; an IPv6 host keeps its brackets."""
    if netloc.startswith("["):
        return netloc.partition("]")[0] + "]"
    return netloc.partition(":")[0]


def _shown(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"


DEFAULT_PORT_SET = frozenset(DEFAULT_PORTS.values())
"""The ports of an entry without a port."""

_PORT = re.compile(r"(.+):([0-9]{1,5})")
_WILDCARD = "*."
_FORMAT_HINT = "write it like example.org, example.org:8443 or *.example.org"


class AllowedHost(msgspec.Struct, frozen=True, kw_only=True):
    """`host` is canonical. `is_suffix`: the entry means all names below `host`, and not `host` itself."""

    host: str
    ports: frozenset[int]
    is_suffix: bool = False

    def allows(self, host: str, port: int) -> bool:
        matches_host = host.endswith(f".{self.host}") if self.is_suffix else host == self.host
        return matches_host and port in self.ports


class AllowList:
    """Raises InvalidInput for an invalid entry."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = tuple(allowed_host(text) for text in entries)

    def allows(self, host: str, port: int) -> bool:
        """Whether a canonical host is listed, with this port."""
        return any(entry.allows(host, port) for entry in self._entries)


def allowed_host(text: str) -> AllowedHost:
    """Parses one entry. Raises InvalidInput."""
    name, ports = text.strip(), DEFAULT_PORT_SET
    is_suffix = name.startswith(_WILDCARD)
    name = name.removeprefix(_WILDCARD)
    if (match := _PORT.fullmatch(name)) is not None and not name.endswith("]"):
        name, ports = match[1], frozenset({int(match[2])})
    if not all(0 < port < 65536 for port in ports):
        raise InvalidInput(f"'{text}' has an invalid port; {_FORMAT_HINT}")
    try:
        host = canonical_host(name)
    except InvalidInput as error:
        raise InvalidInput(f"'{text}' is not a host; {_FORMAT_HINT}") from error
    if is_suffix and (is_literal(host) or "." not in host):
        raise InvalidInput(f"'{text}' allows too many hosts; name at least two parts, as in *.example.org")
    if reach_of_name(host) is Reach.FORBIDDEN:
        host_port = join_host_port(host, min(ports))
        raise InvalidInput(
            f"{host_port} is a metadata or link-local address, which is never reached; remove it"
        )
    return AllowedHost(host=host, ports=ports, is_suffix=is_suffix)
