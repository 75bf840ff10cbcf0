"""What the model is told of a person's part in its call. What the call itself answers is not here."""

from typing import Any

import msgspec

from luxx.tools.core import Approved

# Of arguments that a person changed; the model knows the rest from its own.
_MOST_TOLD = 4000


def note_of(approved: Approved) -> str | None:
    """Of a call that was made; None where there is nothing to know."""
    said = "" if approved.note is None else f" They say: {approved.note}"
    if approved.is_edited:
        return (
            "The person whom you work for changed the arguments before this call was made; it was made with "
            f"{_shown(approved.arguments)} and this is its result.{said}"
        )
    return f"The person whom you work for allowed this call.{said}" if said else None


def note_of_denied(approved: Approved) -> str:
    """Of a call that was not made, because what they changed it to is denied."""
    return (
        f"The person whom you work for changed the arguments to {_shown(approved.arguments)}, "
        "and with these the call is denied."
    )


def _shown(arguments: dict[str, Any]) -> str:
    return msgspec.json.encode(arguments).decode()[:_MOST_TOLD]
