"""A bus over a network: its life (connect, listen, send, connect again), whatever carries the bytes.

While one send is under way everything else waits together and makes the next: it needs no timer, and the
busier it is the less each message costs.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

import msgspec
import structlog

from luxx.infra.bus.core import MessageHandler, PayloadFactory
from luxx.infra.observe import Metrics, redact

MOST_WAITING = 4_000_000
"""Bytes kept for one receiver; a lone message may be longer."""

MOST_AT_ONCE = 256_000
"""Bytes given at once, about: what comes meanwhile waits for the next time."""

OutboxMessage = tuple[str, bytes]
"""A topic and a payload."""

logger = structlog.get_logger()
_encode = msgspec.msgpack.Encoder().encode


class _Waiting:
    """What waits for one receiver."""

    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages: deque[OutboxMessage] = deque()
        self.size = 0


class Outbox:
    """`filled` is set while there is something to take. `on_drop` is told how many messages were lost."""

    def __init__(self, on_drop: Callable[[int], None]) -> None:
        self.filled = asyncio.Event()
        self._on_drop = on_drop
        self._waiting: dict[str | None, _Waiting] = {}
        self._later: deque[tuple[str, PayloadFactory, str | None]] = deque()

    def put(self, topic: str, payload: bytes, to: str | None) -> None:
        """Adds a message for one receiver, or for all (None)."""
        waiting = self._waiting.get(to)
        if waiting is None:
            waiting = self._waiting[to] = _Waiting()
        waiting.messages.append((topic, payload))
        waiting.size += len(payload)
        dropped = 0
        while waiting.size > MOST_WAITING and len(waiting.messages) > 1:
            waiting.size -= len(waiting.messages.popleft()[1])
            dropped += 1
        if dropped:
            self._on_drop(dropped)
        self.filled.set()

    def put_later(self, topic: str, make_payload: PayloadFactory, to: str | None) -> None:
        """Adds a message that is made when it is taken."""
        self._later.append((topic, make_payload, to))
        self.filled.set()

    def take_batch(self) -> list[tuple[str | None, bytes]]:
        """Receivers, and for each the encoded list of its messages; unsets `filled` where nothing is left."""
        bytes_left = MOST_AT_ONCE
        taken: dict[str | None, list[OutboxMessage]] = {}
        for to in list(self._waiting):
            bytes_left -= self._take_for(to, taken.setdefault(to, []), bytes_left)
            if bytes_left <= 0:
                break
        # Only those that were there: who is asked may ask to be asked again.
        for _ in range(len(self._later)):
            if bytes_left <= 0:
                break
            topic, make_payload, to = self._later.popleft()
            payload = _make_payload(topic, make_payload)
            if payload:
                taken.setdefault(to, []).append((topic, payload))
                bytes_left -= len(payload)
        if not self._waiting and not self._later:
            self.filled.clear()
        return [(to, _encode(messages)) for to, messages in taken.items() if messages]

    def clear_messages(self) -> None:
        """Drops the messages; what is to be made later stays."""
        self._waiting.clear()
        if not self._later:
            self.filled.clear()

    def _take_for(self, to: str | None, taken: list[OutboxMessage], bytes_left: int) -> int:
        waiting = self._waiting[to]
        size = 0
        while waiting.messages and size < bytes_left:
            message = waiting.messages.popleft()
            size += len(message[1])
            taken.append(message)
        waiting.size -= size
        if not waiting.messages:
            del self._waiting[to]
        return size


def _make_payload(topic: str, make_payload: PayloadFactory) -> bytes:
    try:
        return make_payload()
    except Exception:
        # Whatever one of them cannot say, the others are sent.
        logger.exception("bus_message_not_made", topic=topic)
        return b""


MOST_SENDERS = 1_000
"""Senders whose unfinished messages are kept: those that died in the middle of one are forgotten."""


class Packet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of `of` pieces of what `sender` said as its `number`-th message; `at` counts from 0."""

    sender: str
    number: int
    at: int
    of: int
    piece: bytes


_decode = msgspec.msgpack.Decoder(Packet).decode
_messages = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class PacketSplitter:
    """For one sender. `most` bounds the bytes of a packet; None: it is never cut."""

    def __init__(self, sender: str, most: int | None = None) -> None:
        self._sender = sender
        self._most = None if most is None else most - len(sender) - 32
        self._number = 0

    def split(self, body: bytes) -> list[bytes]:
        """The packets that carry `body`, to be sent in this order."""
        self._number += 1
        most = self._most or max(1, len(body))
        pieces = range(0, max(1, len(body)), most)
        return [
            _encode(Packet(self._sender, self._number, at, len(pieces), body[start : start + most]))
            for at, start in enumerate(pieces)
        ]


