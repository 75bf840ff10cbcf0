"""Builds requests of the OpenAI dialect: messages, tools and options in each compatible provider's form."""

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, cast

from luxx.providers.adapter import (
    AZURE,
    Adaptation,
    CompletionRequest,
    Target,
    UpstreamRequest,
    endpoint,
    get_request,
    is_of_origin,
    is_reasoning_model,
    key_headers,
    origin_of,
    post_request,
    vendor_of,
    with_images_after_results,
)
from luxx.providers.demanded_forms import (
    is_any_object,
    names_json,
    schema_instruction,
    takes_schema,
    with_answers_to_results,
    with_demanded_roles,
    with_instruction,
)
from luxx.providers.openai_chat.reasoning import (
    FIELD_KEY,
    INLINE_FIELD,
    SIGNATURES_KEY,
    signed_content,
)
from luxx.providers.parsing import json_objects, parse_arguments
from luxx.wire.message import (
    AssistantPrompt,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.tool import ToolCall, ToolSpec
from luxx.wire.turn import REASONING_DETAILS_KEY

_OPENAI_VENDORS = frozenset({"openai", AZURE})
_JSON_OBJECT_ONLY = frozenset({"deepseek", "glm"})
_SENDS_USAGE_BY_DEFAULT = frozenset({"mistral"})
_TAKES_REASONING_DETAILS = frozenset({"openrouter", "openai_compatible", "minimax"})
_TAKES_SIGNATURES = frozenset({"openai_compatible", "google"})
# These reject a request whose messages have unknown keys, or know only one of the names of reasoning.
_REASONING_FIELDS = {
    "openai": (),
    AZURE: (),
    "mistral": (),
    "google": (),
    "groq": ("reasoning",),
    "cerebras": ("reasoning",),
    "ollama": ("reasoning",),
}
_ANY_REASONING_FIELD = ("reasoning_content", "reasoning")
# These require the reasoning of every turn with tools, whichever provider it came from.
_REQUIRES_REASONING = frozenset({"deepseek", "moonshot"})
# What stands for reasoning that is not known; Moonshot takes an empty text for a missing one.
_UNKNOWN_REASONING = {"deepseek": ""}
# The others of Groq's models refuse the field.
_GROQ_REASONING_MODELS = re.compile(r"gpt-oss|qwen-?3")
# These give the model the `name` of a message; others ignore it or refuse it.
_TAKES_NAMES = frozenset({"openai", AZURE, "deepseek", "openrouter"})
_AUTHOR = re.compile(r"[^\s<|\\/>]{1,64}")
_GEMINI_3 = re.compile(r"gemini-([3-9]|\d\d)|gemini-.*-latest")
_SIGNATURE_PLACEHOLDER = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""What Google's endpoint accepts as the signature of a call that another model made."""

_TAKES_IMAGES_OF_RESULTS = frozenset({"mistral"})
"""Mistral accepts no user's message after results, but images in them."""

_MAX_CALL_ID_LENGTH = {"openai": 40, AZURE: 40}
"""Of the others none is known to take fewer than 64 characters."""

IMAGES_OF_RESULTS = "These are the images of the tool results above, in their order."


def takes_stops(model: str, target: Target) -> bool:
    """Whether the API takes stops for this model."""
    return not (vendor_of(target) in _OPENAI_VENDORS and is_reasoning_model(model))


def build_completion_request(request: CompletionRequest, target: Target, *, stream: bool) -> UpstreamRequest:
    """The POST for one completion; `base_url` is used as given, with or without /v1, apart from Azure's."""
    kind = vendor_of(target)
    is_reasoning = kind in _OPENAI_VENDORS and is_reasoning_model(request.model)
    messages = request.messages
    if kind not in _TAKES_IMAGES_OF_RESULTS:
        messages = with_images_after_results(messages, IMAGES_OF_RESULTS)
    answer_format, instruction = _answer_format(request, kind)
    if instruction:
        messages = with_instruction(messages, instruction)
    if request.adaptations:
        messages = with_demanded_roles(messages, request.adaptations)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": _messages(messages, kind, request, origin_of(request.model, target)),
        "stream": stream,
    }
    if stream and kind not in _SENDS_USAGE_BY_DEFAULT:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body |= _tool_options(request)
    if request.stop and takes_stops(request.model, target):
        body["stop"] = request.stop
    if (
        request.temperature is not None
        and not is_reasoning
        and Adaptation.NO_TEMPERATURE not in request.adaptations
    ):
        body["temperature"] = request.temperature
    if request.max_tokens is not None:
        body[_limit_name(request, kind)] = request.max_tokens
    if answer_format:
        body["response_format"] = answer_format
    body.update(_thinking_switch(request, kind))
    return post_request(endpoint(target, "chat/completions"), key_headers(target), body, stream=stream)


