"""Embeddings in Gemini's dialect."""

import msgspec

from luxx.providers.adapter import Target, UpstreamRequest, post_request
from luxx.providers.gemini.request import key_headers, model_url


class _GeminiVector(msgspec.Struct):
    values: list[float]


class _GeminiVectors(msgspec.Struct):
    embeddings: list[_GeminiVector]


def build_embeddings(target: Target, model: str, texts: list[str], *, is_query: bool) -> UpstreamRequest:
    """The request for all texts at once."""
    url, name = model_url(target, model)
    task = "RETRIEVAL_QUERY" if is_query else "RETRIEVAL_DOCUMENT"
    requests = [{"model": name, "content": {"parts": [{"text": text}]}, "taskType": task} for text in texts]
    return post_request(
        f"{url}:batchEmbedContents", key_headers(target), {"requests": requests}, stream=False
    )


def read_embeddings(body: bytes) -> tuple[list[list[float]], int]:
    """The vectors in the order of the texts; no response counts tokens. Raises msgspec.DecodeError."""
    return [item.values for item in msgspec.json.decode(body, type=_GeminiVectors).embeddings], 0
