"""Limits on connections, in total and per address, and on the time that a request may take to arrive.

`protocol.py` applies them; this module does not depend on uvicorn. uvicorn's `limit_concurrency` would answer
requests with 503 but leave idle connections open, so it saves no descriptors.
"""

import resource
from collections import Counter

import msgspec
import structlog

from luxx.api.http.authentication import PeerReader
from luxx.api.http.envelope import Failure
from luxx.domain.accounts.caller import network_of
from luxx.infra.config.schema import ServerConfig

MAX_DESCRIPTORS = 65_536
"""The most descriptors that the server uses, even if the hard limit is higher."""

RESERVED_DESCRIPTORS = 256
"""The least number of descriptors for databases, providers, tools and files; a quarter if that is more."""

ADDRESSES_AT_LEAST = 4
"""So many addresses are needed to use up the connections, however few there are."""

LOOPBACK_ADDRESSES = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
"""The addresses of a proxy on this machine. Connections from them are not limited per address."""

LOG_SECONDS = 60.0
"""The interval of the log message with the number of refused connections."""

logger = structlog.get_logger()


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard limit, at most MAX_DESCRIPTORS; returns the result."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    max_open = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= max_open:
        return max_open
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_open, hard))
    return max_open


def closing_response(status: str, kind: str, error: str, *headers: bytes) -> bytes:
    """A complete HTTP response with `connection: close`, sent without the application."""
    code = int(status.split(" ")[0])
    body = msgspec.json.encode(Failure(error=error, code=code, detail={"kind": kind}))
    head = [
        f"HTTP/1.1 {status}".encode(),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
        b"x-content-type-options: nosniff",
        *headers,
    ]
    return b"\r\n".join([*head, b"", body])


class ConnectionBounds:
    """The bounds of one server. `descriptors`: how many the process may open."""

    def __init__(self, config: ServerConfig, descriptors: int = MAX_DESCRIPTORS) -> None:
        reserved = min(max(RESERVED_DESCRIPTORS, descriptors // 4), descriptors // 2)
        self.max_open = min(config.connections, descriptors - reserved)
        # Accepted connections that are not counted yet must not use up the reserved descriptors.
        self.backlog = min(2048, reserved // 2)
        self.head_seconds = config.head_seconds
        self._body_seconds = config.body_idle_seconds
        self._bytes_per_second = config.body_bytes_per_second
        # Where few files may be open, an address gets at most its share of the connections.
        share = max(1, self.max_open // ADDRESSES_AT_LEAST)
        self._per_address = min(config.connections_per_address, share)
        self._proxies = PeerReader(config.trusted_proxies)
        self._by_network: Counter[str] = Counter()
        self._refused = 0
        self._logged_at = -LOG_SECONDS
        self.head_timeout_response = closing_response(
            "408 Request Timeout",
            "request_timeout",
            f"the URL and the headers of the request took longer than {config.head_seconds:g} s to "
            "arrive; send them at once",
        )
        self.body_timeout_response = closing_response(
            "408 Request Timeout",
            "request_timeout",
            f"the body of the request paused for more than {config.body_idle_seconds:g} s, or arrived more "
            f"slowly than {config.body_bytes_per_second} bytes a second; it was discarded",
        )

    def admit(self, address: str, open_now: int) -> str | bytes:
        """Counts a connection and returns the argument for `release`, or the response that refuses it."""
        if open_now > self.max_open:
            return TOO_MANY_CONNECTIONS
        if not self._per_address or address in LOOPBACK_ADDRESSES or self._proxies.trusts(address):
            return ""
        network = network_of(address)
        if self._by_network[network] >= self._per_address:
            return TOO_MANY_FROM_ADDRESS
        self._by_network[network] += 1
        return network

    def release(self, network: str) -> None:
        if network and self._by_network[network] > 1:
            self._by_network[network] -= 1
        else:
            self._by_network.pop(network, None)

    def log_refused(self, address: str, now: float) -> None:
        """Logs the number of refused connections, at most every LOG_SECONDS."""
        self._refused += 1
        if now - self._logged_at >= LOG_SECONDS:
            logger.warning("connections_refused", count=self._refused, last_address=address)
            self._refused, self._logged_at = 0, now

    def transfer_seconds(self, size: int) -> float:
        """How long a transfer of `size` bytes may take."""
        return self._body_seconds + (size / self._bytes_per_second if self._bytes_per_second else 0.0)

    def is_too_slow(self, *, idle: float, total: float, received: int) -> bool:
        """Whether a body is too slow. `idle`, `total`: seconds since its last data and since its head."""
        if idle > self._body_seconds:
            return True
        return self._bytes_per_second > 0 and total > self.transfer_seconds(received)


TOO_MANY_CONNECTIONS = closing_response(
    "503 Service Unavailable",
    "too_many_connections",
    "the server has reached its connection limit; try again in a moment",
    b"retry-after: 5",
)
TOO_MANY_FROM_ADDRESS = closing_response(
    "429 Too Many Requests",
    "too_many_connections",
    "your address has too many connections open; close some and try again. Behind a proxy, an operator names "
    "the proxy in server.trusted_proxies",
    b"retry-after: 5",
)
