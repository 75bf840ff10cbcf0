"""The ring keeps what somebody has still to read, and no more."""

import pytest

from luxx.runs.streams.hub import KEPT, NOWHERE, RING, RING_BYTES, Channel, Frame


class Reader:
    """Reads as far as it is told to."""

    def __init__(self, place: int) -> None:
        self.place = place


def spoken(channel: Channel, frames: int) -> None:
    for number in range(frames):
        channel.publish(Frame(b"%d" % number))


def kept(channel: Channel) -> int:
    """How many of the newest frames can still be read."""
    return next(n for n in range(channel.end, -1, -1) if channel.since(channel.end - n) is not None)


def test_what_nobody_has_to_read_is_let_go_of() -> None:
    channel = Channel("r")
    channel.readers.add(Reader(NOWHERE))
    spoken(channel, 10_000)
    assert kept(channel) <= KEPT


def test_what_was_read_of_a_run_that_rests_is_not_kept_while_it_does() -> None:
    channel = Channel("r")
    reader = Reader(0)
    channel.readers.add(reader)
    spoken(channel, 3)
    reader.place = 2
    channel.rest()
    assert kept(channel) == 1
    reader.place = 3
    channel.rest()
    assert kept(channel) == 0


def test_a_reader_that_lags_finds_all_that_it_has_not_read() -> None:
    channel = Channel("r")
    slow, quick = Reader(0), Reader(0)
    channel.readers |= {slow, quick}
    for number in range(1, RING):
        spoken(channel, 1)
        quick.place = number
    assert [frame.data for frame in channel.since(slow.place) or []] == [b"0"] * (RING - 1)
    slow.place = quick.place
    spoken(channel, 2 * RING)
    assert channel.since(slow.place) is None


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_reader_that_lags_is_kept_no_more_than_so_many_bytes(is_logged: bool) -> None:
    channel = Channel("r")
    channel.readers.add(Reader(0))
    for _ in range(200):
        frame = Frame(b"x" * RING_BYTES, 1) if is_logged else Frame(b"x" * (RING_BYTES // 50))
        channel.publish_events(frame) if is_logged else channel.publish(frame)
        held = channel.since(channel.end - kept(channel)) or []
        assert sum(len(frame.data) for frame in held) <= 2 * RING_BYTES
    assert channel.since(0) is None
    assert channel.since(channel.end - 1) == [frame]


def test_one_that_fell_off_the_ring_does_not_shorten_it_for_the_others() -> None:
    channel = Channel("r")
    lost, quick = Reader(0), Reader(0)
    channel.readers |= {lost, quick}
    for number in range(1, 8 * RING):
        spoken(channel, 1)
        quick.place = max(0, number - 5)
        assert len(channel.since(quick.place) or []) == min(number, 5)
    assert channel.since(lost.place) is None
    assert RING <= kept(channel) <= 2 * RING
    channel.readers.remove(lost)
    spoken(channel, 2 * RING)
    assert kept(channel) <= 2 * RING
