"""How full the context window of a conversation is, as `luxx chat` says it."""

import msgspec

from luxx.app.cli.server_api import ServerApi

PARTS = {
    "system": "system prompt",
    "memory": "memories",
    "history": "messages",
    "tail": "reminders",
}
"""What a part of a prompt is for, where its name does not say it."""


class WindowPart(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    tokens: int


class LastCompression(msgspec.Struct, frozen=True, kw_only=True):
    summary: str = ""


class WindowUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the next prompt of a conversation takes."""

    budget: int
    estimated_tokens: int
    utilization_pct: float
    parts: list[WindowPart]
    last_compression: LastCompression | None


async def window_lines(server: ServerApi, conversation_id: str) -> list[str]:
    """The lines of `/context`. Raises LuxxError."""
    use = await server.call("GET", f"/conversations/{conversation_id}/context", WindowUse)
    lines = [
        f"{use.utilization_pct:g} % used: about {use.estimated_tokens:,} of {use.budget:,} tokens",
        ", ".join(f"{PARTS.get(part.name, part.name)} {part.tokens:,}" for part in use.parts)
        or "nothing is sent yet",
    ]
    if use.last_compression is not None and use.last_compression.summary:
        lines += ["the summary of what is left out:", use.last_compression.summary]
    return lines
