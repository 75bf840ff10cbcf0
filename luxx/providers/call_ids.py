"""Ids and names of calls in the form that every vendor accepts: a conversation may cross vendors."""

import re
from hashlib import sha256

_VALID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class CallIds:
    """Maps call ids to the ids that are sent: only characters that vendors accept, unique in the history."""

    def __init__(self) -> None:
        self._used_ids: set[str] = set()
        self._sent_ids: dict[str, str] = {}

    def assign(self, call_id: str) -> str:
        """The id to send for a call; its result is sent under the same id."""
        sent = call_id if _VALID.fullmatch(call_id) else f"call_{sha256(call_id.encode()).hexdigest()[:24]}"
        if sent in self._used_ids:
            sent = f"{sent[:48]}_{len(self._used_ids)}"  # At most 64 characters.
        self._used_ids.add(sent)
        self._sent_ids[call_id] = sent
        return sent

    def sent_id(self, call_id: str) -> str:
        """The id that was last assigned to the call; the id itself if there is none."""
        return self._sent_ids.get(call_id, call_id)


def accepted_name(name: str) -> str:
    """The name itself if it is acceptable; a model may have called a tool by any name."""
    return name if _VALID.fullmatch(name) else re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"
