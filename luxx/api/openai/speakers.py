"""The answer of a room: the texts of its seats in the order in which they began, each below its name.

Where several seats speak at once, the text of one follows when those before it have ended.
"""

from collections import deque

import msgspec

from luxx.features.rooms.calls import SpokenText, heading
from luxx.wire.event import CostUpdate, ErrorEvent
from luxx.wire.orchestration_event import AgentError, MessageEnd, MessageStart, RoomCompleted
from luxx.wire.run import StopReason
from luxx.wire.turn import Usage

CUT_BY = frozenset({"tokens", "cost", "seconds", StopReason.TIME, StopReason.CANCELLED})
"""Stop reasons with which the discussion was cut; the others are its regular end."""

PAUSED = ErrorEvent(
    message="the room was paused before it had answered; resume it, then follow its run", code="room_paused"
)

_start = msgspec.json.Decoder(MessageStart)
_end = msgspec.json.Decoder(MessageEnd)
_agent_error = msgspec.json.Decoder(AgentError)
_cost = msgspec.json.Decoder(CostUpdate)
_completed = msgspec.json.Decoder(RoomCompleted)


class Speakers:
    """Orders the texts. What its methods return is the next part of the answer, often empty.

    `has_text`: a seat has said something. `finish`: why the run ended, in OpenAI's words, once it has.
    """

    def __init__(self) -> None:
        self.usage = Usage()
        self.has_text = False
        self.last_error: ErrorEvent | None = None
        self.finish: str | None = None
        self.has_paused = False
        self._order: deque[str] = deque()
        self._heads: dict[str, str] = {}
        self._texts: dict[str, SpokenText] = {}
        self._ended: set[str] = set()
        self._is_first = True

    def on_event(self, type_: str, data: bytes) -> str:
        """Reads an event of the run that belongs to no step."""
        match type_:
            case "message_start":
                start = _start.decode(data)
                self._begin(str(start.msg_id), start.sender_name)
            case "message_end":
                return self._finish(str(_end.decode(data).msg_id))
            case "agent_error":
                return self._failed(_agent_error.decode(data))
            case "cost_update":
                self.usage = _cost.decode(data).usage
            case "room_completed":
                reason = _completed.decode(data).stop_reason
                self.finish = "length" if reason in CUT_BY else "stop"
            case "room_paused":
                self.has_paused = True
            case _:
                pass
        return ""

    def add(self, msg_id: str, text: str) -> str:
        """Reads the next fragment of a seat's text."""
        if msg_id not in self._heads:
            return ""  # Of a model that chooses who speaks next.
        self.has_text = True
        self._texts[msg_id].add(text)
        return self._flush()

    def rest(self) -> str:
        """What is left when the run has ended."""
        self._ended.update(self._order)
        return self._flush()

    def _begin(self, msg_id: str, name: str) -> None:
        self._order.append(msg_id)
        self._heads[msg_id], self._texts[msg_id] = heading(name), SpokenText()

    def _finish(self, msg_id: str) -> str:
        self._ended.add(msg_id)
        return self._flush()

    def _failed(self, event: AgentError) -> str:
        self.last_error = ErrorEvent(message=event.message, code=event.code)
        msg_id = str(event.msg_id)
        if msg_id not in self._heads:
            # Its seat could not begin.
            msg_id = f"{event.seat_id} {len(self._heads)}"
            self._begin(msg_id, event.sender_name)
        gap = "\n\n" if self._texts[msg_id] or not self._heads[msg_id] else ""
        self._texts[msg_id].add(f"{gap}*(failed: {event.message})*")
        return self._finish(msg_id)

    def _flush(self) -> str:
        """Takes what can be written: the text of the first seat that has not ended, and of those before.

        Failures are written once a seat has said something: before, the call may still fail as a whole.
        """
        parts: list[str] = []
        while self._order and self.has_text:
            first = self._order[0]
            text = self._texts[first].take(is_ended=first in self._ended)
            if text:
                if head := self._heads[first]:
                    parts.append(head if self._is_first else f"\n\n{head}")
                    self._heads[first], self._is_first = "", False
                parts.append(text)
            if first not in self._ended:
                break
            self._order.popleft()
        return "".join(parts)
