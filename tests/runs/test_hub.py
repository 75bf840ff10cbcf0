"""The ring of a channel stores the frames that a reader has not read yet, within bounds."""

import pytest

from luxx.runs.log.channel import MIN_RING_FRAMES, NO_POSITION, RING_BYTES, RING_FRAMES, Channel, Frame


class Reader:
    """A reader whose position the test sets."""

    def __init__(self, position: int) -> None:
        self.position = position


def fill_frames(channel: Channel, frames: int) -> None:
    for number in range(frames):
        channel.publish(Frame(b"%d" % number))


def readable_frames(channel: Channel) -> int:
    """How many of the newest frames can still be read."""
    return next(n for n in range(channel.end, -1, -1) if channel.frames_since(channel.end - n) is not None)


def test_frames_without_readers_are_released() -> None:
    channel = Channel("r")
    channel.readers.add(Reader(NO_POSITION))
    fill_frames(channel, 10_000)
    assert readable_frames(channel) <= MIN_RING_FRAMES


def test_frames_of_an_idle_run_that_were_read_are_released() -> None:
    channel = Channel("r")
    reader = Reader(0)
    channel.readers.add(reader)
    fill_frames(channel, 3)
    reader.position = 2
    channel.trim_idle()
    assert readable_frames(channel) == 1
    reader.position = 3
    channel.trim_idle()
    assert readable_frames(channel) == 0


def test_a_slow_reader_can_read_every_unread_frame() -> None:
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
def test_the_frames_stored_for_a_slow_reader_are_bounded_in_bytes(is_logged: bool) -> None:
    channel = Channel("r")
    channel.readers.add(Reader(0))
    for _ in range(200):
        frame = Frame(b"x" * RING_BYTES, 1) if is_logged else Frame(b"x" * (RING_BYTES // 50))
        channel.publish_events(frame) if is_logged else channel.publish(frame)
        remaining = channel.frames_since(channel.end - readable_frames(channel)) or []
        assert sum(len(frame.data) for frame in remaining) <= 2 * RING_BYTES
    assert channel.frames_since(0) is None
    assert channel.frames_since(channel.end - 1) == [frame]


def test_a_reader_past_the_ring_does_not_shorten_it_for_others() -> None:
    channel = Channel("r")
    lost, quick = Reader(0), Reader(0)
    channel.readers |= {lost, quick}
    for number in range(1, 8 * RING_FRAMES):
        fill_frames(channel, 1)
        quick.position = max(0, number - 5)
        assert len(channel.frames_since(quick.position) or []) == min(number, 5)
    assert channel.frames_since(lost.position) is None
    assert RING_FRAMES <= readable_frames(channel) <= 2 * RING_FRAMES
    channel.readers.remove(lost)
    fill_frames(channel, 2 * RING_FRAMES)
    assert readable_frames(channel) <= 2 * RING_FRAMES
