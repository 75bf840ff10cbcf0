"""The provider types: one row each, with the adapter of its dialect and its default base URL."""

from enum import StrEnum

from luxx.errors import InvalidInput
from luxx.providers.adapter import Adaptation, Adapter, CompletionRequest, Target
from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.providers.gemini.adapter import GEMINI
from luxx.providers.openai_chat.adapter import OPENAI
from luxx.providers.openai_responses.adapter import RESPONSES
from luxx.providers.vendors import AZURE, prefers_responses


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
