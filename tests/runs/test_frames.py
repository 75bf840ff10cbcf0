"""An open step stores the text of its fragments with little overhead."""

import tracemalloc

from luxx.runs.log.channel import OpenStep
from luxx.wire.turn import StepStatus, StepType


def test_a_step_of_many_fragments_uses_little_more_memory_than_its_text() -> None:
    step = OpenStep("r", 0, StepType.TEXT)
    step.grow("the clock and what is made once")
    tracemalloc.start()
    try:
        for number in range(2000):
            step.grow(f" {number}")
        allocated = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert allocated < 3 * len(step.content())


def test_a_step_has_its_first_text_and_every_fragment_at_any_time() -> None:
    step = OpenStep("r", 0, StepType.TEXT, text="begun")
    said = "begun"
    for number in range(200):
        step.grow(f" {number}")
        said += f" {number}"
        if number % 23 == 0:
            assert step.content() == said
    assert step.closed(StepStatus.DONE).content == said
    assert OpenStep("r", 0, StepType.TEXT).content() == ""
