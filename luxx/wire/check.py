"""Checks of answers and of results of tools: who judges, and the event of a verdict."""

from enum import StrEnum

from luxx.wire.turn import EventBase


class CheckBy(StrEnum):
    """Who judges: `facts` are what Luxx finds itself, `model` asks a model where the facts find nothing."""

    FACTS = "facts"
    MODEL = "model"


class VerdictResult(StrEnum):
    """`unsure`: nobody could say; it counts as passed."""

    VALID = "valid"
    INVALID = "invalid"
    UNSURE = "unsure"


ANSWER_TARGET = "answer"
"""The target of a verdict on the answer; of others it is the id of the call."""


class Verdict(EventBase, frozen=True, kw_only=True, tag="verdict"):
    """A check judged the answer, or the result of the call `target`. `reasons` are sentences, `evidence` the
    words that show them, `cost` the US dollars of the judge (null: not known).

    `round`: the evidence goes back to the model, for this time, from 1; 0: it does not.
    """

    target: str
    result: VerdictResult
    by: CheckBy
    reasons: list[str] = []
    evidence: str = ""
    cost: float | None = None
    round: int = 0
