"""Tool calls of the OpenAI dialect: which call a fragment belongs to, when servers say it badly.

Seen: no index, every call at index 0, id and name on every fragment, empty ids and names,
null arguments, whole calls in one chunk, one id for several calls.
"""

from collections.abc import Callable

import msgspec

from luxx.providers.openai_chunk import ChunkToolCall
from luxx.wire.delta import Delta, ToolCallDelta


class ToolCallReader:
    """Turns fragments into ToolCallDeltas; `new_id` names a call whose server gave none."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int, _OpenCall] = {}

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    def read(self, fragments: list[ChunkToolCall], out: list[Delta]) -> None:
        for position, fragment in enumerate(fragments):
            name, arguments = _words(fragment)
            call = self._call_of(fragment, position, name, arguments)
            self._grow(call, name, arguments, out)

    def close(self, out: list[Delta]) -> None:
        """Gives calls that never got a name, so that the loop can answer them with an error."""
        for call in self._calls:
            if not call.is_shown:
                self._show(call, out)

    def _call_of(self, fragment: ChunkToolCall, position: int, name: str, arguments: str) -> "_OpenCall":
        index, call_id = fragment.index, fragment.id or ""
        if index is not None:
            call = self._by_index.get(index)
        elif position and name and not call_id:
            call = None
        else:
            call = self._with_id(call_id) or (self._calls[-1] if self._calls else None)
        if call is None or _begins_another(call, call_id, name, arguments):
            # The same id for two calls would make their results indistinguishable.
            call = _OpenCall(len(self._calls), "" if self._with_id(call_id) else call_id)
            self._calls.append(call)
        elif call_id and not call.call_id and not self._with_id(call_id):
            call.call_id = call_id
        if index is not None:
            self._by_index[index] = call
        return call

    def _with_id(self, call_id: str) -> "_OpenCall | None":
        if not call_id:
            return None
        return next((call for call in self._calls if call.call_id == call_id), None)

    def _grow(self, call: "_OpenCall", name: str, arguments: str, out: list[Delta]) -> None:
        if arguments:
            call.arguments.append(arguments)
        if call.is_shown:
            if arguments:
                out.append(
                    ToolCallDelta(slot=call.slot, call_id=call.call_id, name=call.name, arguments=arguments)
                )
        elif name:
            call.name = name
            self._show(call, out)

    def _show(self, call: "_OpenCall", out: list[Delta]) -> None:
        call.is_shown = True
        # 40 characters is the longest id OpenAI takes back.
        call.call_id = call.call_id or f"call_{self._new_id().replace('-', '')}"
        out.append(
            ToolCallDelta(
                slot=call.slot, call_id=call.call_id, name=call.name, arguments="".join(call.arguments)
            )
        )


class _OpenCall:
    """`is_shown`: its first delta, with id and name, is out."""

    __slots__ = ("arguments", "call_id", "is_shown", "name", "slot")

    def __init__(self, slot: int, call_id: str) -> None:
        self.slot = slot
        self.call_id = call_id
        self.name = ""
        self.arguments: list[str] = []
        self.is_shown = False

    def is_whole(self) -> bool:
        """Whether the arguments so far are a JSON object; the cheap look first, it is asked often."""
        if not self.arguments or not self.arguments[-1].rstrip().endswith("}"):
            return False
        try:
            msgspec.json.decode("".join(self.arguments))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return False
        return True


def _words(fragment: ChunkToolCall) -> tuple[str, str]:
    function = fragment.function
    if function is None:
        return "", ""
    return function.name or "", function.arguments or ""


def _begins_another(call: _OpenCall, call_id: str, name: str, arguments: str) -> bool:
    if not name or call_id == call.call_id != "":
        return False
    if call_id and call.call_id:
        # A new id alone is no new call: some servers make one up for every fragment.
        return not call.is_shown or name != call.name or call.is_whole() or not call.arguments
    if not call.name:
        return False
    return name != call.name or (bool(arguments) and call.is_whole())
