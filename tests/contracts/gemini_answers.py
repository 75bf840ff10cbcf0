"""Random answers of the Gemini dialect: their parts, and their stream."""

import json
from base64 import b64encode
from typing import Any

from histories import objects, said
from hypothesis import strategies as st

base64 = st.binary(min_size=3, max_size=30).map(lambda data: b64encode(data).decode())
text_parts = st.builds(
    lambda text, thought, signature: {
        "text": text,
        **({"thought": True} if thought else {}),
        **({"thoughtSignature": signature} if signature else {}),
    },
    said,
    st.booleans(),
    st.none() | base64,
)
call_parts = st.builds(
    lambda name, args, signature: {
        "functionCall": {"name": name, "args": args},
        **({"thoughtSignature": signature} if signature else {}),
    },
    st.sampled_from(["add", "mul"]),
    objects,
    st.none() | base64,
)
other_parts = st.builds(
    lambda code, signature: {
        "executableCode": {"language": "PYTHON", "code": code},
        **({"thoughtSignature": signature} if signature else {}),
    },
    said,
    st.none() | base64,
)
bare_parts = base64.map(lambda signature: {"text": "", "thoughtSignature": signature})
answers = st.lists(text_parts | call_parts | other_parts | bare_parts, min_size=1, max_size=8)


def stream_of(parts: list[dict[str, Any]]) -> bytes:
    """The answer as its server streams it, a part a chunk."""
    parts_sent: list[Any] = [{"content": {"role": "model", "parts": [part]}} for part in parts]
    chunks = [{"candidates": [candidate]} for candidate in [*parts_sent, {"finishReason": "STOP"}]]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
