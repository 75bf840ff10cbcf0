"""Taint: whether a run holds content that strangers wrote, which may carry instructions for its model. Pure.

It is a fact of the log, so it outlives processes; and of stored messages, so that a later run of the same
conversation has it from its beginning, and so has a subagent of a tainted run.
"""

from collections.abc import Sequence

from luxx.runs.brief import ChatBrief
from luxx.runs.events import Entry
from luxx.runs.state import ChatState
from luxx.tools.history import Executed
from luxx.wire.event import Tainted


def tainted_by(state: ChatState, brief: ChatBrief) -> str | None:
    """The tool that brought the first of it, in this run or in one that it goes on from."""
    return state.tainted_by or _before(brief)


def inherited(state: ChatState, brief: ChatBrief) -> list[Entry]:
    """What a run has to log that goes on from tainted messages, or run, and has not said so."""
    before = None if state.tainted_by is not None else _before(brief)
    return [] if before is None else [Tainted(by=before)]


def brought(state: ChatState, results: Sequence[Executed]) -> list[Entry]:
    """What is to be logged with these results."""
    first = next((one for one in results if one.is_untrusted), None)
    return [] if first is None or state.tainted_by is not None else [Tainted(by=first.name)]


def _before(brief: ChatBrief) -> str | None:
    if brief.request.delegated is not None:
        return brief.request.delegated.tainted_by
    untrusted = (step for message in brief.past for step in message.steps if step.is_untrusted is True)
    first = next(untrusted, None)
    return None if first is None else first.name or "an earlier call"
