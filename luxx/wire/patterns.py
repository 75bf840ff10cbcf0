"""Words of learned patterns that tables, answers and events share."""

from enum import StrEnum


class PatternStatus(StrEnum):
    """Whether a pattern is used: only an active one is. `draft`: not proven yet, or fails too often;
    `untrusted`: failed several times in a row; `archived`: not used for a long time."""

    DRAFT = "draft"
    ACTIVE = "active"
    UNTRUSTED = "untrusted"
    ARCHIVED = "archived"


class PatternScope(StrEnum):
    """Who gets a pattern: its owner, or all users of the tenant once an admin has shared it."""

    USER = "user"
    TENANT = "tenant"
