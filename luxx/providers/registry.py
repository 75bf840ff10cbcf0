"""The dialect, adapter and default base URL of each provider type."""

from enum import StrEnum
from typing import assert_never

from luxx.errors import InvalidInput
from luxx.providers.adapter import Adapter
from luxx.providers.anthropic.adapter import AnthropicAdapter
from luxx.providers.gemini.adapter import GeminiAdapter
from luxx.providers.openai_chat.adapter import OpenAIAdapter


class Dialect(StrEnum):
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


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


_BASE_URLS = {
    ProviderType.OPENAI: "https://api.openai.com/v1",
    ProviderType.DEEPSEEK: "https://api.deepseek.com/v1",
    ProviderType.GLM: "https://api.z.ai/api/paas/v4",
    ProviderType.OPENROUTER: "https://openrouter.ai/api/v1",
    ProviderType.MISTRAL: "https://api.mistral.ai/v1",
    ProviderType.GROQ: "https://api.groq.com/openai/v1",
    ProviderType.QWEN: "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    ProviderType.OLLAMA: "http://127.0.0.1:11434/v1",
    ProviderType.ANTHROPIC: "https://api.anthropic.com",
    ProviderType.GEMINI: "https://generativelanguage.googleapis.com/v1beta",
}


def dialect_of(provider_type: str) -> Dialect:
    """Raises InvalidInput (`unknown_provider_type`)."""
    try:
        parsed_type = ProviderType(provider_type)
    except ValueError as error:
        names = ", ".join(ProviderType)
        raise InvalidInput(
            f"'{provider_type}' is not a known provider type; known types: {names}.",
            kind="unknown_provider_type",
        ) from error
    match parsed_type:
        case ProviderType.ANTHROPIC:
            return Dialect.ANTHROPIC
        case ProviderType.GEMINI:
            return Dialect.GEMINI
        case _:
            return Dialect.OPENAI


def adapter_for(provider_type: str) -> Adapter:
    """Raises InvalidInput (`unknown_provider_type`)."""
    dialect = dialect_of(provider_type)
    match dialect:
        case Dialect.OPENAI:
            return OpenAIAdapter()
        case Dialect.ANTHROPIC:
            return AnthropicAdapter()
        case Dialect.GEMINI:
            return GeminiAdapter()
        case _:
            assert_never(dialect)


def default_base_url(provider_type: str) -> str:
    """The vendor's address for this provider type; empty if the type has none."""
    return {str(each): url for each, url in _BASE_URLS.items()}.get(provider_type, "")
