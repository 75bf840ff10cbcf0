"""What an answer cites: web pages, and passages of documents. Pure."""

from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, UnsetType

MAX_URL = 2000
MAX_TITLE = 300
MAX_SNIPPET = 300


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A web page or, with `document_id`, a passage of a document: then it has no `url`, but a `quote` and its
    place. Tools return those that they read in the list `sources` of their data; text steps have those that
    the provider names."""

    url: str = ""
    title: str = ""
    domain: str = ""
    snippet: str = ""
    base_id: str | UnsetType = UNSET
    document_id: str | UnsetType = UNSET
    page: int | UnsetType = UNSET
    slide: int | UnsetType = UNSET
    row: int | UnsetType = UNSET
    quote: str | UnsetType = UNSET


def source_of(url: str, title: str, snippet: str) -> Source:
    """A normalised source: title and snippet on one line, shortened to their limits."""
    return Source(
        url=url,
        title=one_line(title, MAX_TITLE),
        domain=domain_of(url),
        snippet=one_line(snippet, MAX_SNIPPET),
    )


def normalized(source: Source) -> Source:
    """The source with its texts on one line, shortened to their limits."""
    if source.document_id is UNSET:
        return source_of(source.url, source.title, source.snippet)
    quote = "" if source.quote is UNSET else one_line(source.quote, MAX_SNIPPET)
    return msgspec.structs.replace(source, title=one_line(source.title, MAX_TITLE), quote=quote)


def citable(*sources: Source) -> list[Source]:
    """The sources that can be cited: documents, and pages with a web address that is not too long."""
    return [
        source
        for source in sources
        if isinstance(source.document_id, str) or (source.domain and len(source.url) <= MAX_URL)
    ]


def domain_of(url: str) -> str:
    """The host without `www.`; empty if `url` is not a web address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ""
    return host.removeprefix("www.") if parts.scheme in ("http", "https") else ""


def one_line(text: str, limit: int) -> str:
    """A text on one line, shortened to `limit` characters."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
