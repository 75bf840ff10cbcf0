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
    ItemType,
    MaxTokens,
    Metadata,
    ModelName,
    SchemaFormat,
    Temperature,
    check_tools,
    left_out,
    schema_of,
    thinking_options,
    tool_choice,
    tool_spec,
)
from luxx.api.openai.responses_input import InputItem, InputReader
from luxx.errors import InvalidInput
from luxx.runs.turn.state import GivenPrompt
from luxx.wire.run import WhenAsked
from luxx.wire.tool import ToolSpec


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
            "when_asked": WhenAsked.DENY,
            **thinking_options(None if self.reasoning is None else self.reasoning.effort),
        }

    def read_input(self) -> Given:
        """The input as a run reads it. Raises InvalidInput, with the path of the wrong item."""
        items = [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        given = InputReader(items).read()
        given.ask_instructions()
        if not given.past:
            raise InvalidInput("there is no message of the user to answer; add one", field="$.input")
        if self.instructions:
            given.instructions.insert(0, self.instructions)
        return given
