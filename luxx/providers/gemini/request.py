"""Builds `generateContent` requests of the Gemini dialect: contents, tools and options.

`PartRecorder` records which parts of a completion must be sent back unchanged; `restore_parts` restores them.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from luxx.providers.adapter import (
    CompletionRequest,
    Target,
    UpstreamRequest,
    get_request,
    is_of_origin,
    origin_of,
    post_request,
    with_images_after_results,
)
from luxx.providers.demanded_forms import (
    CallIds,
    is_any_object,
    schema_instruction,
    takes_schema,
    with_demanded_roles,
    with_instruction,
)
from luxx.providers.gemini.thinking import generation_of, thinking_config
from luxx.providers.parsing import json_objects, parse_arguments
from luxx.wire.message import (
    AssistantPrompt,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.tool import ToolCall, ToolChoice, ToolChoiceMode, ToolSpec

REPLAY_KEY = "gemini"
"""The dialect's key in a ReplayDelta; its value is a list with one note per part, in order.

A note is `{"text": length}`, `{"thought": length}`, `{"call": call_id}` or `{"part": part}`, and may have a
`signature`. The lengths, in characters, cut the stored text and thinking into parts.
"""

CONTINUATION_KEY = "gemini_continuation"
"""The key in a ReplayDelta of the token that continues a paused answer."""

MAX_PART_BYTES = 256 * 1024
"""A larger part of a replayed kind is not stored: generated images have megabytes."""

REPLAYED_PARTS = (
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
    "inlineData",
    "fileData",
)
"""The kinds of parts that no delta represents; they are stored for replay."""

GeminiPart = dict[str, Any]

_NEVER_REPLAYED = ("text", "functionCall", "functionResponse")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/_-]{4})*(?:[A-Za-z0-9+/_-]{2,3}={0,2})?")


class PartRecorder:
    """Records the parts of one completion; adjacent fragments without a signature become one note."""

    def __init__(self) -> None:
        self._notes: list[dict[str, Any]] = []
        self._by_call: dict[str, dict[str, Any]] = {}  # The notes of calls, by call id.
        self._is_needed = False  # Whether text and calls alone would not restore the parts.

    def add_text(self, text: str, signature: str, *, is_thought: bool) -> None:
        key = "thought" if is_thought else "text"
        # Without notes, `restore_parts` puts text before the calls.
        self._is_needed |= bool(text and self._by_call and not is_thought)
        last = self._notes[-1] if self._notes else {}
        if text and not signature and key in last and "signature" not in last:
            last[key] += len(text)
        elif text or signature:
            self._add_note({key: len(text)}, signature)

    def add_call(self, call_id: str, signature: str) -> None:
        """Records a fragment of a call; any fragment may have the signature."""
        note = self._by_call.get(call_id)
        if note is None:
            self._by_call[call_id] = self._add_note({"call": call_id}, signature)
        elif signature:
            note["signature"] = signature
            self._is_needed = True

    def add_replayed_part(self, part: GeminiPart) -> None:
        """Records a part that no delta represents, such as code that the server executed."""
        if len(msgspec.json.encode(part)) <= MAX_PART_BYTES:
            self._is_needed = True
            self._notes.append({"part": part})

    def replay(self) -> dict[str, Any]:
        """What to store; empty if the message's text and calls are enough."""
        return {REPLAY_KEY: self._notes} if self._is_needed else {}

    def _add_note(self, note: dict[str, Any], signature: str) -> dict[str, Any]:
        if signature:
            note["signature"] = signature
            self._is_needed = True
        self._notes.append(note)
        return note


def restore_parts(prompt: AssistantPrompt, ids: CallIds, origin: str) -> list[GeminiPart]:
    """The parts of an earlier completion; each with its signature, if that can be read at `origin`.

    If the message's text no longer has the recorded length, it becomes one part without signatures; calls
    keep theirs.
    """
    is_signed = is_of_origin(prompt.replay, origin)
    notes = json_objects(prompt.replay.get(REPLAY_KEY))
    if sum(_length(note, "text") for note in notes) != len(prompt.text):
        notes = [{"text": len(prompt.text)}, *(note for note in notes if "call" in note)]
    has_thoughts = sum(_length(note, "thought") for note in notes) == len(prompt.thinking)
    calls = {call.call_id: call for call in prompt.tool_calls}
    parts: list[GeminiPart] = []
    text_offset = thought_offset = 0
    for note in notes:
        part: GeminiPart | None = None
        signature = _signature(note) if is_signed else ""
        if "call" in note:
            call = calls.pop(str(note["call"]), None)
            part = _call_part(call, ids) if call is not None else None
        elif "part" in note:
            part = _replayed_part(note["part"], is_signed=is_signed)
        elif "thought" in note:
            text = prompt.thinking[thought_offset : thought_offset + _length(note, "thought")]
            thought_offset += len(text)
            # Thoughts without a signature are only a summary for people.
            part = {"text": text, "thought": True} if has_thoughts and signature else None
        else:
            text = prompt.text[text_offset : text_offset + _length(note, "text")]
            text_offset += len(text)
            part = {"text": text} if text or signature else None
        if part is not None:
            parts.append({**part, "thoughtSignature": signature} if signature else part)
    return parts + [_call_part(call, ids) for call in calls.values()]


