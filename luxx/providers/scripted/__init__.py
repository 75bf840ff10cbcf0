"""The scripted provider: a fake model provider that serves HTTP, for the tests of Luxx and of its users."""

from luxx.providers.scripted.http import Received
from luxx.providers.scripted.provider import ScriptBroken, ScriptedProvider
from luxx.providers.scripted.script import (
    Bytes,
    Call,
    Counts,
    Fail,
    Faults,
    Finish,
    Gate,
    Pause,
    Rule,
    Script,
    Text,
    Thinking,
    Vectors,
    When,
    load_script,
)

__all__ = [
    "Bytes",
    "Call",
    "Counts",
    "Fail",
    "Faults",
    "Finish",
    "Gate",
    "Pause",
    "Received",
    "Rule",
    "Script",
    "ScriptBroken",
    "ScriptedProvider",
    "Text",
    "Thinking",
    "Vectors",
    "When",
    "load_script",
]
