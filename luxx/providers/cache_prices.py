"""What vendors ask for tokens read from their cache of prompts or put into it, as shares of the input price.

From the vendors' price pages at the end of 2025. What is not listed has no price of its own.
"""

from fnmatch import fnmatchcase

import msgspec


class CacheShare(msgspec.Struct, frozen=True, kw_only=True):
    """`read` and `write` times the input price is the price of a cached token."""

    pattern: str
    read: float
    write: float = 1.0


PLAIN = CacheShare(pattern="*", read=1.0)

SHARES: tuple[CacheShare, ...] = (
    CacheShare(pattern="gpt-4o*", read=0.5),
    CacheShare(pattern="gpt-4.1*", read=0.25),
    CacheShare(pattern="gpt-5*", read=0.1),
    CacheShare(pattern="o3-mini*", read=0.5),
    CacheShare(pattern="o3-pro*", read=1.0),
    CacheShare(pattern="o[34]*", read=0.25),
    CacheShare(pattern="deepseek-*", read=0.1),
    # A cache that lives for five minutes, which is what Anthropic makes unless it is asked for another.
    CacheShare(pattern="claude-*", read=0.1, write=1.25),
    CacheShare(pattern="gemini-2.5-*", read=0.1),
    CacheShare(pattern="gemini-2.0-*", read=0.25),
    CacheShare(pattern="glm-4*", read=0.11 / 0.60),
)


def cache_share(pattern: str) -> CacheShare:
    """The share for the models of a card; the first that fits wins."""
    return next((share for share in SHARES if fnmatchcase(pattern, share.pattern)), PLAIN)
