"""The embeddings of the scripted provider: texts with common words are similar, without any model."""

import math
from hashlib import blake2b
from typing import Any, cast

import msgspec

from luxx.infra.store.search_words import stems_of, words_of
from luxx.providers.scripted.script import Vectors

SHORT = 3
"""Latin letters of words that say little about a text."""


def embeddings_body(path: str, body: bytes, vectors: Vectors) -> dict[str, Any] | None:
    """The response to a request for embeddings in OpenAI's or Gemini's dialect; None for another one."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    if path.endswith("/embeddings"):
        given = fields.get("input")
        texts = [given] if isinstance(given, str) else _texts(given)
        data = [
            {"object": "embedding", "index": at, "embedding": vector_of(text, vectors)}
            for at, text in enumerate(texts)
        ]
        tokens = sum(len(text.encode()) // 4 for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": fields.get("model", ""), "data": data, "usage": usage}
    if path.endswith(":batchEmbedContents"):
        parts = [item["content"]["parts"][0]["text"] for item in fields["requests"]]
        return {"embeddings": [{"values": vector_of(text, vectors)} for text in _texts(parts)]}
    return None


def _texts(value: object) -> list[str]:
    return [str(each) for each in cast("list[object]", value)] if isinstance(value, list) else []


def vector_of(text: str, vectors: Vectors) -> list[float]:
    """A sum of directions, one of each word of the text. The same text always has the same vector, also a
    random one."""
    text = vectors.meanings.get(text, text)
    if vectors.random:
        return _direction(text, vectors)
    words = [word for word in words_of(text) if len(word) > SHORT or not word.isascii()]
    total = [0.0] * vectors.dimensions
    for word in set(stems_of(words)):
        for at, value in enumerate(_direction(word, vectors)):
            total[at] += value
    length = math.hypot(*total)
    return [value / length for value in total] if length else _direction(text, vectors)


def _direction(word: str, vectors: Vectors) -> list[float]:
    size = vectors.dimensions
    bits = b"".join(blake2b(f"{at} {word}".encode()).digest() for at in range(-(-size // 64)))[:size]
    return [(value - 127.5) / 127.5 for value in bits]