def build_models_request(target: Target) -> UpstreamRequest:
    return get_request(endpoint(target, "models"), key_headers(target))


def _answer_format(request: CompletionRequest, kind: str) -> tuple[dict[str, Any], str]:
    """The field that demands JSON, and the sentence for what the field does not say; both may be empty."""
    schema = request.response_schema
    if schema is None:
        return {}, ""
    if not takes_schema(request):
        return {}, schema_instruction(schema)
    is_any = is_any_object(schema)
    if not is_any and kind not in _JSON_OBJECT_ONLY and Adaptation.JSON_OBJECT not in request.adaptations:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}, ""
    is_told = is_any and names_json(request.messages)
    return {"type": "json_object"}, "" if is_told else schema_instruction(schema)


def _limit_name(request: CompletionRequest, kind: str) -> str:
    """The name of the limit of tokens; which one a deployment at Azure takes depends on its model."""
    if Adaptation.MAX_COMPLETION_TOKENS in request.adaptations:
        return "max_completion_tokens"
    if Adaptation.MAX_TOKENS in request.adaptations:
        return "max_tokens"
    takes_new_name = kind == "openai" or (kind == AZURE and is_reasoning_model(request.model))
    return "max_completion_tokens" if takes_new_name else "max_tokens"


def _messages(
    messages: Sequence[PromptMessage], kind: str, request: CompletionRequest, origin: str
) -> list[dict[str, Any]]:
    if kind in _TAKES_IMAGES_OF_RESULTS:
        messages = with_answers_to_results(messages)
    items = (_message(message, kind, request, origin) for message in messages)
    return [item for item in items if item is not None]


def _message(
    message: PromptMessage, kind: str, request: CompletionRequest, origin: str
) -> dict[str, Any] | None:
    match message:
        case SystemPrompt():
            return {"role": "system", "content": message.text}
        case UserPrompt():
            return _user(message, kind)
        case ToolPrompt():
            return {
                "role": "tool",
                "tool_call_id": _call_id(message.call_id, kind),
                "content": _content(
                    [*message.images, message.content] if message.images else [message.content]
                ),
            }
        case AssistantPrompt():
            return _assistant(message, kind, request, origin)


def _user(message: UserPrompt, kind: str) -> dict[str, Any]:
    name = _author(message.name, kind)
    message = message if name else message.labelled()
    return {"role": "user", **name, "content": _content(message.parts())}


def _author(name: str, kind: str) -> dict[str, Any]:
    """The field with an author's name, where the vendor takes it; others get the name in the text."""
    return {"name": name} if kind in _TAKES_NAMES and _AUTHOR.fullmatch(name) else {}


def _content(parts: Sequence[str | PromptImage]) -> str | list[dict[str, Any]]:
    """The text alone, or the parts in their order: many servers accept parts only with images."""
    if all(isinstance(part, str) for part in parts):
        return "".join(cast("Sequence[str]", parts))
    return [_part(part) for part in parts if part]


def _part(part: str | PromptImage) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = f"data:{part.media_type};base64,{b64encode(part.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(
    prompt: AssistantPrompt, kind: str, request: CompletionRequest, origin: str
) -> dict[str, Any] | None:
    name = _author(prompt.name, kind)
    prompt = prompt if name else prompt.labelled()
    text = prompt.text or prompt.end.refusal
    if not text and not prompt.tool_calls:
        # Several servers reject a message with neither text nor calls.
        return None
    message: dict[str, Any] = {"role": "assistant", **name, "content": text or None}
    # The details may come from an imported file, so invalid items are dropped.
    stored = json_objects(prompt.replay.get(REASONING_DETAILS_KEY))
    details = [item for item in stored if isinstance(item.get("type"), str)]
    is_own = is_of_origin(prompt.replay, origin)
    if kind in _TAKES_REASONING_DETAILS and details and is_own:
        message[REASONING_DETAILS_KEY] = details
    if prompt.tool_calls:
        message["tool_calls"] = [_tool_call(call, kind) for call in prompt.tool_calls]
        message |= _reasoning(prompt, kind, request, has_details=REASONING_DETAILS_KEY in message)
    if kind == "minimax" and prompt.thinking and prompt.replay.get(FIELD_KEY) == INLINE_FIELD:
        message["content"] = f"<think>{prompt.thinking}</think>{text}"
    if kind in _TAKES_SIGNATURES:
        _sign(message, prompt, kind, request.model, is_own=is_own)
    return message


