"""The relay: whoever watches a run sees it live, whichever process drives it.

Joins the two sides (`telling.py`, `mirror.py`) to the bus and the hub, and looks at the rows of runs that
are watched here and driven elsewhere, or by nobody: what the bus loses is found there.
"""

import asyncio

import structlog
from sqlalchemy import bindparam, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.infra.bus.core import Bus
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunRow
from luxx.runs.streams.frames import (
    DRIVEN,
    FRAMES,
    UNWATCH,
    WATCH,
    Asked,
    decode_begun,
    decode_told,
    encode,
)
from luxx.runs.streams.hub import Channel, Hub
from luxx.runs.streams.publisher import Telling
from luxx.runs.streams.remote import Mirror, Seen
from luxx.wire.run import RunStatus

LOOK_SECONDS = 1.0
"""How often a run is looked at that somebody else drives and nobody tells of."""

LOOKS_PER_BEAT = 5
"""All others are looked at once in so many times, and those that are followed are asked for again."""

IDS_AT_ONCE = 500

logger = structlog.get_logger()
_runs = table_of(RunRow)
_rows = select(_runs.c.id, _runs.c.status, _runs.c.owner, _runs.c.last_seq).where(
    _runs.c.id.in_(bindparam("ids", expanding=True))
)


class RunRelay:
    """One per process; where it is alone it only looks at rows."""

    def __init__(self, hub: Hub, bus: Bus, store: Store, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._bus = bus
        self._store = store
        self._look_seconds = look_seconds
        self._looks = 0
        self._mirrors: dict[str, Mirror] = {}
        self._telling = Telling(bus)
        self._busy = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        hub.join(self)
        bus.on(WATCH, self._take_asked)
        bus.on(UNWATCH, self._telling.take_left)
        bus.on(FRAMES, self._take_told)
        bus.on(DRIVEN, self._take_begun)
        bus.on_up(self._back)

    @property
    def mirrors(self) -> int:
        """How many runs are followed here that another process drives."""
        return sum(1 for mirror in self._mirrors.values() if mirror.driver)

    async def open(self) -> None:
        """Begins to look at rows, where there is something to look at."""
        self._looking = asyncio.create_task(self._keep_looking(), name="relay")

    async def close(self) -> None:
        """Follows nothing any more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for mirror in self._mirrors.values():
            mirror.stop()
        self._mirrors.clear()

    def driven(self, channel: Channel, fence: int) -> None:
        """This process drives the run from now on, and before any frame."""
        self._unmirror(channel)
        if not self._bus.is_alone:
            self._telling.driven(channel, fence)
            self._note_busy()

    def left(self, channel: Channel) -> None:
        """This process drives the run no longer; it may end, go on elsewhere, or wait."""
        self._telling.left(channel)
        if channel.watchers:
            self.watched(channel, is_begun=False)

    def watched(self, channel: Channel, *, is_begun: bool) -> None:
        """The first watcher of a run that is not driven here; not `is_begun`: it may be, in a moment."""
        mirror = self._mirrors[channel.run_id] = Mirror(channel, self._store, self._ask)
        self._note_busy()
        if is_begun:
            self._ask(mirror, None)

    def unwatched(self, channel: Channel) -> None:
        """Nobody watches it any more."""
        self._unmirror(channel)

    def _unmirror(self, channel: Channel) -> None:
        mirror = self._mirrors.pop(channel.run_id, None)
        if mirror is None:
            return
        if mirror.driver and not mirror.is_over:
            self._bus.tell(UNWATCH, encode([channel.run_id]), to=mirror.driver)
        mirror.stop()

    def _ask(self, mirror: Mirror, to: str | None) -> None:
        if not self._bus.is_alone:
            self._bus.tell(WATCH, encode([Asked(mirror.run_id)]), to=to)

    def _take_asked(self, sender: str, payload: bytes) -> None:
        self._telling.take_asked(sender, payload)
        self._note_busy()

    def _take_told(self, sender: str, payload: bytes) -> None:
        unwanted: list[str] = []
        for told in decode_told(payload):
            mirror = self._mirrors.get(told.run_id)
            if mirror is None:
                unwanted.append(told.run_id)
            elif not mirror.is_over:
                mirror.take(sender, told)
        if unwanted:
            self._bus.tell(UNWATCH, encode(unwanted), to=sender)

    def _take_begun(self, sender: str, payload: bytes) -> None:
        begun = decode_begun(payload)
        mirror = self._mirrors.get(begun.run_id)
        if mirror is not None and not mirror.is_over and self._bus.process not in begun.served:
            mirror.begin_anew(sender)

    def _back(self) -> None:
        self._telling.back()
        for mirror in self._mirrors.values():
            if not mirror.is_over:
                mirror.begin_anew(None)

    def _note_busy(self) -> None:
        if self._mirrors or self._telling.is_busy:
            self._busy.set()

    async def _keep_looking(self) -> None:
        while True:
            await self._busy.wait()
            await asyncio.sleep(self._look_seconds)
            self._looks += 1
            is_beat = self._looks % LOOKS_PER_BEAT == 0
            try:
                try:
                    await self._look(is_beat=is_beat)
                finally:
                    if is_beat:
                        self._telling.forget_silent()
                        self._follow_on()
            except SQLAlchemyError as error:
                logger.warning("runs_not_looked_at", error=type(error).__name__)
            except Exception:
                # Whatever it was, the next look may succeed; without looks a lost message is lost for good.
                logger.exception("look_failed")
            if not (self._mirrors or self._telling.is_busy):
                self._busy.clear()

    def _is_urgent(self, mirror: Mirror) -> bool:
        """Whether it should be told what happens now, and is not; or its run may have ended just before."""
        if mirror.status is None:
            return True
        if self._bus.is_alone:
            return False
        return not self._bus.is_up or (mirror.status == RunStatus.RUNNING and not mirror.driver)

    async def _look(self, *, is_beat: bool) -> None:
        looked = [
            mirror
            for mirror in self._mirrors.values()
            if not mirror.is_over and (is_beat or self._is_urgent(mirror))
        ]
        for start in range(0, len(looked), IDS_AT_ONCE):
            some = looked[start : start + IDS_AT_ONCE]
            seen = await self._read([mirror.run_id for mirror in some])
            for mirror in some:
                # It may have been stopped, or its run driven here, while the rows were read.
                if not mirror.is_over:
                    row = seen.get(mirror.run_id)
                    mirror.look(row, self._bus.process, is_up=self._bus.is_up, is_asking=is_beat)

    async def _read(self, ids: list[str]) -> dict[str, Seen]:
        def work(session: Session) -> dict[str, Seen]:
            rows = session.connection().execute(_rows, {"ids": ids})
            return {id_: Seen(RunStatus(status), owner, last_seq) for id_, status, owner, last_seq in rows}

        return await self._store.read(work)

    def _follow_on(self) -> None:
        """Tells drivers that their runs are still followed here."""
        followed: dict[str, list[Asked]] = {}
        for mirror in self._mirrors.values():
            if mirror.driver and not mirror.is_over:
                followed.setdefault(mirror.driver, []).append(mirror.following())
        for driver, asked in followed.items():
            self._bus.tell(WATCH, encode(asked), to=driver)
