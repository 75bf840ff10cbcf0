"""The input of `POST /v1/responses`: its items, and how they are read as messages."""

from collections import deque
from typing import Any, Literal, cast

import msgspec

from luxx.api.openai.content import Given, ItemType, left_out, read_image, result_of
from luxx.errors import InvalidInput
from luxx.providers.openai_chat.reasoning import FIELD_KEY
from luxx.wire.message import PromptImage


class InputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message: a text (`text`), an image as a data URL (`image_url`), or a `refusal`."""

    type: ItemType
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


Parts = str | list[InputPart]

PART_TYPES = ("input_text", "output_text", "text", "input_image", "refusal")

CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "tool_search_call": "arguments",
}
"""The items that are calls of the client's tools, with the members that have their arguments."""

OUTPUTS = {
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "tool_search_output": "tools",
}
"""The items that are results of such calls, with the members that have them."""

UNREADABLE_PARTS = frozenset({"encrypted_content"})
"""Parts that only the server which made them can read, as Codex keeps them; they are left out."""

REFUSED_ITEMS = {
    "item_reference": "this server keeps no answers, so it has no items to refer to; send the item itself",
    "compaction": "this server cannot read compacted items; send the items themselves",
    "context_compaction": "this server cannot read compacted items; send the items themselves",
}


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the input: a message (`role`, `content`), a call of a tool of the client (`call_id`, `name`,
    and its arguments in `arguments`, `input`, `action` or `operation`), its result (`call_id`, and `output`
    or `tools`), or the reasoning before calls (`content`, `summary`). Items of other types are left out."""

    type: ItemType = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Parts | None = None
    summary: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    action: Any = None
    operation: Any = None
    output: Any = None
    tools: Any = None


class InputReader:
    """Reads the items of an input. The output of a call may stand anywhere after it."""

    def __init__(self, items: list[InputItem]) -> None:
        self._items = items
        self._given = Given(instructions=[], past=[])
        self._left_out: list[str] = []
        self._thinking: list[str] = []
        self._replay: dict[str, Any] = {}
        self._outputs: dict[str, deque[int]] = {}
        self._answered: set[str] = set()

    def read(self) -> Given:
        """All items. Raises InvalidInput, with the path of the wrong one."""
        self._find_outputs()
        position = 0
        while position < len(self._items):
            if self._items[position].type in CALLS:
                position = self._add_calls(position)
                continue
            self._add_other(self._items[position], f"$.input[{position}]")
            position += 1
        self._given.warnings += left_out("items", self._left_out)
        return self._given

    def _find_outputs(self) -> None:
        call_ids: set[str | None] = set()
        for position, item in enumerate(self._items):
            if item.type in CALLS:
                call_ids.add(item.call_id)
            elif item.type == "function_call_output" and item.call_id not in call_ids:
                raise InvalidInput(
                    "a function_call_output needs the call_id of a function_call before it",
                    field=f"$.input[{position}]",
                )
            if item.type in OUTPUTS and item.call_id:
                self._outputs.setdefault(item.call_id, deque()).append(position)

    def _add_other(self, item: InputItem, field: str) -> None:
        if item.type == "message":
            self._add_message(item, field)
        elif item.type == "reasoning":
            self._add_reasoning(item)
        elif item.type in REFUSED_ITEMS:
            raise InvalidInput(REFUSED_ITEMS[item.type], field=f"{field}.type")
        elif not (item.type in OUTPUTS and item.call_id in self._answered):
            self._left_out.append(item.type)

    def _add_message(self, item: InputItem, field: str) -> None:
        if item.role is None or item.content is None:
            raise InvalidInput("a message needs a role and content", field=field)
        if item.role == "user":
            self._thinking, self._replay = [], {}
            self._given.add_user(self._parts(item.content, f"{field}.content"))
            return
        text = self._text(item.content, f"{field}.content")
        if item.role == "assistant":
            self._given.add_assistant(text, "", [], {})
        else:
            self._given.instructions.append(text)

    def _add_reasoning(self, item: InputItem) -> None:
        """Keeps the reasoning for the calls that follow: some servers want it back with them. A summary is
        no text that a server knows again."""
        texts = _texts_of(item.content)
        if texts:
            self._replay = {FIELD_KEY: "reasoning_content"}
        self._thinking += texts or _texts_of(item.summary)

    def _add_calls(self, start: int) -> int:
        """Adds the calls of an answer from `start` on with their results; the position after them."""
        calls: list[tuple[str, str, str]] = []
        results: dict[str, tuple[str, list[PromptImage]]] = {}
        seen: set[str | None] = set()
        position = start
        while position < len(self._items):
            item, field = self._items[position], f"$.input[{position}]"
            if item.type in CALLS:
                if calls and len(seen) == len(calls):
                    break  # The calls of a further answer.
                call = self._call(item, field, position)
                if call is not None:
                    calls.append(call[0])
                    results[call[0][0]] = call[1]
            elif item.type in OUTPUTS:
                self._add_other(item, field)
                seen |= {item.call_id} & results.keys()
            elif item.type == "reasoning" and len(seen) < len(calls):
                self._add_reasoning(item)
            else:
                break
            position += 1
        if len(results) != len(calls):
            raise InvalidInput("each function_call needs a call_id of its own", field=f"$.input[{start}]")
        if calls:
            texts = {call_id: text for call_id, (text, _) in results.items()}
            images = {call_id: images for call_id, (_, images) in results.items()}
            thinking, replay = "\n".join(self._thinking), self._replay
            self._thinking, self._replay = [], {}
            self._given.add_assistant("", thinking, calls, texts, images=images, replay=replay)
        return position

    def _call(
        self, item: InputItem, field: str, position: int
    ) -> tuple[tuple[str, str, str], tuple[str, list[PromptImage]]] | None:
        """A call (id, name, arguments) with its result; None if it is left out."""
        outputs = self._outputs.get(item.call_id or "", deque[int]())
        while outputs and outputs[0] < position:
            outputs.popleft()
        given = getattr(item, CALLS[item.type])
        is_function = item.type == "function_call"
        if is_function and (not item.call_id or not item.name or given is None):
            raise InvalidInput("a function_call needs call_id, name and arguments", field=field)
        if is_function and not outputs:
            raise InvalidInput(
                f"a function_call needs a function_call_output after it; missing: {item.call_id}"[:300],
                field=field,
            )
        if not outputs or not item.call_id:
            self._left_out.append(item.type)
            return None
        at = outputs.popleft()
        self._answered.add(item.call_id)
        arguments = _arguments(CALLS[item.type], given)
        name = item.name or item.type.removesuffix("_call")
        return (item.call_id, name, arguments), self._result(self._items[at], f"$.input[{at}]")

    def _result(self, item: InputItem, field: str) -> tuple[str, list[PromptImage]]:
        member = OUTPUTS[item.type]
        output = getattr(item, member)
        if output is None:
            raise InvalidInput("the output of a call is missing; send a text", field=f"{field}.{member}")
        if isinstance(output, str):
            return output, []
        parts = cast("list[Any]", output) if isinstance(output, list) and member == "output" else []
        if not parts or not all(isinstance(part, dict) and "type" in part for part in parts):
            return ("" if output == [] else msgspec.json.encode(output).decode()), []
        try:
            return result_of(self._parts(msgspec.convert(parts, list[InputPart]), f"{field}.output"))
        except msgspec.ValidationError as error:
            raise InvalidInput(
                "the parts of an output are texts and images", field=f"{field}.output"
            ) from error

    def _text(self, content: Parts, field: str) -> str:
        parts = self._parts(content, field)
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise InvalidInput("only messages of the user may have images", field=field)
        return "\n".join(texts)

    def _parts(self, content: Parts, field: str) -> list[str | PromptImage]:
        """The texts and images in their order."""
        if isinstance(content, str):
            return [content]
        parts: list[str | PromptImage] = []
        for index, part in enumerate(content):
            path = f"{field}[{index}]"
            if part.type in UNREADABLE_PARTS:
                self._left_out.append(part.type)
                continue
            if part.type not in PART_TYPES:
                raise InvalidInput(f"must be one of {', '.join(PART_TYPES)}", field=f"{path}.type")
            if part.type == "input_image":
                parts.append(read_image(part.image_url or "", f"{path}.image_url"))
                continue
            text = part.refusal if part.type == "refusal" else part.text
            if text is None:
                raise InvalidInput(f"a part of the type {part.type} needs its text", field=path)
            parts.append(text)
        return parts


def _arguments(member: str, given: object) -> str:
    """The arguments of a call as JSON text."""
    if member == "arguments" and isinstance(given, str):
        return given
    value = {member: given} if member == "input" else given
    return msgspec.json.encode({} if value is None else value).decode()


def _texts_of(parts: object) -> list[str]:
    """The texts of the parts of reasoning."""
    texts: list[str] = []
    for part in cast("list[object]", parts) if isinstance(parts, list) else []:
        text = cast("dict[str, object]", part).get("text") if isinstance(part, dict) else None
        text = part.text if isinstance(part, InputPart) else text
        if isinstance(text, str) and text:
            texts.append(text)
    return texts
