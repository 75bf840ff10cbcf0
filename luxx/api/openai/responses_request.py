"""The body of `POST /v1/responses`, and what a run is given of it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from luxx.api.openai.content import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Effort,
    FunctionName,
    Given,
    MaxTokens,
    ModelName,
    SchemaFormat,
    Temperature,
    check_tools,
    read_image,
    schema_of,
    tool_choice,
    tool_spec,
    wants_thinking,
)
from luxx.errors import InvalidInput
from luxx.runs.turn.state import GivenPrompt
from luxx.wire.message import PromptImage
from luxx.wire.question import WhenAsked


class InputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message: a text (`text`), an image as a data URL (`image_url`), or a `refusal`."""

    type: Literal["input_text", "output_text", "text", "input_image", "refusal"]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


Parts = str | list[InputPart]


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the input: a message (`role`, `content`), a call of an earlier answer (`call_id`, `name`,
    `arguments`), its result (`call_id`, `output`), or reasoning, which is left out."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Parts | None = None


class ResponsesTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the client runs. `parameters` is a JSON schema; `strict` has no effect."""

    type: Literal["function"]
    name: FunctionName
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


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for an answer."""

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
    metadata: dict[str, str] | None = None
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

    def prompt_of(self, given: Given) -> GivenPrompt:
        """What the run is given. Raises InvalidInput."""
        tools = [tool_spec(one.name, one.description, one.parameters) for one in self.tools or []]
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
        given = Given(instructions=[self.instructions] if self.instructions else [], past=[])
        items = [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        position = 0
        while position < len(items):
            item, field = items[position], f"$.input[{position}]"
            if item.type == "function_call":
                position = _add_calls(given, items, position)
                continue
            position += 1
            match item.type:
                case "message":
                    _add_message(given, item, field)
                case "function_call_output":
                    raise InvalidInput(
                        "a function_call_output must follow the function_call with its call_id", field=field
                    )
                case _:
                    pass
        if not given.past:
            raise InvalidInput("there is no message of the user to answer; add one", field="$.input")
        return given


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


def _add_calls(given: Given, items: list[InputItem], start: int) -> int:
    """Adds the calls from `start` on with their results; the position after them. Raises InvalidInput."""
    calls: list[tuple[str, str, str]] = []
    call_ids = set[str]()
    results: dict[str, str] = {}
    position = start
    while position < len(items) and items[position].type in (
        "function_call",
        "function_call_output",
        "reasoning",
    ):
        item, field = items[position], f"$.input[{position}]"
        if item.type == "function_call":
            if results and len(results) == len(calls):
                break  # The calls of a further answer.
            if not item.call_id or not item.name or item.arguments is None:
                raise InvalidInput("a function_call needs call_id, name and arguments", field=field)
            calls.append((item.call_id, item.name, item.arguments))
            call_ids.add(item.call_id)
        elif item.type == "function_call_output":
            if item.call_id not in call_ids or item.output is None:
                raise InvalidInput(
                    "a function_call_output needs output, and the call_id of a function_call before it",
                    field=field,
                )
            results[item.call_id or ""] = _text(item.output, f"{field}.output")
        position += 1
    missing = [call_id for call_id, _, _ in calls if call_id not in results]
    if missing or len(call_ids) != len(calls):
        raise InvalidInput(
            "each function_call needs a call_id of its own and one function_call_output after it; missing: "
            f"{', '.join(missing)[:200] or 'none'}",
            field=f"$.input[{start}]",
        )
    given.add_assistant("", "", calls, results)
    return position


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
        if part.type == "input_image":
            parts.append(read_image(part.image_url or "", f"{path}.image_url"))
            continue
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise InvalidInput(f"a part of the type {part.type} needs its text", field=path)
        parts.append(text)
    return parts
