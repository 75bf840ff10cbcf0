"""Limits of reader processes, cleanup of text, request and answer. Without asyncio: it is slow to import."""

import logging
import os
import resource
import warnings
from enum import StrEnum

import msgspec


def limit(memory: int, seconds: int) -> None:
    """Set kernel limits on address space (bytes) and processor time (seconds), and lower the priority.

    The process can write no files and start no processes afterwards. Also disables logs and warnings.
    """
    os.nice(10)
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 16,
        resource.RLIMIT_NPROC: 0,  # a library would start programs for some PDF filters
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def storable(text: str) -> str:
    """The text without NUL and lone surrogates, which JSON and databases refuse."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "")


MOST_LINKS = 50
LINK_BYTES = 200


class PageForm(StrEnum):
    MARKDOWN = "markdown"
    TEXT = "text"
    HTML = "html"


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`url` is the base of relative links, `charset` the one that the server declared. Not `is_html`: the
    document is plain text.

    The answer has at most `characters` of text, and at most `links` links, of LINK_BYTES each on average.
    """

    url: str
    form: PageForm = PageForm.MARKDOWN
    characters: int
    links: int = MOST_LINKS
    charset: str = ""
    is_html: bool = True


class PageLink(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    url: str


class PageText(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is binary, memory, time, long, or broken with the reason; empty if there is a text."""

    text: str = ""
    title: str = ""
    description: str = ""
    links: list[PageLink] = []
    charset: str = ""
    is_cut: bool = False
    error: str = ""
