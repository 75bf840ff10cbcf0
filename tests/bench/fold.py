"""What the log of a long room costs when a drive begins: its fold, in this process; prints CPU ms as JSON.

Run as `python -m tests.bench.fold DATABASE_URL`, with a database whose only run is that of a room.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from sqlalchemy import select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from luxx.app.container import Services
from luxx.app.startup import tune_gc
from luxx.features.rooms.orchestration import RoomOrchestration
from luxx.infra.store.engine import Store, open_engine
from luxx.runs.cancel import CancelSignal
from luxx.runs.log.channel import Channel
from luxx.runs.log.events import RunLog, read_log
from luxx.runs.models import RunRow
from luxx.runs.orchestration.drive import OrchestratedDrive
from luxx.runs.turn.context import DriveContext, RunServices
from luxx.runs.turn.resources import TurnServices
from luxx.runs.turn.run_rows import RunHead
from luxx.wire.event import LoggedEvent
from tests.bench.discussion import pin, timed
from tests.bench.steps import CONFIG, WITHOUT_ENGINE, resolve

assert Services  # Importing `Services` imports every table.
TIMES = 5


def read(session: Session) -> tuple[RunHead, RoomOrchestration, list[LoggedEvent]]:
    """What a drive reads at its start."""
    row = session.scalars(select(RunRow)).one()
    head = msgspec.convert(row, RunHead, from_attributes=True)
    return head, RoomOrchestration(session, head, resolve), read_log(session.connection(), head.id)


def measure(store: Store) -> dict[str, float]:
    """Warms up once, then measures TIMES."""
    measured: dict[str, float] = {"fold": 0.0, "load": 0.0}
    services = SimpleNamespace(store=store, config=CONFIG)
    tune_gc()
    for number in range(TIMES + 1):
        one: dict[str, float] = {}
        with timed(one, "load"):
            head, orchestration, events = store.read_now(read)
        log = RunLog(store, Channel(head.id), CancelSignal(), run_id=head.id, fence=head.fence, seq=0)
        context = DriveContext(cast("RunServices", services), head, log, *[cast("Any", None)] * 3)
        drive = OrchestratedDrive(context, cast("TurnServices", WITHOUT_ENGINE), orchestration)
        with timed(one, "fold"):
            drive.recover(events)
        if number > 0:
            measured["fold"] += one["fold"] / TIMES
            measured["load"] += (one["fold"] + one["load"]) / TIMES
        measured["messages"] = len(orchestration._transcript)  # type: ignore[attr-defined]
    return measured


if __name__ == "__main__":
    pin()
    store = Store(open_engine(make_url(sys.argv[1])))
    print(json.dumps(measure(store)))
    store.close()
