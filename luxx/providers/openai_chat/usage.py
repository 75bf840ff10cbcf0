"""The token counts of the OpenAI dialect: what each compatible server reports, as one Usage.

Servers differ in the fields for the cache, and in whether the prompt includes the tokens of the cache and the
completion those of the reasoning. The total and the sizes of the parts show which of them are counted beside.
"""

import msgspec

from luxx.wire.turn import Usage


class PromptDetails(msgspec.Struct):
    """`cache_write_tokens`: OpenRouter, Azure and OpenAI; `cache_creation_input_tokens`: Qwen;
    `cache_creation_tokens`: LiteLLM."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct):
    """`cached_tokens`: Moonshot and Together; `num_cached_tokens` and `prompt_token_details`: Mistral;
    `prompt_cache_hit_tokens`: DeepSeek; the `cache_…_input_tokens`: Databricks and gateways to Anthropic."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    num_cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    prompt_token_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


def usage_of(reported: ChunkUsage) -> Usage | None:
    """The counts with the cache in the prompt and the reasoning in the completion; None if there are none."""
    prompt, completion = _count(reported.prompt_tokens), _count(reported.completion_tokens)
    if not prompt and not completion:
        return None
    read, written = _cache_counts(reported)
    details = reported.completion_tokens_details
    reasoning = _count(details.reasoning_tokens if details else None, reported.reasoning_tokens)
    beside = max(0, _count(reported.total_tokens) - prompt - completion)
    cache = read + written
    if cache > prompt or (cache and beside in (cache, cache + reasoning)):
        prompt += cache
        beside = max(0, beside - cache)
    if reasoning > completion or 0 < reasoning <= beside:
        completion += reasoning
    elif beside and not reasoning:
        # Google's compatible endpoint reports its thoughts only as a part of the total.
        completion += beside
        reasoning = beside
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=max(_count(reported.total_tokens), prompt + completion),
        reasoning_tokens=reasoning,
        cached_tokens=read,
        cache_write_tokens=written,
    )


def _cache_counts(reported: ChunkUsage) -> tuple[int, int]:
    details = reported.prompt_tokens_details or reported.prompt_token_details or PromptDetails()
    read = _count(
        details.cached_tokens,
        reported.cached_tokens,
        reported.num_cached_tokens,
        reported.prompt_cache_hit_tokens,
        reported.cache_read_input_tokens,
    )
    written = _count(
        details.cache_write_tokens,
        details.cache_creation_input_tokens,
        details.cache_creation_tokens,
        reported.cache_creation_input_tokens,
    )
    return read, written


def _count(*reported: int | None) -> int:
    """The first count that is reported and not 0; some servers report one in several fields."""
    return next((count for count in reported if count and count > 0), 0)
