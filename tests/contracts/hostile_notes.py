"""Replay notes as an imported file may contain them: any JSON at Luxx's keys, or valid except for
one value.
"""

from typing import Any

from histories import texts
from hypothesis import strategies as st

from luxx.wire.message import AssistantPrompt

Json = dict[str, Any]

KEYS = [
    "anthropic_content", "anthropic_model", "gemini", "reasoning_details", "reasoning_field", "refusal",
    "google_signatures", "openai_responses", "paused", "another",
]  # fmt: skip
INNER = [
    "type", "text", "thinking", "signature", "data", "id", "tool_use_id", "name", "input", "content",
    "citations", "caller", "call", "thought", "part", "functionCall", "functionResponse", "executableCode",
    "thoughtSignature", "vendor",
]  # fmt: skip
WORDS = [
    "text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use", "tool_result",
    "web_search_tool_result", "image", "compaction", "reasoning.text", "reasoning_content", "call_1", "",
    "reasoning", "inline", "google", "vertex",
    "AAAA", "not base64!", "{",
]  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(INNER) | texts, inner, max_size=5)
    ),
    max_leaves=15,
)
objects = st.dictionaries(st.sampled_from(INNER), values, max_size=5)
typed = objects.flatmap(lambda fields: st.sampled_from(WORDS).map(lambda kind: {**fields, "type": kind}))
any_notes = st.dictionaries(st.sampled_from(KEYS), values | st.lists(objects | typed, max_size=5), max_size=4)


@st.composite
def well_formed(draw: st.DrawFn, answer: AssistantPrompt) -> Json:
    """Notes of every dialect at once, as each adapter would have written them for this answer."""
    said = _cut(draw, answer.text)
    return {
        "anthropic_content": _anthropic(draw, answer, said),
        "anthropic_model": "claude-sonnet-4-5-20250929",
        "gemini": _gemini(draw, answer, said),
        "reasoning_details": [
            {"type": "reasoning.text", "text": answer.thinking, "signature": "c2ln", "index": 0}
        ],
        "reasoning_field": draw(st.sampled_from(["reasoning_content", "reasoning", "inline"])),
        "google_signatures": [
            {"vendor": "google", "signature": "c2ln"},
            *({"call": c.call_id, "vendor": "vertex", "signature": "c2ln"} for c in answer.tool_calls),
        ],
        "openai_responses": {"origin": "models.example gpt-5", "items": _responses(answer, said)},
    }


@st.composite
def spoiled(draw: st.DrawFn, answer: AssistantPrompt) -> Json:
    """Valid notes with one value replaced or one key removed."""
    note = draw(well_formed(answer))
    holder, key = draw(st.sampled_from(list(_places(note))))
    if isinstance(holder, dict) and draw(st.integers(0, 4)) == 0:
        del holder[key]
    else:
        holder[key] = draw(values | typed)
    return note


def _cut(draw: st.DrawFn, text: str) -> list[str]:
    """The text in up to three pieces, none of them blank."""
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=2)))
    pieces = [text[start:end] for start, end in zip([0, *at], [*at, len(text)], strict=True)]
    return pieces if all(piece.strip() for piece in pieces) else [text] * bool(text.strip())


def _anthropic(draw: st.DrawFn, answer: AssistantPrompt, said: list[str]) -> list[Json]:
    searched: list[Json] = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    ]
    return [
        {"type": "thinking", "thinking": answer.thinking, "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "c2ln"},
        *(searched if draw(st.booleans()) else []),
        *({"type": "text", "text": piece} for piece in said),
        *({"type": "tool_use", "id": c.call_id, "name": c.name, "input": {}} for c in answer.tool_calls),
    ]


def _gemini(draw: st.DrawFn, answer: AssistantPrompt, said: list[str]) -> list[Json]:
    ran = {"part": {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "c2ln"}}
    return [
        {"thought": len(answer.thinking), "signature": "c2ln"},
        *([ran] if draw(st.booleans()) else []),
        *({"text": len(piece), "signature": "c2ln"} for piece in said),
        *({"call": call.call_id, "signature": "c2ln"} for call in answer.tool_calls),
    ]


def _responses(answer: AssistantPrompt, said: list[str]) -> list[Json]:
    summary = [{"type": "summary_text", "text": "a"}]
    return [
        {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "c2ln"},
        *({"type": "message", "length": len(piece), "phase": "commentary"} for piece in said),
        *({"type": "function_call", "call": call.call_id, "namespace": "a"} for call in answer.tool_calls),
    ]


def _places(value: Any) -> Any:
    """Each key or index in a value, with its container."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])
