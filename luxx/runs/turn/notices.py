"""The sentences of Luxx that stand beside an answer in which the model wrote no text."""

from collections.abc import Sequence

from luxx.wire.turn import FinishReason, Step, steps_text

NOTICES = {
    FinishReason.REFUSAL: "The model declined to answer this, and gave no reason.",
    FinishReason.CONTENT_FILTER: "A content filter of the provider withheld the answer, and gave no reason.",
    FinishReason.LENGTH: (
        "The model reached its limit of tokens before it wrote any text. Raise max_tokens, or ask for less."
    ),
    FinishReason.CONTEXT_FULL: (
        "The context window of the model was full before it wrote any text. Send less, or begin a new "
        "conversation."
    ),
    FinishReason.STOP: "The model ended its answer without any text.",
    FinishReason.UNKNOWN: "The model ended its answer without any text.",
}
"""The `notice` of a completion without text. Where a message has other text, a regular end needs none."""

REGULAR = frozenset({FinishReason.STOP, FinishReason.UNKNOWN})


def notices_for(steps: Sequence[Step]) -> frozenset[FinishReason]:
    """The reasons for which the next completion gets a notice, after these steps of the message."""
    has_text = bool(steps_text(steps))
    return frozenset(NOTICES) - (REGULAR if has_text else frozenset())
