"""Vendors of the OpenAI dialects: which one answers at an address, its addresses and its key header.

Also which of OpenAI's models are called through the Responses API.
"""

import re
from urllib.parse import SplitResult, urlsplit

from luxx.providers.adapter import Target

AZURE = "azure_openai"
OPENAI = "openai"

_GENERIC_TYPES = frozenset({"openai_compatible", "openai_responses"})
"""Provider types whose vendor is known from the host only."""

_VENDOR_OF_HOST = {
    "api.openai.com": OPENAI,
    "openai.azure.com": AZURE,
    "openai.azure.us": AZURE,
    "cognitiveservices.azure.com": AZURE,
    "services.ai.azure.com": AZURE,
    "deepseek.com": "deepseek",
    "mistral.ai": "mistral",
    "openrouter.ai": "openrouter",
    "groq.com": "groq",
    "z.ai": "glm",
    "bigmodel.cn": "glm",
    "aliyuncs.com": "qwen",
    "googleapis.com": "google",
    "cerebras.ai": "cerebras",
    "moonshot.ai": "moonshot",
    "moonshot.cn": "moonshot",
    "minimax.io": "minimax",
    "minimaxi.com": "minimax",
}

# Reasoning models take an effort and no temperature.
_REASONING_MODELS = re.compile(r"(?:ft:)?(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*chat))")
# Models that chat completions do not serve, or not with tools and reasoning: the reasoning models, and these.
_RESPONSES_MODELS = re.compile(r"computer-use|codex-|gpt-(?:daybreak|rosalind)")
_ENDPOINTS = ("/chat/completions", "/responses")
_DEPLOYMENT = re.compile(r"(.*/openai)/deployments/[^/]+")


def vendor_of(target: Target) -> str:
    """The provider's type; for a generic type with a known host, and for Azure, the type of that vendor."""
    vendor = _vendor_of_host(target.base_url)
    if target.provider_type in _GENERIC_TYPES:
        return vendor or target.provider_type
    return AZURE if vendor == AZURE and target.provider_type == OPENAI else target.provider_type


def is_reasoning_model(model: str) -> bool:
    """Whether it is one of OpenAI's reasoning models, by its name."""
    return _REASONING_MODELS.match(model) is not None


def prefers_responses(target: Target, model: str) -> bool:
    """Whether a model of OpenAI or Azure is called through the Responses API although the type is another.

    At Azure only where the address has the version-1 API, which every deployment's model serves.
    """
    host = _vendor_of_host(target.base_url)
    if target.provider_type not in (OPENAI, AZURE, "openai_compatible") or host not in (OPENAI, AZURE):
        return False
    if host == AZURE and not _azure_path(_split(target.base_url).path).endswith("/openai/v1"):
        return False
    return is_reasoning_model(model) or _RESPONSES_MODELS.match(model) is not None


def endpoint(target: Target, path: str) -> str:
    """The address with this path before its query; an endpoint's path at its end is removed.

    At Azure, only chat completions have the deployment in their path.
    """
    parts = _split(target.base_url)
    base = parts.path.rstrip("/")
    for known in _ENDPOINTS:
        base = base.removesuffix(known).rstrip("/")
    if vendor_of(target) == AZURE:
        base = _azure_path(base)
        if path != "chat/completions":
            base = _DEPLOYMENT.sub(r"\1", base)
    return parts._replace(path=f"{base}/{path}").geturl()


def key_headers(target: Target) -> dict[str, str]:
    """The header with the key; Azure takes its own keys in `api-key`, and tokens of Entra as others do."""
    if not target.api_key:
        return {}
    if vendor_of(target) == AZURE and not target.api_key.startswith("eyJ"):
        return {"api-key": target.api_key}
    return {"authorization": f"Bearer {target.api_key}"}


def _azure_path(path: str) -> str:
    """The path of the API; the version-1 API if the address is that of the resource only."""
    path = path.rstrip("/")
    return "/openai/v1" if path in ("", "/openai") else path


def _vendor_of_host(base_url: str) -> str | None:
    host = _split(base_url).hostname or ""
    for domain, vendor in _VENDOR_OF_HOST.items():
        if host == domain or host.endswith("." + domain):
            return vendor
    return None


def _split(base_url: str) -> SplitResult:
    """The parts of an address; one that is no URL is all path, and the transport refuses it."""
    try:
        return urlsplit(base_url.strip())
    except ValueError:
        return SplitResult("", "", base_url.strip(), "", "")
