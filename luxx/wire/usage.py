"""Tokens a completion used, as its provider counted them."""

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of tokens. `total_tokens` is prompt plus completion unless the provider says otherwise.

    `reasoning_tokens` are part of `completion_tokens`; `cached_tokens` (read from the provider's cache) and
    `cache_write_tokens` (put into it) are parts of `prompt_tokens` that many providers price on their own.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )
