"""Builds requests of the Responses dialect, which keep nothing at the provider: `store` is always false.

The history is a list of items, one per thing that happened. A call and its result are paired by `call_id`.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from luxx.providers.adapter import (
    Adaptation,
    CompletionRequest,
    Target,
    UpstreamRequest,
    endpoint,
    get_request,
    is_reasoning_model,
    key_headers,
    origin_of,
    post_request,
    vendor_of,
)
from luxx.providers.demanded_forms import (
    CallIds,
    accepted_name,
    is_any_object,
    names_json,
    schema_instruction,
    takes_schema,
    with_demanded_roles,
    with_instruction,
)
from luxx.providers.openai_responses.notes import (
    CALL_FIELDS,
    drop_reasoning_at_end,
    is_left_out,
    noted_items,
)
from luxx.providers.parsing import parse_arguments
from luxx.wire.message import (
    AssistantPrompt,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.model_settings import ReasoningEffort
from luxx.wire.tool import ToolCall, ToolSpec

MIN_OUTPUT_TOKENS = 16
"""A smaller limit is refused (`integer_below_min_value`)."""

UNKNOWN_RESULT = "The result of this call is not known."
ENCRYPTED_REASONING = "reasoning.encrypted_content"

_OPENAI_VENDORS = frozenset({"openai", "azure_openai"})
_TAKES_EFFORT = frozenset({*_OPENAI_VENDORS, "openrouter"})

ItemJson = dict[str, Any]


def build_response_request(request: CompletionRequest, target: Target, *, stream: bool) -> UpstreamRequest:
    """The POST for one completion; `base_url` with or without `/responses`."""
    vendor = vendor_of(target)
    is_openai = vendor in _OPENAI_VENDORS
    reasons = is_reasoning_model(request.model) or not is_openai
    request = _with_demanded_forms(request)
    body: dict[str, Any] = {
        "model": request.model,
        "input": build_input(request, target),
        "stream": stream,
        "store": False,
    }
    if instructions := _instructions(request.messages):
        body["instructions"] = instructions
    if reasons and Adaptation.NO_ENCRYPTED_REASONING not in request.adaptations:
        body["include"] = [ENCRYPTED_REASONING]
    if stream and vendor == "openai":
        # Random padding of the deltas, against attacks that read their lengths from encrypted traffic.
        body["stream_options"] = {"include_obfuscation": False}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body |= _tool_options(request)
    takes_temperature = not (is_openai and reasons) and Adaptation.NO_TEMPERATURE not in request.adaptations
    if request.temperature is not None and takes_temperature:
        body["temperature"] = request.temperature
    if request.max_tokens is not None:
        body["max_output_tokens"] = max(request.max_tokens, MIN_OUTPUT_TOKENS)
    if request.response_schema is not None and takes_schema(request):
        schema = {"type": "json_schema", "name": "answer", "schema": request.response_schema}
        is_any = is_any_object(request.response_schema)
        body["text"] = {"format": {"type": "json_object"} if is_any else {**schema, "strict": False}}
    if request.thinking_enabled and reasons and (reasoning := _reasoning(request, vendor)):
        body["reasoning"] = reasoning
    return post_request(endpoint(target, "responses"), key_headers(target), body, stream=stream)


def _with_demanded_forms(request: CompletionRequest) -> CompletionRequest:
    """The request with the roles that the server demands, and the sentence that asks for JSON where no field
    says it, or where the vendor wants both."""
    messages, schema = request.messages, request.response_schema
    if schema is not None and not (
        takes_schema(request) and (not is_any_object(schema) or names_json(messages))
    ):
        messages = with_instruction(messages, schema_instruction(schema))
    return replace(request, messages=with_demanded_roles(messages, request.adaptations))


def build_models_request(target: Target) -> UpstreamRequest:
    return get_request(endpoint(target, "models"), key_headers(target))


def build_input(request: CompletionRequest, target: Target) -> list[ItemJson]:
    """The items of the history; the first system text is in `instructions`."""
    origin = origin_of(request.model, target)
    if Adaptation.NO_NOTES in request.adaptations:
        origin = ""
    ids = CallIds()
    items: list[ItemJson] = []
    has_instructions = False
    messages = request.messages
    for index, message in enumerate(messages):
        match message:
            case SystemPrompt():
                if has_instructions and message.text.strip():
                    items.append({"role": "developer", "content": message.text})
                has_instructions = has_instructions or bool(message.text.strip())
            case UserPrompt():
                items.append({"role": "user", "content": _user_content(message)})
            case AssistantPrompt():
                results = list(_results_after(messages, index))
                calls = _Calls(message, results, ids)
                items += _assistant_items(message.labelled(), calls, origin)
                items += calls.outputs()
            case ToolPrompt():
                if not _has_call(messages, index, message.call_id):
                    text = f"The result of an earlier call of {message.name}: {message.content}"
                    items.append({"role": "user", "content": text})
    return items


def _instructions(messages: Sequence[PromptMessage]) -> str:
    texts = (message.text for message in messages if isinstance(message, SystemPrompt))
    return next((text for text in texts if text.strip()), "")


def _results_after(messages: Sequence[PromptMessage], index: int) -> Iterator[ToolPrompt]:
    for message in messages[index + 1 :]:
        if not isinstance(message, ToolPrompt):
            return
        yield message


def _has_call(messages: Sequence[PromptMessage], index: int, call_id: str) -> bool:
    """Whether the call of the result at `index` is in the completion before it."""
    for message in reversed(messages[:index]):
        if isinstance(message, AssistantPrompt):
            return any(call.call_id == call_id for call in message.tool_calls)
        if not isinstance(message, ToolPrompt):
            return False
    return False


class _Calls:
    """The calls of one completion: each is taken once; then come their results, in the order given."""

    def __init__(self, message: AssistantPrompt, results: list[ToolPrompt], ids: CallIds) -> None:
        self._calls = {call.call_id: call for call in message.tool_calls}
        self._results = results
        self._ids = ids
        self._taken: list[ItemJson] = []
        self._custom: set[str] = set()

    def take(self, call_id: str, noted: ItemJson) -> ItemJson | None:
        """The item of a call; None if there is no such call, or it was taken."""
        call = self._calls.pop(call_id, None)
        return None if call is None else self._item(call, noted)

    def take_rest(self) -> list[ItemJson]:
        """The items of the calls that were not taken."""
        rest = [self._item(call, {}) for call in self._calls.values()]
        self._calls.clear()
        return rest

    def outputs(self) -> list[ItemJson]:
        """An output for each taken call."""
        contents = {self._ids.sent_id(result.call_id): _output(result) for result in self._results}
        order = {sent_id: position for position, sent_id in enumerate(contents)}
        taken = sorted(self._taken, key=lambda item: order.get(item["call_id"], len(order)))
        return [
            {
                "type": f"{item['type']}_output",
                "call_id": item["call_id"],
                "output": contents.get(item["call_id"], UNKNOWN_RESULT),
            }
            for item in taken
        ]

    def _item(self, call: ToolCall, noted: ItemJson) -> ItemJson:
        kind = noted.get("type", "function_call")
        item: ItemJson = {"type": kind, "call_id": self._ids.assign(call.call_id)}
        item["name"] = accepted_name(call.name)
        if kind == "custom_tool_call":
            item["input"] = call.arguments
        else:
            item["arguments"] = call.arguments if parse_arguments(call.arguments) else "{}"
        item |= {key: noted[key] for key in CALL_FIELDS if key in noted}
        self._taken.append(item)
        return item


def _assistant_items(message: AssistantPrompt, calls: _Calls, origin: str) -> list[ItemJson]:
    """The items in their order, as the note has it; else the text, then the calls."""
    items: list[ItemJson] = []
    rest = message.text or message.end.refusal
    for noted in noted_items(message, origin):
        match noted["type"]:
            case "message":
                text, rest = rest[: noted["length"]], rest[noted["length"] :]
                item = _said(text, noted.get("phase"))
            case "function_call" | "custom_tool_call":
                item = calls.take(noted["call"], noted)
            case _:
                item = None if is_left_out(noted) else noted
        if item is None:
            drop_reasoning_at_end(items)
        else:
            items.append(item)
    drop_reasoning_at_end(items)
    if (item := _said(rest, None)) is not None:
        items.append(item)
    return items + calls.take_rest()


def _said(text: str, phase: str | None) -> ItemJson | None:
    if not text:
        return None
    item: ItemJson = {"role": "assistant", "content": text, "type": "message"}
    return item if phase is None else {**item, "phase": phase}


def _user_content(message: UserPrompt) -> str | list[ItemJson]:
    message = message.labelled()
    if not message.images:
        return message.text
    return [
        {"type": "input_text", "text": part} if isinstance(part, str) else _image(part)
        for part in message.parts()
    ]


def _output(result: ToolPrompt) -> str | list[ItemJson]:
    if not result.images:
        return result.content
    return [{"type": "input_text", "text": result.content}, *(_image(image) for image in result.images)]


def _image(image: PromptImage) -> ItemJson:
    url = f"data:{image.media_type};base64,{b64encode(image.data).decode()}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _tool(tool: ToolSpec) -> ItemJson:
    """`strict` is always given, because vendors have different defaults; it needs schemas of another form."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }


def _tool_options(request: CompletionRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    choice = request.tool_choice
    if choice is not None:
        named = {"type": "function", "name": choice.name}
        options["tool_choice"] = choice.mode.value if choice.name is None else named
    if request.parallel_tool_calls is not None:
        options["parallel_tool_calls"] = request.parallel_tool_calls
    return options


def _reasoning(request: CompletionRequest, vendor: str) -> dict[str, Any]:
    """The effort, where the vendor takes one from every reasoning model, and a summary to show."""
    effort = request.reasoning_effort or ReasoningEffort.MEDIUM
    reasoning: dict[str, Any] = {"effort": effort.value} if vendor in _TAKES_EFFORT else {}
    if Adaptation.NO_SUMMARY not in request.adaptations:
        reasoning["summary"] = "auto"
    return reasoning
