"""The sources of an answer, collected from its tool results when the answer is shown.

A tool reports them as a list `sources` in its data, of `{url, title?, domain?, snippet?}`; see
`wire/step.py`.
"""

import msgspec

from luxx.wire.step import MAX_URL, Source, domain_of, source_of

MAX_CITATIONS = 100

_MARK = '"sources":[{'
_ESCAPED_MARK = '\\"sources\\":[{'


class Citation(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a message; `index` counts from 1."""

    index: int
    url: str
    title: str
    domain: str
    snippet: str


class _Data(msgspec.Struct):
    sources: list[Source] = []


class _Result(msgspec.Struct):
    data: _Data


class _ResultStep(msgspec.Struct, tag="tool_result", tag_field="type"):
    content: str = ""


class _IgnoredText(msgspec.Struct, tag="text", tag_field="type"):
    pass


class _IgnoredThinking(msgspec.Struct, tag="thinking", tag_field="type"):
    pass


class _IgnoredCall(msgspec.Struct, tag="tool_call", tag_field="type"):
    pass


class _StoredAnswer(msgspec.Struct):
    steps: list[_ResultStep | _IgnoredText | _IgnoredThinking | _IgnoredCall]


_result = msgspec.json.Decoder(_Result)
_stored = msgspec.json.Decoder(_StoredAnswer)


def citations_in(stored: str) -> list[Citation]:
    """The sources of a stored answer in order of first use, each address once.

    Most answers have none and are not decoded.
    """
    if _ESCAPED_MARK not in stored:
        return []
    citations: dict[str, Citation] = {}
    for step in _stored.decode(stored).steps:
        for source in _sources(step.content) if type(step) is _ResultStep else ():
            domain = domain_of(source.url)
            if len(source.url) > MAX_URL or not domain or source.url in citations:
                continue
            if len(citations) == MAX_CITATIONS:
                return list(citations.values())
            normalized = source_of(source.url, source.title or domain, source.snippet)
            citations[source.url] = Citation(
                index=len(citations) + 1,
                url=normalized.url,
                title=normalized.title,
                domain=domain,
                snippet=normalized.snippet,
            )
    return list(citations.values())


def _sources(content: str) -> list[Source]:
    if _MARK not in content:
        return []
    try:
        return _result.decode(content).data.sources
    except (msgspec.DecodeError, UnicodeEncodeError):
        # The tool uses the name `sources` for other data.
        return []
