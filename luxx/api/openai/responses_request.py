"""The body of `POST /v1/responses`, and what a run is given of it."""

from collections import deque
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from luxx.api.openai.content import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Effort,
    FunctionName,
    Given,
    ItemType,
    MaxTokens,
    Metadata,
    ModelName,
    SchemaFormat,
    Temperature,
    check_tools,
    read_image,
    result_of,
    schema_of,
    tool_choice,
    tool_spec,
)
from luxx.api.openai.ignored import left_out, wants_thinking
from luxx.errors import InvalidInput
from luxx.runs.turn.state import GivenPrompt
from luxx.wire.message import PromptImage
from luxx.wire.question import WhenAsked
from luxx.wire.tool import ToolSpec


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

OUTPUTS = frozenset({f"{call}_output" for call in CALLS} | {"tool_search_output"})

REFUSED_ITEMS = {
    "item_reference": "this server keeps no answers, so it has no items to refer to; send the item itself",
    "compaction": "this server cannot read compacted items; send the items themselves",
    "context_compaction": "this server cannot read compacted items; send the items themselves",
}


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the input: a message (`role`, `content`), a call of a tool of the client (`call_id`, `name`,
    and its arguments in `arguments`, `input`, `action` or `operation`), or its result (`call_id`, `output`).
    Reasoning and items of other types are left out."""

    type: ItemType = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    action: Any = None
    operation: Any = None
    output: Any = None


class ResponsesTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the client runs. `parameters` is a JSON schema; `strict` has no effect. Tools of other
    types are left out."""

    type: ItemType
    name: FunctionName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function that the model must call."""

    type: Literal["function"]
    name: str


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer's text: `text`, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`summary` and `generate_summary` have no effect."""

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None


Ignored = Any
"""A parameter of OpenAI's that is accepted and has no effect."""

