"""What a server's refusal demands of later requests: another parameter, none of one, or another endpoint.

Servers of one dialect differ by model, deployment and version, and say so only in the error. The request is
then sent once more as demanded, and later requests of the same model to the same address begin so.
"""

import re

import msgspec

from luxx.errors import ProviderError, ProviderFailed, ProviderRefused
from luxx.providers.adapter import CACHE_MARK, Adaptation, CompletionRequest, Target
from luxx.providers.demanded_forms import is_any_object, takes_schema
from luxx.providers.registry import ProviderType, completion_adapter
from luxx.providers.vendors import AZURE, OPENAI, vendor_of
from luxx.wire.message import AssistantPrompt, SystemPrompt

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

_OPENAI_VENDORS = frozenset({OPENAI, AZURE})
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


class Adaptations:
    """Remembers what servers demanded, by address and model."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], frozenset[Adaptation]] = {}

    def adapt(self, request: CompletionRequest, target: Target) -> CompletionRequest:
        """The request as the server is known to want it."""
        known = self._known.get((target.base_url, request.model))
        return request if known is None else _with(request, known)

    def adapt_after(
        self, error: ProviderError, request: CompletionRequest, target: Target
    ) -> CompletionRequest | None:
        """The request as this error demands it; None if it demands nothing that the request is not yet."""
        adaptation = _demand_of(error, request, target)
        if adaptation is None or adaptation in request.adaptations:
            return None
        key = (target.base_url, request.model)
        is_lasting = adaptation not in _ONCE and not (
            adaptation in _OF_SCHEMAS and _THIS_SCHEMA.search(error.message)
        )
        if is_lasting and (key in self._known or len(self._known) < MAX_REMEMBERED):
            self._known[key] = self._known.get(key, frozenset()) | {adaptation}
        return _with(request, frozenset({adaptation}))


def _with(request: CompletionRequest, adaptations: frozenset[Adaptation]) -> CompletionRequest:
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


def _is_possible(adaptation: Adaptation, request: CompletionRequest, target: Target) -> bool:
    """Whether the request has what the server refuses."""
    is_chosen = target.provider_type != ProviderType.OPENAI_RESPONSES and vendor_of(target) in _OPENAI_VENDORS
    dialect = completion_adapter(request, target).dialect
    uses_responses = dialect == "openai_responses"
    if adaptation in request.adaptations:
        return False
    match adaptation:
        case Adaptation.RESPONSES:
            return is_chosen and not uses_responses
        case Adaptation.CHAT_COMPLETIONS:
            return is_chosen and uses_responses
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
        case Adaptation.JSON_OBJECT:
            schema = request.response_schema if takes_schema(request) else None
            return schema is not None and dialect == "openai" and not is_any_object(schema)
        case Adaptation.NO_SCHEMA:
            return takes_schema(request)
        case Adaptation.MAX_COMPLETION_TOKENS | Adaptation.MAX_TOKENS:
            return request.max_tokens is not None and not uses_responses
        case _:
            return uses_responses
