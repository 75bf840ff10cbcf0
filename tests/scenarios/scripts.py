"""Scripts that several scenarios use: answers with gates, and a turn of two iterations with tools."""

from typing import Any

from luxx.providers.scripted import Call, Counts, Gate, Rule, Script, Text, Thinking, When

PROSE = " ".join(f"word{n}" for n in range(200)) + " — ünïcode, 漢字 and 🦉.\n\nid: 7\ndata: not a frame\n\n"
FIRST_THOUGHT = "I look at the file before I answer. "
SECOND_THOUGHT = "Both visits are done."
PREFACE = "Let me see. "
ASKS_FOR_SUMMARY = "no longer fits your context window"
"""Is in the message that asks a model for the summary of its conversation."""


def always_replies(*reply: Any, **more: Any) -> Script:
    """Every call gets this reply."""
    return Script(rules=[Rule(reply=list(reply), **more)])


def words(text: str, gate: str | None = None) -> list[Any]:
    """A text word by word; a gate in its middle comes after a space."""
    if gate is None:
        return [Text(text=text)]
    middle = text.index(" ", len(text) // 2) + 1
    return [Text(text=text[:middle]), Gate(name=gate), Text(text=text[middle:])]


def calls(tool: str, port: int, *keys: str) -> list[Call]:
    """One call of a controlled tool for each key."""
    return [Call(name=tool, arguments={"port": port, "key": key}, id=f"call-{key}") for key in keys]


def two_iterations(port: int, *, tool: str = "visit_once", text: str = PROSE) -> Script:
    """Thinking, text and two calls in the first answer; then thinking and text."""
    return Script(
        rules=[
            Rule(
                name="first call",
                when=When(has_tool_result=False),
                reply=[
                    Thinking(text=FIRST_THOUGHT),
                    Text(text=PREFACE, pieces=2),
                    *calls(tool, port, "a", "b"),
                    Counts(prompt=10, completion=20),
                ],
            ),
            Rule(
                name="second call",
                when=When(has_tool_result=True),
                reply=[Thinking(text=SECOND_THOUGHT), Text(text=text), Counts(prompt=30, completion=40)],
            ),
        ]
    )
