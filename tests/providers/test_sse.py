"""The splitter of server-sent events gives the same events however the bytes are split."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.errors import MalformedStream
from luxx.providers.parsing import SseEvent, SseSplitter

LINES = st.sampled_from(
    [
        "data: {}", "data:x", "data: Grüße 🌍", "data", "data:", "data:  two", ": comment", ":", "", "",
        "event: error", "event:x", "id: 7", "retry: 10", "stray line", "datax: y",
    ]
)  # fmt: skip
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=30).map(
    lambda lines: "".join(line + end for line, end in lines).encode()
)


def split_whole(stream: bytes, cuts: list[int] | None = None) -> list[SseEvent]:
    splitter = SseSplitter()
    places = [0, *sorted(cuts or []), len(stream)]
    events: list[SseEvent] = []
    for start, end in pairwise(places):
        events += splitter.feed(stream[start:end])
    return events + splitter.finish()


def feed_often(splitter: SseSplitter, piece: bytes, times: int) -> None:
    for _ in range(times):
        splitter.feed(piece)


def by_the_book(stream: bytes) -> list[SseEvent]:
    """The standard's algorithm, line by line; the last event counts even without its blank line."""
    text = stream.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events: list[SseEvent] = []
    name, data = "", []
    for line in [*text.split("\n"), ""]:
        if not line:
            if data:
                events.append((name.encode(), "\n".join(data).encode()))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
    return events


@given(STREAMS, st.booleans(), st.data())
def test_any_cutting_of_any_stream_gives_the_events_of_the_standard(
    stream: bytes, has_bom: bool, data: st.DataObject
) -> None:
    stream = b"\xef\xbb\xbf" * has_bom + stream
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))

    assert split_whole(stream, cuts) == by_the_book(stream)


@given(STREAMS)
def test_one_byte_at_a_time_gives_the_same_events(stream: bytes) -> None:
    assert split_whole(stream, list(range(len(stream)))) == by_the_book(stream)


def test_empty_pieces_change_nothing() -> None:
    splitter = SseSplitter()

    events = [
        event
        for piece in (b"", b"data: a\r", b"", b"\n\r", b"", b"\n", b"")
        for event in splitter.feed(piece)
    ]

    assert events == [(b"", b"a")]


def test_event_without_end_is_refused_at_the_bound() -> None:
    splitter = SseSplitter(max_event_bytes=1000)
    splitter.feed(b"data: ")

    with pytest.raises(MalformedStream, match="1000 bytes"):
        feed_often(splitter, b"x", 1001)


def test_many_lines_without_a_blank_one_are_refused_at_the_bound() -> None:
    splitter = SseSplitter(max_event_bytes=1000)

    with pytest.raises(MalformedStream):
        feed_often(splitter, b"data: x\n", 200)


def test_lines_that_are_no_field_are_kept_for_the_parser() -> None:
    splitter = SseSplitter()
    splitter.feed(b'{"error": "x"}\n\n')

    assert splitter.unparsed == b'{"error": "x"}\n'
