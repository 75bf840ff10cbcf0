"""An open step: what it keeps of what it has said."""

import tracemalloc

from luxx.runs.streams.frames import OpenStep
from luxx.wire.step import StepStatus, StepType


def test_a_step_that_grows_by_fragments_takes_little_more_than_its_text() -> None:
    step = OpenStep("r", 0, StepType.TEXT)
    step.grow("the clock and what is made once")
    tracemalloc.start()
    try:
        for number in range(2000):
            step.grow(f" {number}")
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 3 * len(step.content())


def test_a_step_holds_what_it_began_with_and_all_that_was_added_whenever_one_looks() -> None:
    step = OpenStep("r", 0, StepType.TEXT, text="begun")
    said = "begun"
    for number in range(200):
        step.grow(f" {number}")
        said += f" {number}"
        if number % 23 == 0:
            assert step.content() == said
    assert step.closed(StepStatus.DONE).content == said
    assert OpenStep("r", 0, StepType.TEXT).content() == ""
