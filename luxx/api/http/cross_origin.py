"""Origins of pages. Those in `server.cors_origins` may call the OpenAI-compatible API (CORS).

Other paths serve pages of the server's own origin only. No credentials of the browser are allowed: a page
sends an API key.
"""

import re
from typing import Any

from luxx.api.http.envelope import is_openai_path
from luxx.infra.config.schema import ServerConfig

RawHeaders = list[tuple[bytes, bytes]]

ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]+)")
EXPOSED = b"x-request-id, retry-after, x-should-retry"
PREFLIGHT_SECONDS = b"600"


def is_same_host(origin: bytes, host: bytes) -> bool:
    """Whether the page is of the host that the request is for."""
    match = ORIGIN.fullmatch(origin.decode("latin-1").lower())
    if match is None:
        return False
    default = ":80" if match["scheme"] == "http" else ":443"
    return match["authority"].removesuffix(default) == host.decode("latin-1").lower().removesuffix(default)


class CrossOrigin:
    """Which origins may call `/v1`, and the headers that tell browsers so."""

    def __init__(self, config: ServerConfig) -> None:
        self._origins = frozenset(origin.lower().encode() for origin in config.cors_origins)
        self._is_any = b"*" in self._origins

    def allows(self, path: str, origin: bytes) -> bool:
        """Whether a page of this origin may send requests to this path."""
        if not self._origins or not is_openai_path(path):
            return False
        return self._is_any or origin.lower() in self._origins

    def headers(self, path: str, origin: bytes) -> RawHeaders:
        """What the response to a request of this origin gets; nothing if it is not allowed."""
        if not self.allows(path, origin):
            return []
        allowed = b"*" if self._is_any else origin
        headers = [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", EXPOSED)]
        return headers if self._is_any else [*headers, (b"vary", b"Origin")]

    @staticmethod
    def preflight(scope: Any) -> dict[str, Any] | None:
        """The start of the response to an allowed preflight request; None if it is another request."""
        if scope["method"] != "OPTIONS":
            return None
        asked = dict(scope["headers"])
        if b"access-control-request-method" not in asked:
            return None
        headers = [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
            (b"content-length", b"0"),
        ]
        if names := asked.get(b"access-control-request-headers"):
            headers.append((b"access-control-allow-headers", names))
        return {"type": "http.response.start", "status": 200, "headers": headers}
