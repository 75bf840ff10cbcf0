"""The body of `POST /v1/chat/completions`, and what a run is given of it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from luxx.api.openai.content import (
    MAX_MESSAGES,
    MAX_TOOLS,
    AuthorName,
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
    read_image,
    result_of,
    schema_of,
    thinking_options,
    tool_choice,
    tool_spec,
)
from luxx.errors import InvalidInput
from luxx.providers.openai_chat.reasoning import FIELD_KEY
from luxx.runs.turn.state import GivenPrompt
from luxx.wire.message import PromptImage
from luxx.wire.run import WhenAsked
from luxx.wire.tool import ToolSpec
from luxx.wire.turn import REASONING_DETAILS_KEY


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """A text."""

    text: str


class RefusalPart(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """The text with which a model refused."""

    refusal: str


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An image as a data URL (`data:image/png;base64,…`). `detail` has no effect."""

    url: str
    detail: str | None = None


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, tag="image_url"):
    """An image."""

    image_url: ImageUrl


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function that the model called. `arguments` is JSON text."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    arguments: str


class GivenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that an earlier answer made."""

    id: Annotated[str, Meta(min_length=1, max_length=200)]
    type: Literal["function"] = "function"
    function: CalledFunction


class SystemMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    """Instructions for the model. A `name` stands in front of them."""

    content: str | list[TextPart]
    name: AuthorName | None = None


class DeveloperMessage(SystemMessage, frozen=True, kw_only=True, tag_field="role", tag="developer"):
    """Instructions for the model."""


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """A message of the user. `name` tells several users apart."""

    content: str | list[TextPart | ImagePart]
    name: AuthorName | None = None


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """An earlier answer. After one with `tool_calls` come the results, each as a message of the role tool.

    The reasoning, in one of the forms that servers use (`reasoning_content`, `reasoning`,
    `reasoning_details`), goes back to a server that takes it. `name` tells several assistants apart.
    """

    content: str | list[TextPart | RefusalPart] | None = None
    name: AuthorName | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[GivenCall] | None = None


class ToolMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    """The result of a call."""

    tool_call_id: str
    content: str | list[TextPart | ImagePart] | None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the client runs. `parameters` is a JSON schema; `strict` has no effect."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the client runs: a function. Tools of other types are left out."""

    type: ItemType
    function: FunctionDefinition | None = None


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a function in `tools`."""

    name: str


class NamedToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The tool that the model must call."""

    type: Literal["function"]
    function: NamedFunction


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`include_usage`: a last chunk has the usage. `include_obfuscation` has no effect."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer's text: `text`, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


Stop = Annotated[str, Meta(max_length=1000)]

Ignored = Any
"""A parameter of OpenAI's that is accepted and has no effect."""


class ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    """A request for an answer. Unknown members are left out."""

    model: ModelName
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[ChatTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ChatFormat | None = None
    temperature: Temperature | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    reasoning_effort: Effort | None = None
    reasoning: Any = None
    thinking: Any = None
    enable_thinking: Any = None
    chat_template_kwargs: Any = None
    metadata: Metadata | None = None
    n: int | None = None
    logprobs: bool | None = None
    functions: Ignored = None
    function_call: Ignored = None
    audio: Ignored = None
    frequency_penalty: Ignored = None
    logit_bias: Ignored = None
    modalities: Ignored = None
    prediction: Ignored = None
    presence_penalty: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    seed: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None
    top_logprobs: Ignored = None
    top_p: Ignored = None
    user: Ignored = None
    verbosity: Ignored = None
    web_search_options: Ignored = None

    def check(self) -> None:
        """Raises InvalidInput for what is not supported."""
        if self.n not in (None, 1):
            raise InvalidInput("this server gives one answer at a time; leave out n", field="$.n")
        if self.logprobs:
            raise InvalidInput("this server has no logprobs; leave them out", field="$.logprobs")
        for name in ("functions", "function_call"):
            if getattr(self, name):
                raise InvalidInput(f"{name} is out of use; send tools and tool_choice", field=f"$.{name}")
        if self.modalities not in (None, [], ["text"]):
            raise InvalidInput(
                "this server answers with text only; leave out modalities", field="$.modalities"
            )
        if self.web_search_options is not None:
            raise InvalidInput(
                "this server has no web search of the provider; use an agent with web tools",
                field="$.web_search_options",
            )

    def prompt(self, given: Given) -> GivenPrompt:
        """What the run is given. Raises InvalidInput."""
        tools: list[ToolSpec] = []
        for index, tool in enumerate(self.tools or []):
            function = tool.function
            if tool.type != "function":
                continue
            if function is None:
                raise InvalidInput("a tool of the type function needs it", field=f"$.tools[{index}].function")
            tools.append(tool_spec(function.name, function.description, function.parameters))
        given.warnings += left_out("tools", (one.type for one in self.tools or [] if one.type != "function"))
        check_tools(tools)
        chosen = self.tool_choice
        named = chosen.function.name if isinstance(chosen, NamedToolChoice) else None
        mode = chosen if isinstance(chosen, str) else None
        return GivenPrompt(
            past=given.past,
            tools=tools,
            tool_choice=tool_choice(mode, named, tools),
            parallel_tool_calls=self.parallel_tool_calls if tools else None,
        )

    async def options(self) -> dict[str, Any]:
        """The options of the answer. Raises InvalidInput."""
        format_ = self.response_format
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return {
            "response_schema": None
            if format_ is None
            else await schema_of(format_.type, format_.json_schema),
            "temperature": self.temperature,
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "stop": [text for text in stop if text],
            "when_asked": WhenAsked.DENY,
            **thinking_options(
                self.reasoning_effort,
                self.reasoning,
                self.thinking,
                self.enable_thinking,
                self.chat_template_kwargs,
            ),
        }


def read_messages(messages: list[Message]) -> Given:
    """The messages as a run reads them. Raises InvalidInput, with the path of the wrong one."""
    given = Given(instructions=[], past=[])
    position = 0
    while position < len(messages):
        message, field = messages[position], f"$.messages[{position}]"
        position += 1
        match message:
            case SystemMessage():
                text = _text(message.content)
                given.instructions.append(f"[{message.name}] {text}" if message.name and text else text)
            case UserMessage():
                given.add_user(_parts(message, field), message.name or "")
            case AssistantMessage():
                calls = message.tool_calls or []
                results, images = _results(messages, position, calls, field)
                position += len(results)
                text = _text(message.content) or message.refusal or ""
                given.add_assistant(
                    text,
                    message.reasoning_content or message.reasoning or "",
                    [(call.id, call.function.name, call.function.arguments) for call in calls],
                    results,
                    images=images,
                    name=message.name or "",
                    replay=_reasoning_note(message),
                )
            case ToolMessage():
                raise InvalidInput(
                    "a message of the role tool must follow an assistant message whose tool_calls have its "
                    "tool_call_id",
                    field=field,
                )
    given.ask_instructions()
    if not given.past:
        raise InvalidInput("there is no message of the user to answer; add one", field="$.messages")
    return given


def _results(
    messages: list[Message], position: int, calls: list[GivenCall], field: str
) -> tuple[dict[str, str], dict[str, list[PromptImage]]]:
    """The results of the calls, which follow in any order, and their images. Raises InvalidInput if they are
    not complete."""
    wanted = {call.id for call in calls}
    if len(wanted) != len(calls):
        raise InvalidInput("two tool_calls have the same id", field=f"{field}.tool_calls")
    results: dict[str, str] = {}
    images: dict[str, list[PromptImage]] = {}
    for at, message in enumerate(messages[position : position + len(calls)], position):
        if isinstance(message, ToolMessage) and message.tool_call_id in wanted:
            if message.tool_call_id in results:
                continue
            text, shown = result_of(_parts(message, f"$.messages[{at}]"))
            results[message.tool_call_id], images[message.tool_call_id] = text, shown
    if len(results) != len(calls):
        missing = ", ".join(sorted(wanted - results.keys()))[:200]
        raise InvalidInput(
            "an assistant message with tool_calls must be followed by a message of the role tool for each "
            f"tool_call_id; missing: {missing}",
            field=f"{field}.tool_calls",
        )
    return results, images


def _text(content: str | list[TextPart] | list[TextPart | RefusalPart] | None) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _reasoning_note(message: AssistantMessage) -> dict[str, Any]:
    """What servers of the OpenAI dialect want back of the reasoning, as the client has it."""
    note: dict[str, Any] = {}
    if message.reasoning_content or message.reasoning:
        note[FIELD_KEY] = "reasoning_content" if message.reasoning_content else "reasoning"
    if message.reasoning_details:
        note[REASONING_DETAILS_KEY] = message.reasoning_details
    return note


def _parts(message: UserMessage | ToolMessage, field: str) -> list[str | PromptImage]:
    """The texts and images in their order."""
    if isinstance(message.content, str) or message.content is None:
        return [message.content or ""]
    return [
        part.text
        if isinstance(part, TextPart)
        else read_image(part.image_url.url, f"{field}.content[{index}].image_url.url")
        for index, part in enumerate(message.content)
    ]
