"""The summary of what is left out of a prompt: how a model is asked for one, and what of its answer is
taken."""

from collections.abc import Sequence
from importlib.resources import files

from luxx.domain.context.prompt import beginning
from luxx.domain.context.tokens import text_tokens
from luxx.wire.message import PromptMessage, UserPrompt

INSTRUCTION = files("luxx.domain.context").joinpath("summary.md").read_text("utf-8").strip()

WORDS_PER_TOKEN = 0.7
"""Of English; in the languages that need more tokens for a word, the limit of tokens holds."""

TOO_LONG = 1.5
"""A summary that is longer than this many times its limit is none: it was no summary."""


def summary_messages(messages: Sequence[PromptMessage], limit: int) -> list[PromptMessage]:
    """The prompt that asks for a summary of at most so many tokens: the last prompt and one more message, so
    that the provider's prompt cache has nearly all of it."""
    return [*messages, UserPrompt(text=INSTRUCTION.format(words=int(limit * WORDS_PER_TOKEN)))]


def accepted_summary(text: str, limit: int) -> str:
    """The summary within its limit of tokens; empty if there is none in what the model wrote."""
    text = text.strip()
    return "" if text_tokens(text) > TOO_LONG * limit else beginning(text, limit)
