"""Embeddings in OpenAI's dialect."""

import msgspec

from luxx.providers.adapter import Target, UpstreamRequest, endpoint, key_headers, post_request


class _OpenAIVector(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _EmbeddedTokens(msgspec.Struct):
    prompt_tokens: int = 0


class _OpenAIVectors(msgspec.Struct):
    data: list[_OpenAIVector]
    usage: _EmbeddedTokens | None = None


def build_embeddings(target: Target, model: str, texts: list[str], *, is_query: bool) -> UpstreamRequest:
    """The request. The dialect does not tell questions from texts."""
    del is_query
    body = {"model": model, "input": texts}
    return post_request(endpoint(target, "embeddings"), key_headers(target), body, stream=False)


def read_embeddings(body: bytes) -> tuple[list[list[float]], int]:
    """The vectors in the order of the texts, and the tokens of the texts, 0 if the response has none.

    Raises msgspec.DecodeError.
    """
    answer = msgspec.json.decode(body, type=_OpenAIVectors)
    items = answer.data
    if all(item.index is not None for item in items):
        items = sorted(items, key=lambda item: item.index or 0)
    tokens = 0 if answer.usage is None else answer.usage.prompt_tokens
    return [item.embedding for item in items], tokens
