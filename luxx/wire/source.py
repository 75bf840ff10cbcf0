"""Where something that was read comes from: what tools tell of it, and messages cite."""

from urllib.parse import urlsplit

import msgspec

MAX_URL = 2000
MAX_TITLE = 300
MAX_SNIPPET = 300


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A page. A tool that read one has it in its data's list `sources`."""

    url: str
    title: str = ""
    domain: str = ""
    snippet: str = ""


def source_of(url: str, title: str, snippet: str) -> Source:
    """The source in one shape: lines without breaks, cut to their bounds. A part of an address is none."""
    return Source(
        url=url,
        title=_line(title, MAX_TITLE),
        domain=domain_of(url),
        snippet=_line(snippet, MAX_SNIPPET),
    )


def citable(*sources: Source) -> list[Source]:
    """Those that can be cited: with a web address, and none that is too long."""
    return [source for source in sources if source.domain and len(source.url) <= MAX_URL]


def domain_of(url: str) -> str:
    """The host without `www.`; empty for what is no web address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ""
    return host.removeprefix("www.") if parts.scheme in ("http", "https") else ""


def _line(text: str, most: int) -> str:
    line = " ".join(text[: most * 4].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
