"""The provider types: one row each, with the adapter of its dialect and its default base URL; and what their
servers demanded of requests and which tools they refused, which is remembered by address and model.
"""

import re
from enum import StrEnum
from hashlib import sha256

import msgspec

from luxx.errors import InvalidInput, ProviderError, ProviderFailed, ProviderRefused
from luxx.providers.adapter import (
    AZURE,
    CACHE_MARK,
    Adaptation,
    Adapter,
    CompletionRequest,
    Target,
    prefers_responses,
    vendor_of,
)
from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.providers.demanded_forms import is_any_object, takes_schema
from luxx.providers.gemini.adapter import GEMINI
from luxx.providers.openai_chat.adapter import OPENAI
from luxx.providers.openai_responses.adapter import RESPONSES
from luxx.wire.message import AssistantPrompt, SystemPrompt
from luxx.wire.tool import ToolChoiceMode, ToolSpec


class ProviderType(StrEnum):
    OPENAI = "openai"
    OPENAI_RESPONSES = "openai_responses"
    OPENAI_COMPATIBLE = "openai_compatible"
    AZURE_OPENAI = AZURE
    DEEPSEEK = "deepseek"
    GLM = "glm"
    OPENROUTER = "openrouter"
    MISTRAL = "mistral"
    GROQ = "groq"
    QWEN = "qwen"
    OLLAMA = "ollama"
    LOCAL = "local"
    DEMO = "demo"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


INTERNAL_TYPES = frozenset({ProviderType.LOCAL, ProviderType.DEMO})
"""Types whose servers belong to Luxx, so that a provider has no address of its own."""

