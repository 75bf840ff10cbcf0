"""Random answers of the OpenAI dialect, with reasoning in any of the fields that compatible servers use."""

import json
from typing import Any

from histories import names, objects, said
from hypothesis import strategies as st

Json = dict[str, Any]

details = st.builds(
    lambda kind, data: {"type": f"reasoning.{kind}", kind: data, "format": "anthropic-claude-v1"},
    st.sampled_from(["text", "summary", "encrypted"]),
    said,
)
reasonings = st.one_of(
    st.builds(lambda text: {"reasoning_content": text}, said),
    st.builds(lambda text, detail: {"reasoning": text, "reasoning_details": [detail]}, said, details),
    st.builds(lambda detail: {"reasoning_details": [detail]}, details),
)
texts = said.map(lambda text: {"content": text})
refusals = said.map(lambda text: {"refusal": text})


@st.composite
def answers(draw: st.DrawFn) -> list[Json]:
    """The deltas of one answer: reasoning, then text or a refusal, then calls, each of them optional."""
    deltas: list[Json] = draw(st.lists(reasonings, max_size=2))
    deltas += draw(st.lists(texts, max_size=2) | st.lists(refusals, min_size=1, max_size=2))
    for index, (name, given_input) in enumerate(draw(st.lists(st.tuples(names, objects), max_size=2))):
        function = {"name": name, "arguments": json.dumps(given_input)}
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        deltas.append({"tool_calls": [call]})
    # Reasoning alone is no answer and is not sent back.
    if not any({"content", "refusal", "tool_calls"} & delta.keys() for delta in deltas):
        deltas.append(draw(texts))
    return deltas


def stream_of(deltas: list[Json]) -> bytes:
    """The answer as its server streams it, a delta a chunk."""
    finish = "tool_calls" if "tool_calls" in deltas[-1] else "stop"
    choices: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    chunks = [json.dumps({"object": "chat.completion.chunk", "choices": [choice]}) for choice in choices]
    return b"".join(f"data: {chunk}\n\n".encode() for chunk in [*chunks, "[DONE]"])