class PacketAssembler:
    """For one receiver. Of each sender it keeps the one message that is not whole yet."""

    def __init__(self) -> None:
        self._partial: dict[str, list[Packet]] = {}

    def join(self, data: bytes) -> tuple[str, list[tuple[str, bytes]]] | None:
        """The sender and its messages once they are whole. A message that lost a piece is left out whole.

        Raises msgspec.DecodeError for what is no packet.
        """
        packet = _decode(data)
        if packet.of == 1:
            return packet.sender, _messages(packet.piece)
        known = self._partial.pop(packet.sender, [])
        if packet.at == 0:
            known = []
        elif len(known) != packet.at or known[0].number != packet.number:
            return None
        known.append(packet)
        if len(known) == packet.of:
            return packet.sender, _messages(b"".join(part.piece for part in known))
        while len(self._partial) >= MOST_SENDERS:
            self._partial.pop(next(iter(self._partial)))
        self._partial[packet.sender] = known
        return None


CONNECT_SECONDS = 10.0
SEND_SECONDS = 10.0
CLOSE_SECONDS = 2.0
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
STEADY_SECONDS = 10.0
"""A connection that held this long is tried again at once when it breaks."""


class BusTransport(Protocol):
    """What carries packets. Any of its methods may raise; then it is closed and opened anew."""

    most: int | None
    """Bytes that a packet may have; None: any number."""

    async def open(self, process: str) -> None:
        """Connects; from then on what is sent to the process or to all is kept for `listen`."""
        ...

    async def listen(self, on_packet: Callable[[bytes], None]) -> None:
        """Gives what arrives, until it breaks."""
        ...

    async def send(self, packets: list[tuple[str | None, bytes]]) -> None:
        """Sends packets to processes or to all (None), in order, at once."""
        ...

    async def close(self) -> None:
        """Also after `open` failed; never raises."""
        ...


class NetworkBus:
    """A bus (`luxx.infra.bus.core.Bus`) over a wire."""

    is_alone = False

    def __init__(self, process: str, transport: BusTransport, metrics: Metrics) -> None:
        self.process = process
        self.is_up = False
        self._transport = transport
        self._sent = metrics.bus_packets_total.labels("sent")
        self._received = metrics.bus_packets_total.labels("heard")
        self._handlers: dict[str, list[MessageHandler]] = {}
        self._on_up: list[Callable[[], None]] = []
        self._outbox = Outbox(metrics.bus_dropped_total.inc)
        self._cutter = PacketSplitter(process, transport.most)
        self._joiner = PacketAssembler()
        self._idle = asyncio.Event()
        self._was_down = False
        self._first_attempt = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        metrics.bus_up.set_function(lambda: self.is_up)

    def on(self, topic: str, handler: MessageHandler) -> None:
        self._handlers.setdefault(topic, []).append(handler)

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        self._on_up.append(handler)

    def publish(self, topic: str, payload: bytes, *, to: str | None = None) -> None:
        if self.is_up:
            self._idle.clear()
            self._outbox.put(topic, payload, to)

    def publish_later(self, topic: str, make_payload: PayloadFactory, *, to: str | None = None) -> None:
        self._idle.clear()
        self._outbox.put_later(topic, make_payload, to)

    async def open(self) -> None:
        """Returns when it is up, or when the first attempt has failed: it goes on trying."""
        self._task = asyncio.create_task(self._run(), name="bus")
        await self._first_attempt.wait()

    async def close(self) -> None:
        """Sends what waits, within bounds, and ends."""
        if self.is_up:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._idle.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
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
                await self._transport.open(self.process)
            self._mark_up()
            async with asyncio.TaskGroup() as work:
                work.create_task(self._transport.listen(self._on_message))
                work.create_task(self._send())
        finally:
            self.is_up, self._was_down = False, True
            self._outbox.clear_messages()
            self._idle.set()
            self._first_attempt.set()
            await self._transport.close()

    def _mark_up(self) -> None:
        self.is_up = True
        self._idle.set()
        self._first_attempt.set()
        if self._was_down:
            logger.info("bus_back")
            for handler in self._on_up:
                handler()

    async def _send(self) -> None:
        while True:
            await self._outbox.filled.wait()
            packets = [
                (to, packet) for to, body in self._outbox.take_batch() for packet in self._cutter.split(body)
            ]
            if packets:
                async with asyncio.timeout(SEND_SECONDS):
                    await self._transport.send(packets)
                self._sent.inc(len(packets))
            if not self._outbox.filled.is_set():
                self._idle.set()

    def _on_message(self, data: bytes) -> None:
        self._received.inc()
        try:
            received = self._joiner.join(data)
        except msgspec.MsgspecError:
            logger.warning("bus_packet_not_understood", size=len(data))
            return
        if received is None or received[0] == self.process:
            return
        for topic, payload in received[1]:
            for handler in self._handlers.get(topic, ()):
                self._dispatch(handler, topic, received[0], payload)

    @staticmethod
    def _dispatch(handler: MessageHandler, topic: str, sender: str, payload: bytes) -> None:
        try:
            handler(sender, payload)
        except Exception:
            # One that cannot take a message must not cost the others theirs.
            logger.exception("bus_message_not_taken", topic=topic)


def _first(error: BaseException) -> BaseException:
    """What broke, out of the group in which tasks hand it on."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