def _length(note: dict[str, Any], key: str) -> int:
    length = note.get(key)
    return max(0, length) if isinstance(length, int) else 0


def _replayed_part(part: object, *, is_signed: bool) -> GeminiPart | None:
    """A part of `add_replayed_part`, else None: notes may be imported, and a call has no result there."""
    if not isinstance(part, dict):
        return None
    fields = cast("GeminiPart", part)
    is_replayed = any(isinstance(fields.get(kind), dict) for kind in REPLAYED_PARTS)
    if not is_replayed or any(fields.get(kind) is not None for kind in _NEVER_REPLAYED):
        return None
    return fields if is_signed else {key: each for key, each in fields.items() if key != "thoughtSignature"}


def _signature(note: dict[str, Any]) -> str:
    signature = note.get("signature")
    return signature if isinstance(signature, str) and _BASE64.fullmatch(signature) else ""


MODELS_PER_PAGE = 1000
"""The most that the API returns per page."""

_FIRST_USER_TEXT = "Go on."
"""The user message that is inserted if a prompt begins with the model's text, which the API rejects."""

_SIGNATURE_PLACEHOLDER = "skip_thought_signature_validator"
"""The value that the API accepts as the signature of a call that another model made."""

_VERSION = re.compile(r"/v\d+[a-z0-9]*(/|$)")
_SUPPORTED_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})

ContentJson = dict[str, Any]


def build_completion_request(request: CompletionRequest, target: Target, *, stream: bool) -> UpstreamRequest:
    """The POST for one completion; the key is in a header, never in the URL."""
    origin = origin_of(request.model, target)
    token = _continuation(request.messages, origin)
    if token:
        request = replace(request, messages=request.messages[:-1])
    messages = request.messages
    if request.response_schema is not None and not _sends_schema(request):
        messages = with_instruction(messages, schema_instruction(request.response_schema))
    request = replace(request, messages=with_demanded_roles(messages, request.adaptations))
    body: dict[str, Any] = {"contents": _contents(request, origin)}
    if token:
        body["continuationToken"] = token
    system = "\n\n".join(
        message.text for message in request.messages if isinstance(message, SystemPrompt) and message.text
    )
    if system:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_function_declaration(tool) for tool in request.tools]}]
        if request.tool_choice is not None:
            body["toolConfig"] = {"functionCallingConfig": _calling_config(request.tool_choice)}
    config = _generation_config(request)
    if config:
        body["generationConfig"] = config
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    url, _ = model_url(target, request.model)
    return post_request(f"{url}:{method}", key_headers(target), body, stream=stream)


def _continuation(messages: Sequence[PromptMessage], origin: str) -> str:
    """The token of a paused answer that ends the prompt; the API takes it in place of the answer."""
    last = messages[-1] if messages else None
    if not isinstance(last, AssistantPrompt) or not last.end.is_paused:
        return ""
    if not is_of_origin(last.replay, origin):
        return ""
    token = last.replay.get(CONTINUATION_KEY)
    return token if isinstance(token, str) else ""


def build_models_request(target: Target, page_token: str = "") -> UpstreamRequest:
    """The GET for one page of the model list."""
    page = f"&pageToken={quote(page_token, safe='')}" if page_token else ""
    url = f"{endpoint(target.base_url)}/models?pageSize={MODELS_PER_PAGE}{page}"
    return get_request(url, key_headers(target))


def endpoint(base_url: str) -> str:
    """`base_url` with an API version (`/v1beta` by default); a path after the version is removed."""
    base = base_url.strip().rstrip("/")
    base = re.sub(r"(/openai|/models(/.*)?)$", "", base)
    return base if _VERSION.search(base) else f"{base}/v1beta"


def key_headers(target: Target) -> dict[str, str]:
    """The header with the key."""
    return {"x-goog-api-key": target.api_key} if target.api_key else {}


def model_url(target: Target, model: str) -> tuple[str, str]:
    """The address of a model, which a method follows, and its resource name."""
    path = _model_path(model)
    return f"{endpoint(target.base_url)}/{path}", path


def _model_path(model: str) -> str:
    name = model.strip()
    if name.startswith("tunedModels/"):
        return f"tunedModels/{quote(name.removeprefix('tunedModels/'), safe='')}"
    return f"models/{quote(name.removeprefix('models/'), safe='')}"