_ROWS: dict[str, tuple[Adapter, str]] = {
    ProviderType.OPENAI: (OPENAI, "https://api.openai.com/v1"),
    ProviderType.OPENAI_RESPONSES: (RESPONSES, "https://api.openai.com/v1"),
    ProviderType.OPENAI_COMPATIBLE: (OPENAI, ""),
    ProviderType.AZURE_OPENAI: (OPENAI, ""),
    ProviderType.DEEPSEEK: (OPENAI, "https://api.deepseek.com/v1"),
    ProviderType.GLM: (OPENAI, "https://api.z.ai/api/paas/v4"),
    ProviderType.OPENROUTER: (OPENAI, "https://openrouter.ai/api/v1"),
    ProviderType.MISTRAL: (OPENAI, "https://api.mistral.ai/v1"),
    ProviderType.GROQ: (OPENAI, "https://api.groq.com/openai/v1"),
    ProviderType.QWEN: (OPENAI, "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
    ProviderType.OLLAMA: (OPENAI, "http://127.0.0.1:11434/v1"),
    ProviderType.LOCAL: (OPENAI, ""),
    ProviderType.DEMO: (OPENAI, ""),
    ProviderType.ANTHROPIC: (ANTHROPIC, "https://api.anthropic.com"),
    ProviderType.GEMINI: (GEMINI, "https://generativelanguage.googleapis.com/v1beta"),
}


def adapter_for(provider_type: str) -> Adapter:
    """Raises InvalidInput (`unknown_provider_type`)."""
    row = _ROWS.get(provider_type)
    if row is None:
        raise InvalidInput(
            f"'{provider_type}' is not a known provider type; known types: {', '.join(_ROWS)}.",
            kind="unknown_provider_type",
        )
    return row[0]


def completion_adapter(request: CompletionRequest, target: Target) -> Adapter:
    """The adapter for this request: some models are called through another API of their vendor.

    Raises InvalidInput (`unknown_provider_type`).
    """
    adapter = adapter_for(target.provider_type)
    if adapter is not OPENAI or Adaptation.CHAT_COMPLETIONS in request.adaptations:
        return adapter
    if Adaptation.RESPONSES in request.adaptations or prefers_responses(target, request.model):
        return RESPONSES
    return adapter


def base_url_of_type(provider_type: str, old_type: str, base_url: str) -> str:
    """The address of a provider that gets another type: a custom one stays, a vendor's is replaced by that of
    the new vendor. Empty for the default of the type."""
    is_custom = base_url.rstrip("/") != default_base_url(old_type).rstrip("/")
    stays = is_custom or not default_base_url(provider_type)
    return base_url if stays and provider_type not in INTERNAL_TYPES else ""


def default_base_url(provider_type: str) -> str:
    """The vendor's address for this provider type; empty if the type has none."""
    return _ROWS.get(provider_type, (None, ""))[1]


def takes_query(provider_type: str) -> bool:
    """Whether the address of this type may end in `?api-version=…`, as Azure's do."""
    return adapter_for(provider_type) in (OPENAI, RESPONSES)


MAX_REMEMBERED = 1_000

_REFUSED = frozenset({400, 404, 405, 422})
_ONCE = frozenset({Adaptation.NO_NOTES})
"""Demands of one conversation; another one of the same model keeps its notes."""

_OF_ROLES = frozenset({Adaptation.ALTERNATING, Adaptation.NO_SYSTEM, Adaptation.ENDS_WITH_USER})
"""Demands of the templates of models, whose errors some servers report as their own (500, or in a stream)."""

_OF_SCHEMAS = frozenset({Adaptation.JSON_OBJECT, Adaptation.NO_SCHEMA})
_THIS_SCHEMA = re.compile(
    r"invalid.{0,20}schema|schema.{0,60}(invalid|too (complex|large|many))", re.IGNORECASE
)
"""The refusal of one schema; another one may be accepted."""

_OPENAI_VENDORS = frozenset({ProviderType.OPENAI, ProviderType.AZURE_OPENAI})
_WORDINGS: tuple[tuple[Adaptation, re.Pattern[str]], ...] = tuple(
    (adaptation, re.compile(wording, re.IGNORECASE))
    for adaptation, wording in (
        (Adaptation.NO_CACHE_MARKS, CACHE_MARK),
        (
            Adaptation.RESPONSES,
            r"only supported in v1/responses|function tools with reasoning_effort are not supported"
            r"|not a chat model|chatcompletion operation does not work",
        ),
        (Adaptation.CHAT_COMPLETIONS, r"not supported (with|in) the responses api|responses api is not"),
        (Adaptation.MAX_COMPLETION_TOKENS, r"'?max_tokens'? is not supported.*max_completion_tokens"),
        (
            Adaptation.MAX_TOKENS,
            r"(unrecognized|unknown|unsupported|extra|not permitted|unexpected).*max_completion_tokens"
            r"|max_completion_tokens.*(not permitted|not supported|unexpected|extra)",
        ),
        (Adaptation.NO_TEMPERATURE, r"'?temperature'?\W.*(not supported|does not support)"),
        (Adaptation.NO_SUMMARY, r"reasoning\.?\W?summar(y|ies)"),
        (
            Adaptation.NO_NOTES,
            r"invalid_encrypted_content|encrypted content .*(verified|decrypt)|required following item"
            r"|items are not persisted",
        ),
        (Adaptation.NO_ENCRYPTED_REASONING, r"encrypted[ _]content|reasoning\.encrypted_content"),
        (
            Adaptation.ALTERNATING,
            r"\broles?\b.{0,60}alternat|should alternate|(successive|consecutive) (user|assistant|messages)"
            r"|unexpected role '?user'? after role",
        ),
        (
            Adaptation.NO_SYSTEM,
            r"system (role|message|prompt|instruction)s?\W.{0,30}"
            r"(not (be )?(supported|enabled|allowed)|unsupported)"
            r"|developer instruction is not enabled|(not|n't) support (the )?system",
        ),
        (
            Adaptation.ENDS_WITH_USER,
            r"must end with a user message|expected last role user|not support (assistant message )?prefill",
        ),
        (
            Adaptation.REASONING_OF_CALLS,
            r"reasoning_content.{0,60}(must be passed|is missing)|missing.{0,20}reasoning_content",
        ),
        (Adaptation.NO_CHOICE_OF_NONE, r"tool[_ ]?choice|function_?calling_?config"),
        (
            Adaptation.JSON_OBJECT,
            r"json_schema|response_format.{0,10}type|response[_ ]format.{0,80}(unavailable|unsupported|not)",
        ),
        (
            Adaptation.NO_SCHEMA,
            r"response[_ ]?format|json[ _]?(mode|object|schema)|response[_ ]?mime[_ ]?type"
            r"|response_?(json_?)?schema|output_(config|format)|structured[ _]outputs?|text\.format|grammar"
            r"|invalid.{0,20}schema"
            r"|\bschema\b.{0,60}(invalid|unsupported|not supported|too (complex|large|many))",
        ),
    )
)
"""The first that matches counts. Sources of the wordings: OpenAI's and Azure's errors in public issues."""


_REFUSED_TOOL = re.compile(
    r"schema for (?:function|tool) ['\"`](?P<name>[\w.-]{1,64})['\"`]"
    r"|function_?declarations(?:\[|\.)(?P<declared>\d{1,4})\b"
    r"|\btools(?:\[|\.)(?P<listed>\d{1,4})\b(?!\]?\.function_?declarations)",
    re.IGNORECASE,
)
"""Where vendors say which tool of a request they refuse: OpenAI's name of the function and its `tools[1]`,
Anthropic's `tools.1.custom.input_schema`, Gemini's `tools[0].function_declarations[1].parameters`."""

MAX_REFUSED_TOOLS = 5
"""Tools that are left out of one request, each after a refusal; more are the server's own trouble."""


class Adaptations:
    """Remembers what servers demanded, and which tools they refused, by address and model."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], frozenset[Adaptation]] = {}
        self._refused: dict[tuple[str, str], frozenset[str]] = {}

    def adapt(self, request: CompletionRequest, target: Target) -> CompletionRequest:
        """The request as the server is known to want it."""
        key = (target.base_url, request.model)
        if (refused := self._refused.get(key)) and not request.needs_tools:
            kept = [tool for tool in request.tools if _digest(tool) not in refused]
            request = msgspec.structs.replace(request, tools=kept)
        known = self._known.get(key)
        return request if known is None else _with(request, known)

    def adapt_after(
        self, error: ProviderError, request: CompletionRequest, target: Target
    ) -> CompletionRequest | None:
        """The request as this error demands it; None if it demands nothing that the request is not yet."""
        key = (target.base_url, request.model)
        if tool := refused_tool(error, request):
            refused = self._refused.get(key, frozenset())
            if len(refused) < MAX_REMEMBERED and (refused or len(self._refused) < MAX_REMEMBERED):
                self._refused[key] = refused | {_digest(tool)}
            kept = [each for each in request.tools if each is not tool]
            return msgspec.structs.replace(request, tools=kept)
        adaptation = _demand_of(error, request, target)
        if adaptation is None or adaptation in request.adaptations:
            return None
        is_lasting = adaptation not in _ONCE and not (
            adaptation in _OF_SCHEMAS and _THIS_SCHEMA.search(error.message)
        )
        if is_lasting and (key in self._known or len(self._known) < MAX_REMEMBERED):
            self._known[key] = self._known.get(key, frozenset()) | {adaptation}
        return _with(request, frozenset({adaptation}))


def refused_tool(error: ProviderError, request: CompletionRequest) -> ToolSpec | None:
    """The tool for whose definition the server refused the request; None if it refused something else, or
    if the request cannot do without this tool."""
    if not isinstance(error, ProviderRefused) or error.status not in _REFUSED or request.needs_tools:
        return None
    found = _REFUSED_TOOL.search(error.message)
    if found is None:
        return None
    name, index = found["name"], found["declared"] or found["listed"]
    if name:
        tool = next((each for each in request.tools if each.name == name), None)
    else:
        tool = request.tools[int(index)] if int(index) < len(request.tools) else None
    choice = request.tool_choice
    is_demanded = choice is not None and (len(request.tools) == 1 or (tool and choice.name == tool.name))
    return None if is_demanded else tool


def _digest(tool: ToolSpec) -> str:
    """Differs when the definition changes, so that it is tried again."""
    return sha256(msgspec.json.encode(tool)).hexdigest()


def _with(request: CompletionRequest, adaptations: frozenset[Adaptation]) -> CompletionRequest:
    if Adaptation.NO_CHOICE_OF_NONE in adaptations and _forbids_calls(request):
        # The executor refuses the calls.
        request = msgspec.structs.replace(request, tool_choice=None)
    return msgspec.structs.replace(
        request,
        adaptations=request.adaptations | adaptations,
        caches_prompt=request.caches_prompt and Adaptation.NO_CACHE_MARKS not in adaptations,
    )


def _demand_of(error: ProviderError, request: CompletionRequest, target: Target) -> Adaptation | None:
    is_refused = isinstance(error, ProviderRefused) and error.status in _REFUSED
    is_of_template = isinstance(error, ProviderRefused | ProviderFailed) and error.status in (None, 500)
    if not is_refused and not is_of_template:
        return None
    for adaptation, wording in _WORDINGS:
        if is_of_template and adaptation not in _OF_ROLES:
            continue
        if wording.search(error.message) and _is_possible(adaptation, request, target):
            return adaptation
    if is_of_template:
        return None
    is_missing = error.status in (404, 405) and vendor_of(target) == AZURE
    if is_missing and _is_possible(Adaptation.CHAT_COMPLETIONS, request, target):
        return Adaptation.CHAT_COMPLETIONS
    return None


def _forbids_calls(request: CompletionRequest) -> bool:
    return request.tool_choice is not None and request.tool_choice.mode == ToolChoiceMode.NONE


def _is_possible(adaptation: Adaptation, request: CompletionRequest, target: Target) -> bool:
    """Whether the request has what the server refuses."""
    is_chosen = target.provider_type != ProviderType.OPENAI_RESPONSES and vendor_of(target) in _OPENAI_VENDORS
    dialect = completion_adapter(request, target).dialect
    uses_responses = dialect == "openai_responses"
    if adaptation in request.adaptations:
        return False
    match adaptation:
        case Adaptation.RESPONSES | Adaptation.CHAT_COMPLETIONS:
            return is_chosen and uses_responses == (adaptation is Adaptation.CHAT_COMPLETIONS)
        case Adaptation.NO_CACHE_MARKS:
            return request.caches_prompt
        case Adaptation.NO_TEMPERATURE:
            return request.temperature is not None
        case Adaptation.ALTERNATING | Adaptation.ENDS_WITH_USER:
            return True
        case Adaptation.NO_SYSTEM:
            return any(isinstance(each, SystemPrompt) for each in request.messages)
        case Adaptation.REASONING_OF_CALLS:
            return dialect == "openai" and any(
                isinstance(each, AssistantPrompt) and each.tool_calls for each in request.messages
            )
        case Adaptation.NO_CHOICE_OF_NONE:
            return _forbids_calls(request)
        case Adaptation.JSON_OBJECT:
            schema = request.response_schema if takes_schema(request) else None
            return schema is not None and dialect == "openai" and not is_any_object(schema)
        case Adaptation.NO_SCHEMA:
            return takes_schema(request)
        case Adaptation.MAX_COMPLETION_TOKENS | Adaptation.MAX_TOKENS:
            return request.max_tokens is not None and not uses_responses
        case _:
            return uses_responses
