"""A bus over a network: its life (connect, listen, send, connect again), whatever carries the bytes.

While one send is under way everything else waits together and makes the next: it needs no timer, and the
busier it is the less each message costs.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

import msgspec
import structlog

from luxx.bus.core import Make, Take
from luxx.bus.outbox import Outbox
from luxx.bus.packets import Cutter, Joiner
from luxx.observe import Metrics, redact

CONNECT_SECONDS = 10.0
SEND_SECONDS = 10.0
CLOSE_SECONDS = 2.0
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
STEADY_SECONDS = 10.0
"""A connection that held this long is tried again at once when it breaks."""

logger = structlog.get_logger()


class Wire(Protocol):
    """What carries packets. Any of its methods may raise; then it is closed and opened anew."""

    most: int | None
    """Bytes that a packet may have; None: any number."""

    async def open(self, process: str) -> None:
        """Connects; from then on what is sent to the process or to all is kept for `listen`."""
        ...

    async def listen(self, hear: Callable[[bytes], None]) -> None:
        """Gives what arrives, until it breaks."""
        ...

    async def send(self, packets: list[tuple[str | None, bytes]]) -> None:
        """Sends packets to processes or to all (None), in order, at once."""
        ...

    async def close(self) -> None:
        """Also after `open` failed; never raises."""
        ...


class WiredBus:
    """A bus (`luxx.bus.core.Bus`) over a wire."""

    is_alone = False

    def __init__(self, process: str, wire: Wire, metrics: Metrics) -> None:
        self.process = process
        self.is_up = False
        self._wire = wire
        self._sent = metrics.bus_packets_total.labels("sent")
        self._heard = metrics.bus_packets_total.labels("heard")
        self._takes: dict[str, list[Take]] = {}
        self._on_up: list[Callable[[], None]] = []
        self._outbox = Outbox(metrics.bus_dropped_total.inc)
        self._cutter = Cutter(process, wire.most)
        self._joiner = Joiner()
        self._quiet = asyncio.Event()
        self._was_away = False
        self._settled = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        metrics.bus_up.set_function(lambda: self.is_up)

    def on(self, topic: str, take: Take) -> None:
        self._takes.setdefault(topic, []).append(take)

    def on_up(self, take: Callable[[], None]) -> None:
        self._on_up.append(take)

    def tell(self, topic: str, payload: bytes, *, to: str | None = None) -> None:
        if self.is_up:
            self._quiet.clear()
            self._outbox.put(topic, payload, to)

    def tell_later(self, topic: str, make: Make, *, to: str | None = None) -> None:
        self._quiet.clear()
        self._outbox.put_later(topic, make, to)

    async def open(self) -> None:
        """Returns when it is up, or when the first attempt has failed: it goes on trying."""
        self._life = asyncio.create_task(self._live(), name="bus")
        await self._settled.wait()

    async def close(self) -> None:
        """Sends what waits, within bounds, and ends."""
        if self.is_up:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._quiet.wait()
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)

    async def _live(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while True:
            began = time.monotonic()
            try:
                await self._connect_and_work()
            except Exception as error:
                # Whatever broke it, the bus is away until it is connected again, and everything goes on.
                logger.warning("bus_away", reason=redact(str(_first(error))))
            if time.monotonic() - began > STEADY_SECONDS:
                wait = FIRST_WAIT_SECONDS
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    async def _connect_and_work(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._wire.open(self.process)
            self._rise()
            async with asyncio.TaskGroup() as work:
                work.create_task(self._wire.listen(self._hear))
                work.create_task(self._send())
        finally:
            self.is_up, self._was_away = False, True
            self._outbox.forget()
            self._quiet.set()
            self._settled.set()
            await self._wire.close()

    def _rise(self) -> None:
        self.is_up = True
        self._quiet.set()
        self._settled.set()
        if self._was_away:
            logger.info("bus_back")
            for take in self._on_up:
                take()

    async def _send(self) -> None:
        while True:
            await self._outbox.filled.wait()
            packets = [(to, packet) for to, body in self._outbox.take() for packet in self._cutter.cut(body)]
            if packets:
                async with asyncio.timeout(SEND_SECONDS):
                    await self._wire.send(packets)
                self._sent.inc(len(packets))
            if not self._outbox.filled.is_set():
                self._quiet.set()

    def _hear(self, data: bytes) -> None:
        self._heard.inc()
        try:
            whole = self._joiner.join(data)
        except msgspec.MsgspecError:
            logger.warning("bus_packet_not_understood", size=len(data))
            return
        if whole is None or whole[0] == self.process:
            return
        for topic, payload in whole[1]:
            for take in self._takes.get(topic, ()):
                self._give(take, topic, whole[0], payload)

    @staticmethod
    def _give(take: Take, topic: str, sender: str, payload: bytes) -> None:
        try:
            take(sender, payload)
        except Exception:
            # One that cannot take a message must not cost the others theirs.
            logger.exception("bus_message_not_taken", topic=topic)


def _first(error: BaseException) -> BaseException:
    """What broke, out of the group in which tasks hand it on."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