UNSUPPORTED = {
    "previous_response_id": "this server keeps no answers; send all items as input, or a conversation_id in "
    "metadata",
    "conversation": "name a conversation of yours as conversation_id in metadata",
    "prompt": "this server has no stored prompts; send instructions, or use an agent",
    "background": "every answer is a run that can be followed at /runs; leave out background",
}


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True):
    """A request for an answer. Unknown members are left out."""

    model: ModelName
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    stream: bool | None = None
    tools: Annotated[list[ResponsesTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    temperature: Temperature | None = None
    max_output_tokens: MaxTokens | None = None
    reasoning: ReasoningOptions | None = None
    metadata: Metadata | None = None
    previous_response_id: Ignored = None
    conversation: Ignored = None
    prompt: Ignored = None
    background: Ignored = None
    include: Ignored = None
    max_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None
    stream_options: Ignored = None
    top_logprobs: Ignored = None
    top_p: Ignored = None
    truncation: Ignored = None
    user: Ignored = None

    def check(self) -> None:
        """Raises InvalidInput for what is not supported."""
        for name, advice in UNSUPPORTED.items():
            if getattr(self, name):
                raise InvalidInput(advice, field=f"$.{name}")

    @property
    def functions(self) -> list[ResponsesTool]:
        """The tools that the model can call."""
        return [one for one in self.tools or [] if one.type == "function"]

    def prompt_of(self, given: Given) -> GivenPrompt:
        """What the run is given. Raises InvalidInput."""
        tools: list[ToolSpec] = []
        for index, tool in enumerate(self.tools or []):
            if tool.type == "function" and tool.name is None:
                raise InvalidInput("a function needs its name", field=f"$.tools[{index}].name")
            if tool.type == "function":
                tools.append(tool_spec(str(tool.name), tool.description, tool.parameters))
        given.warnings += left_out("tools", (one.type for one in self.tools or [] if one.type != "function"))
        check_tools(tools)
        chosen = self.tool_choice
        named = chosen.name if isinstance(chosen, ChosenFunction) else None
        mode = chosen if isinstance(chosen, str) else None
        return GivenPrompt(
            past=given.past,
            tools=tools,
            tool_choice=tool_choice(mode, named, tools),
            parallel_tool_calls=self.parallel_tool_calls if tools else None,
        )

    async def options(self) -> dict[str, Any]:
        """The options of the answer. Raises InvalidInput."""
        format_ = None if self.text is None else self.text.format
        schema = None
        if format_ is not None:
            given = None if format_.schema is None else SchemaFormat(schema=format_.schema)
            schema = await schema_of(format_.type, given)
        return {
            "response_schema": schema,
            "temperature": self.temperature,
            "max_tokens": self.max_output_tokens,
            "thinking_enabled": wants_thinking(None if self.reasoning is None else self.reasoning.effort),
            "when_asked": WhenAsked.DENY,
        }

    def read_input(self) -> Given:
        """The input as a run reads it. Raises InvalidInput, with the path of the wrong item."""
        items = [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        given = _InputReader(items).read()
        given.ask_instructions()
        if not given.past:
            raise InvalidInput("there is no message of the user to answer; add one", field="$.input")
        if self.instructions:
            given.instructions.insert(0, self.instructions)
        return given


class _InputReader:
    """Reads the items of an input. The output of a call may stand anywhere after it."""

    def __init__(self, items: list[InputItem]) -> None:
        self._items = items
        self._given = Given(instructions=[], past=[])
        self._left_out: list[str] = []
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
            _add_message(self._given, item, field)
        elif item.type in REFUSED_ITEMS:
            raise InvalidInput(REFUSED_ITEMS[item.type], field=f"{field}.type")
        elif item.type != "reasoning" and not (item.type in OUTPUTS and item.call_id in self._answered):
            self._left_out.append(item.type)

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
            elif item.type != "reasoning":
                break
            position += 1
        if len(results) != len(calls):
            raise InvalidInput("each function_call needs a call_id of its own", field=f"$.input[{start}]")
        if calls:
            texts = {call_id: text for call_id, (text, _) in results.items()}
            images = {call_id: images for call_id, (_, images) in results.items()}
            self._given.add_assistant("", "", calls, texts, images=images)
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
        return (item.call_id, name, arguments), _result(self._items[at], f"$.input[{at}]")


def _arguments(member: str, given: object) -> str:
    """The arguments of a call as JSON text."""
    if member == "arguments" and isinstance(given, str):
        return given
    value = {member: given} if member == "input" else given
    return msgspec.json.encode({} if value is None else value).decode()


def _result(item: InputItem, field: str) -> tuple[str, list[PromptImage]]:
    output = item.output
    if output is None:
        raise InvalidInput("the output of a call is missing; send a text", field=f"{field}.output")
    if isinstance(output, str):
        return output, []
    parts = cast("list[Any]", output) if isinstance(output, list) else []
    if not parts or not all(isinstance(part, dict) and "type" in part for part in parts):
        return ("" if output == [] else msgspec.json.encode(output).decode()), []
    try:
        return result_of(_parts(msgspec.convert(parts, list[InputPart]), f"{field}.output"))
    except msgspec.ValidationError as error:
        raise InvalidInput("the parts of an output are texts and images", field=f"{field}.output") from error


def _add_message(given: Given, item: InputItem, field: str) -> None:
    if item.role is None or item.content is None:
        raise InvalidInput("a message needs a role and content", field=field)
    if item.role == "user":
        given.add_user(_parts(item.content, f"{field}.content"))
        return
    text = _text(item.content, f"{field}.content")
    if item.role == "assistant":
        given.add_assistant(text, "", [], {})
    else:
        given.instructions.append(text)


def _text(content: Parts, field: str) -> str:
    parts = _parts(content, field)
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise InvalidInput("only messages of the user may have images", field=field)
    return "\n".join(texts)


def _parts(content: Parts, field: str) -> list[str | PromptImage]:
    """The texts and images in their order."""
    if isinstance(content, str):
        return [content]
    parts: list[str | PromptImage] = []
    for index, part in enumerate(content):
        path = f"{field}[{index}]"
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