def _reasoning(
    prompt: AssistantPrompt, kind: str, request: CompletionRequest, *, has_details: bool
) -> dict[str, Any]:
    """The field with the reasoning of a turn with tools; nothing if the server takes none.

    A server that requires it also gets it for turns of which no reasoning is known: those of other models,
    and those that a client gives without it.
    """
    is_demanded = Adaptation.REASONING_OF_CALLS in request.adaptations
    field = _reasoning_field(prompt, kind, request)
    # The details contain the text that is beside them.
    is_sent = not has_details and (prompt.thinking or request.thinking_enabled)
    if not field or not (is_demanded or is_sent):
        return {}
    return {field: prompt.thinking or _UNKNOWN_REASONING.get(kind, " ")}


def _reasoning_field(prompt: AssistantPrompt, kind: str, request: CompletionRequest) -> str:
    """The field in which the server takes the reasoning of a turn with tools; empty if it takes none."""
    if kind in _REQUIRES_REASONING or Adaptation.REASONING_OF_CALLS in request.adaptations:
        return "reasoning_content"
    if kind == "groq" and not _GROQ_REASONING_MODELS.search(request.model.lower()):
        return ""
    taken = _REASONING_FIELDS.get(kind, _ANY_REASONING_FIELD)
    return next((field for field in taken if field == prompt.replay.get(FIELD_KEY)), "")


def _sign(message: dict[str, Any], prompt: AssistantPrompt, kind: str, model: str, *, is_own: bool) -> None:
    """Adds the signatures of Google's models to the calls and the message for which they came.

    `is_own`: the server that gets them may read them.
    """
    has_signatures = is_own and SIGNATURES_KEY in prompt.replay
    by_call = signed_content(prompt.replay) if has_signatures else {}
    if "" in by_call:
        message["extra_content"] = by_call[""]
    sent = message.get("tool_calls", [])
    for call, sent_call in zip(prompt.tool_calls, sent, strict=False):
        if call.call_id in by_call:
            sent_call["extra_content"] = by_call[call.call_id]
    if sent and kind == "google" and _GEMINI_3.search(model.lower()):
        # Of parallel calls, only the first is signed.
        sent[0].setdefault("extra_content", _SIGNATURE_PLACEHOLDER)


def _tool_call(call: ToolCall, kind: str) -> dict[str, Any]:
    return {
        "id": _call_id(call.call_id, kind),
        "type": "function",
        # Servers that parse the arguments fail on other JSON than an object.
        "function": {
            "name": _name(call.name),
            "arguments": call.arguments if parse_arguments(call.arguments) else "{}",
        },
    }


def _name(name: str) -> str:
    """A name that the strictest provider accepts; a model may have called a tool by any name."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"


def _call_id(call_id: str, kind: str) -> str:
    """The id itself if the provider accepts it, else a hash: another provider may have issued it.

    Mistral accepts exactly nine letters and digits.
    """
    if kind == "mistral" and not re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return sha256(call_id.encode()).hexdigest()[:9]
    if len(call_id) > _MAX_CALL_ID_LENGTH.get(kind, 64):
        return f"call_{sha256(call_id.encode()).hexdigest()[:24]}"
    return call_id


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def _tool_options(request: CompletionRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    choice = request.tool_choice
    if choice is not None:
        named = {"type": "function", "function": {"name": choice.name}}
        options["tool_choice"] = choice.mode.value if choice.name is None else named
    if request.parallel_tool_calls is not None:
        options["parallel_tool_calls"] = request.parallel_tool_calls
    return options


def _thinking_switch(request: CompletionRequest, kind: str) -> dict[str, Any]:
    """The provider's option that switches thinking on or off; empty if it has none."""
    wanted = bool(request.thinking_enabled)
    effort = None if request.reasoning_effort is None else request.reasoning_effort.value
    match kind:
        case "deepseek" | "glm":
            if not wanted and "reasoner" in request.model:
                return {}
            return {"thinking": {"type": "enabled" if wanted else "disabled"}}
        case "openrouter":
            return (
                {"reasoning": {"enabled": True} if effort is None else {"effort": effort}} if wanted else {}
            )
        case "openai" | "azure_openai":
            reasons = wanted and is_reasoning_model(request.model)
            return {"reasoning_effort": effort or "medium"} if reasons else {}
        case "qwen":
            return {"enable_thinking": wanted}
        case "local":
            options = {"enable_thinking": wanted}
            return {
                "chat_template_kwargs": options | ({"reasoning_effort": effort} if wanted and effort else {})
            }
        case _:
            return {}
