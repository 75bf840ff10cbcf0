"""A room of a thousand messages: folding its log costs little."""

import time

from sqlalchemy import Engine

from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.state import RoomState
from luxx.features.rooms.stops import HARD_MESSAGES, Stop, fired_stop
from luxx.runs.orchestration.interface import RunTotals
from luxx.wire.event import CostUpdate, LoggedEvent, ProcessStep
from luxx.wire.orchestration_event import MessageEnd
from luxx.wire.turn import Step, StepType, Usage
from rooms.simulated_room import simulated

FOLD_SECONDS = 0.05
TEXT = "Twenty words or so, as a seat says them in its turn, with some more behind them. " * 5


def with_steps(logged: list[LoggedEvent]) -> list[LoggedEvent]:
    """The log with what the models of a server add to each turn: two steps and a cost."""
    events: list[LoggedEvent] = []
    for one in logged:
        if isinstance(one.event, MessageEnd):
            msg_id = one.event.msg_id
            for index in range(2):
                step = Step(id=f"step-{index}", index=index, type=StepType.TEXT, content=TEXT)
                events.append(LoggedEvent(seq=len(events) + 1, event=ProcessStep(step=step, msg_id=msg_id)))
            cost = CostUpdate(usage=Usage(prompt_tokens=1), cost=None, msg_id=msg_id)
            events.append(LoggedEvent(seq=len(events) + 1, event=cost))
        events.append(LoggedEvent(seq=len(events) + 1, event=one.event, note=one.note))
    return events


def test_a_room_of_1000_messages_folds_in_50_ms(engine: Engine) -> None:
    stop = Stop(all=[Stop(phrase="never said"), Stop(messages=HARD_MESSAGES)])
    with simulated(engine, policy=PolicyName.PARALLEL, stop=stop, seats=[False] * 20) as room:
        assert room.run() == "messages"
        events = with_steps(room.logged)
    assert len(events) > 6 * HARD_MESSAGES
    took: list[float] = []
    for _ in range(5):
        state, begun = RoomState(), time.process_time()
        for logged in events:
            state.apply(logged)
        totals = state.totals(RunTotals(usage=Usage(), cost=None, seconds=0.0))
        fired = fired_stop(stop, totals)
        took.append(time.process_time() - begun)
        assert (len(state.messages), fired) == (HARD_MESSAGES, "messages")
    print(f"{len(events)} events of {HARD_MESSAGES} messages: {min(took) * 1000:.1f} ms")
    assert min(took) < FOLD_SECONDS
