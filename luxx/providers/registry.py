"""The provider types: one row each, with the adapter of its dialect and its default base URL."""

from collections.abc import Callable
from enum import StrEnum

from luxx.errors import InvalidInput
from luxx.providers.adapter import Adapter
from luxx.providers.anthropic.adapter import AnthropicAdapter
from luxx.providers.gemini.adapter import GeminiAdapter
from luxx.providers.openai_chat.adapter import OpenAIAdapter


class ProviderType(StrEnum):
    OPENAI = "openai"
    OPENAI_COMPATIBLE = "openai_compatible"
    DEEPSEEK = "deepseek"
    GLM = "glm"
    OPENROUTER = "openrouter"
    MISTRAL = "mistral"
    GROQ = "groq"
    QWEN = "qwen"
    OLLAMA = "ollama"
    LOCAL = "local"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


_ROWS: dict[str, tuple[Callable[[], Adapter], str]] = {
    ProviderType.OPENAI: (OpenAIAdapter, "https://api.openai.com/v1"),
    ProviderType.OPENAI_COMPATIBLE: (OpenAIAdapter, ""),
    ProviderType.DEEPSEEK: (OpenAIAdapter, "https://api.deepseek.com/v1"),
    ProviderType.GLM: (OpenAIAdapter, "https://api.z.ai/api/paas/v4"),
    ProviderType.OPENROUTER: (OpenAIAdapter, "https://openrouter.ai/api/v1"),
    ProviderType.MISTRAL: (OpenAIAdapter, "https://api.mistral.ai/v1"),
    ProviderType.GROQ: (OpenAIAdapter, "https://api.groq.com/openai/v1"),
    ProviderType.QWEN: (OpenAIAdapter, "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
    ProviderType.OLLAMA: (OpenAIAdapter, "http://127.0.0.1:11434/v1"),
    ProviderType.LOCAL: (OpenAIAdapter, ""),
    ProviderType.ANTHROPIC: (AnthropicAdapter, "https://api.anthropic.com"),
    ProviderType.GEMINI: (GeminiAdapter, "https://generativelanguage.googleapis.com/v1beta"),
}


def adapter_for(provider_type: str) -> Adapter:
    """Raises InvalidInput (`unknown_provider_type`)."""
    row = _ROWS.get(provider_type)
    if row is None:
        raise InvalidInput(
            f"'{provider_type}' is not a known provider type; known types: {', '.join(_ROWS)}.",
            kind="unknown_provider_type",
        )
    make_adapter, _ = row
    return make_adapter()


def default_base_url(provider_type: str) -> str:
    """The vendor's address for this provider type; empty if the type has none."""
    _, base_url = _ROWS.get(provider_type, (None, ""))
    return base_url