def _contents(request: CompletionRequest, origin: str) -> list[ContentJson]:
    """Contents that begin with the user and alternate; adjacent messages of one role are merged."""
    contents: list[ContentJson] = []
    finished_count = 0
    ids = CallIds()
    nests_images = generation_of(request.model) >= (3, 0)
    for message in request.messages if nests_images else with_images_after_results(request.messages):
        role, parts = _role_and_parts(message, ids, origin)
        if not parts:
            continue
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
        if isinstance(message, UserPrompt) and not message.is_inner:
            finished_count = len(contents)
    if generation_of(request.model) >= (3, 0):
        _sign_foreign_calls(contents[finished_count:])
    if not contents or contents[0]["role"] != "user":
        contents.insert(0, {"role": "user", "parts": [{"text": _FIRST_USER_TEXT}]})
    return contents


def _role_and_parts(message: PromptMessage, ids: CallIds, origin: str) -> tuple[str, list[GeminiPart]]:
    match message:
        case SystemPrompt():
            return "", []
        case UserPrompt():
            parts = message.labelled().parts()
            return "user", [{"text": part} if isinstance(part, str) else _image_part(part) for part in parts]
        case AssistantPrompt():
            return "model", restore_parts(message.labelled(), ids, origin)
        case ToolPrompt():
            return "user", [_result_part(message, ids)]


def _image_part(image: PromptImage) -> GeminiPart:
    if image.media_type not in _SUPPORTED_IMAGE_TYPES:
        # The API would reject the whole request.
        return {"text": f"[An image of type {image.media_type}, which this model cannot read.]"}
    return {"inlineData": {"mimeType": image.media_type, "data": b64encode(image.data).decode()}}


def _call_part(call: ToolCall, ids: CallIds) -> GeminiPart:
    return {
        "functionCall": {
            "id": ids.assign(call.call_id),
            "name": _function_name(call.name),
            "args": parse_arguments(call.arguments),
        }
    }


def _result_part(prompt: ToolPrompt, ids: CallIds) -> GeminiPart:
    # As text: the API takes only JSON objects, and it turns all numbers into doubles.
    response = {"output" if prompt.success else "error": prompt.content}
    function_response: dict[str, Any] = {
        "id": ids.sent_id(prompt.call_id),
        "name": _function_name(prompt.name),
        "response": response,
    }
    images = [_image_part(image) for image in prompt.images if image.media_type in _SUPPORTED_IMAGE_TYPES]
    if images:
        function_response["parts"] = images
    return {"functionResponse": function_response}


def _function_name(name: str) -> str:
    """A name that the API accepts; a model may have called a tool by any name."""
    name = re.sub(r"[^A-Za-z0-9_.:-]", "_", name)[:64] or "unnamed"
    return name if name[0].isalpha() or name[0] == "_" else f"_{name[:63]}"


def _sign_foreign_calls(unfinished: list[ContentJson]) -> None:
    """Adds the placeholder signature to unsigned calls of the unfinished turn, which Gemini 3 rejects.

    Of parallel calls, only the first is signed. An unsigned one comes from another provider's model.
    """
    for content in unfinished:
        parts: list[GeminiPart] = content["parts"]
        first = next((part for part in parts if "functionCall" in part), None)
        if first is not None:
            first.setdefault("thoughtSignature", _SIGNATURE_PLACEHOLDER)


def _function_declaration(tool: ToolSpec) -> dict[str, Any]:
    declared: dict[str, Any] = {"name": tool.name, "description": tool.description}
    schema = {key: value for key, value in tool.parameters.items() if key != "$schema"}
    is_map = schema.get("additionalProperties") not in (None, False) or schema == {"type": "object"}
    others = schema.keys() - {"type", "properties", "required", "additionalProperties"}
    if schema.get("properties") or is_map or others:
        declared["parametersJsonSchema"] = schema
    # The API rejects an object without properties, but accepts a function without parameters.
    return declared


def _calling_config(choice: ToolChoice) -> dict[str, Any]:
    mode = "ANY" if choice.mode == ToolChoiceMode.REQUIRED else choice.mode.value.upper()
    return {"mode": mode} if choice.name is None else {"mode": mode, "allowedFunctionNames": [choice.name]}


def _generation_config(request: CompletionRequest) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if request.temperature is not None:
        config["temperature"] = request.temperature
    if request.max_tokens is not None:
        config["maxOutputTokens"] = request.max_tokens
    if request.stop:
        config["stopSequences"] = request.stop
    thinking = thinking_config(request)
    if thinking:
        config["thinkingConfig"] = thinking
    if request.response_schema is not None and _sends_schema(request):
        config["responseMimeType"] = "application/json"
        if not is_any_object(request.response_schema):
            config["responseJsonSchema"] = {
                key: value for key, value in request.response_schema.items() if key != "$schema"
            }
    return config


def _sends_schema(request: CompletionRequest) -> bool:
    """Whether a field demands the schema. Models before Gemini 3 reject it together with tools."""
    return takes_schema(request) and (not request.tools or generation_of(request.model) >= (3, 0))
