"""What tools of MCP servers are called here: `mcp__{tenant}_{server}__{tool}`, as all model vendors take it.

A part that is kept as it is can be read back; one that had to be changed ends in a digest of what it was.
"""

import hashlib
import re

PREFIX = "mcp__"
MOST = 64
MOST_SERVER = 20
MOST_TENANT = 20
_DIGEST = 8
_NOT_PLAIN = re.compile(r"[^a-z0-9-]")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


def server_prefix(tenant: str, server: str) -> str:
    """What the names of all tools of this server begin with, and of no other's. `server` is plain already."""
    plain = _NOT_PLAIN.sub("-", tenant.lower())
    if plain != tenant or len(plain) > MOST_TENANT:
        # Tenants whose names differ only in what cannot be said here stay apart.
        plain = f"{plain[: MOST_TENANT - _DIGEST - 1]}-{_digest(tenant)}"
    return f"{PREFIX}{plain}_{server}__"


def tool_name(prefix: str, tool: str) -> str:
    """The name of a server's tool: the same for the same tool, whatever else there is."""
    plain = _NOT_ALLOWED.sub("_", tool)
    if plain and plain == tool and len(prefix) + len(plain) <= MOST:
        return prefix + plain
    return f"{prefix}{plain[: MOST - len(prefix) - _DIGEST - 1]}_{_digest(tool)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_DIGEST]
