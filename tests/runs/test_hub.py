"""The ring keeps what somebody has still to read, and no more."""

import pytest

from luxx.runs.streams.hub import MIN_RING_FRAMES, NO_POSITION, RING_BYTES, RING_FRAMES, Channel, Frame


class Reader:
    """Reads as far as it is told to."""

    def __init__(self, position: int) -> None:
        self.position = position


def fill_frames(channel: Channel, frames: int) -> None:
    for number in range(frames):
        channel.publish(Frame(b"%d" % number))


def kept(channel: Channel) -> int:
    """How many of the newest frames can still be read."""
    return next(n for n in range(channel.end, -1, -1) if channel.frames_since(channel.end - n) is not None)


def test_frames_without_readers_are_released() -> None:
    channel = Channel("r")
    channel.readers.add(Reader(NO_POSITION))
    fill_frames(channel, 10_000)
    assert kept(channel) <= MIN_RING_FRAMES


def test_what_was_read_of_a_run_that_rests_is_not_kept_while_it_does() -> None:
    channel = Channel("r")
    reader = Reader(0)
    channel.readers.add(reader)
    fill_frames(channel, 3)
    reader.position = 2
    channel.trim_idle()
    assert kept(channel) == 1
    reader.position = 3
    channel.trim_idle()
    assert kept(channel) == 0


def test_a_reader_that_lags_finds_all_that_it_has_not_read() -> None:
    channel = Channel("r")
    slow, quick = Reader(0), Reader(0)
    channel.readers |= {slow, quick}
    for number in range(1, RING_FRAMES):
        fill_frames(channel, 1)
        quick.position = number
    assert [frame.data for frame in channel.frames_since(slow.position) or []] == [b"0"] * (RING_FRAMES - 1)
    slow.position = quick.position
    fill_frames(channel, 2 * RING_FRAMES)
    assert channel.frames_since(slow.position) is None


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_reader_that_lags_is_kept_no_more_than_so_many_bytes(is_logged: bool) -> None:
    channel = Channel("r")
    channel.readers.add(Reader(0))
    for _ in range(200):
        frame = Frame(b"x" * RING_BYTES, 1) if is_logged else Frame(b"x" * (RING_BYTES // 50))
        channel.publish_events(frame) if is_logged else channel.publish(frame)
        remaining = channel.frames_since(channel.end - kept(channel)) or []
        assert sum(len(frame.data) for frame in remaining) <= 2 * RING_BYTES
    assert channel.frames_since(0) is None
    assert channel.frames_since(channel.end - 1) == [frame]


def test_one_that_fell_off_the_ring_does_not_shorten_it_for_the_others() -> None:
    channel = Channel("r")
    lost, quick = Reader(0), Reader(0)
    channel.readers |= {lost, quick}
    for number in range(1, 8 * RING_FRAMES):
        fill_frames(channel, 1)
        quick.position = max(0, number - 5)
        assert len(channel.frames_since(quick.position) or []) == min(number, 5)
    assert channel.frames_since(lost.position) is None
    assert RING_FRAMES <= kept(channel) <= 2 * RING_FRAMES
    channel.readers.remove(lost)
    fill_frames(channel, 2 * RING_FRAMES)
    assert kept(channel) <= 2 * RING_FRAMES
