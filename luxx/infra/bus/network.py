"""A bus over a network: the choice of its transport; connect, listen, send and reconnect.

While a send runs, new messages wait and form the next batch. So the bus needs no timer, and a busier bus
spends less on each message.
"""

import asyncio
import hashlib
import hmac
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, cast

import msgspec
import structlog
from sqlalchemy import Engine

from luxx.infra.bus.core import Bus, MessageHandler, PayloadFactory, Topic
from luxx.infra.bus.transports import PostgresqlTransport, RedisTransport
from luxx.infra.observe import Metrics, redact

MAX_QUEUED_BYTES = 4_000_000
"""Maximum bytes kept for one receiver; a single message may be longer."""

MAX_BATCH_BYTES = 256_000
"""Approximate bytes per batch; the rest waits for the next one."""

OutboxMessage = tuple[str, bytes]
"""A topic and a payload."""

logger = structlog.get_logger()
_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True, eq=False)
class _ReceiverQueue:
    """The messages that wait for one receiver."""

    messages: deque[OutboxMessage] = field(default_factory=deque[OutboxMessage])
    size: int = 0


class Outbox:
    """Queues messages by receiver. `filled` is set while it has messages. `on_drop` gets the number of lost
    messages."""

    def __init__(self, on_drop: Callable[[int], None]) -> None:
        self.filled = asyncio.Event()
        self._on_drop = on_drop
        self._queues: dict[str | None, _ReceiverQueue] = {}
        self._later: deque[tuple[str, PayloadFactory, str | None]] = deque()

    def put(self, topic: str, payload: bytes, to: str | None) -> None:
        """Adds a message for one receiver, or for all (None)."""
        queue = self._queues.get(to)
        if queue is None:
            queue = self._queues[to] = _ReceiverQueue()
        queue.messages.append((topic, payload))
        queue.size += len(payload)
        dropped = 0
        while queue.size > MAX_QUEUED_BYTES and len(queue.messages) > 1:
            queue.size -= len(queue.messages.popleft()[1])
            dropped += 1
        if dropped:
            self._on_drop(dropped)
        self.filled.set()

    def put_later(self, topic: str, make_payload: PayloadFactory, to: str | None) -> None:
        """Adds a message whose payload is made when the batch is taken."""
        self._later.append((topic, make_payload, to))
        self.filled.set()

    def take_batch(self) -> list[tuple[str | None, bytes]]:
        """Receivers, and for each the encoded list of its messages; clears `filled` if nothing is left."""
        bytes_left = MAX_BATCH_BYTES
        taken: dict[str | None, list[OutboxMessage]] = {}
        for to in list(self._queues):
            bytes_left -= self._take_for(to, taken.setdefault(to, []), bytes_left)
            if bytes_left <= 0:
                break
        # Only those queued now: a factory may queue itself again.
        for _ in range(len(self._later)):
            if bytes_left <= 0:
                break
            topic, make_payload, to = self._later.popleft()
            payload = _make_payload(topic, make_payload)
            if payload:
                taken.setdefault(to, []).append((topic, payload))
                bytes_left -= len(payload)
        if not self._queues and not self._later:
            self.filled.clear()
        return [(to, _encode(messages)) for to, messages in taken.items() if messages]

    def clear_messages(self) -> None:
        """Drops the messages; payloads still to be made stay."""
        self._queues.clear()
        if not self._later:
            self.filled.clear()

    def _take_for(self, to: str | None, taken: list[OutboxMessage], bytes_left: int) -> int:
        queue = self._queues[to]
        size = 0
        while queue.messages and size < bytes_left:
            message = queue.messages.popleft()
            size += len(message[1])
            taken.append(message)
        queue.size -= size
        if not queue.messages:
            del self._queues[to]
        return size


def _make_payload(topic: str, make_payload: PayloadFactory) -> bytes:
    try:
        return make_payload()
    except Exception:
        # A factory that fails must not stop the other messages.
        logger.exception("bus_payload_failed", topic=topic)
        return b""


MAX_SENDERS = 1_000
"""Maximum senders with an unfinished message; the oldest is dropped, so that dead senders do not accumulate.
"""


class Packet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Piece `at` (from 0) of the `of` pieces of message `number` of `sender`."""

    sender: str
    number: int
    at: int
    of: int
    piece: bytes


_decode = msgspec.msgpack.Decoder(Packet).decode
_messages = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class PacketSplitter:
    """Splits the messages of one sender. `max_bytes`: maximum bytes of a packet; None: no limit."""

    def __init__(self, sender: str, max_bytes: int | None = None) -> None:
        self._sender = sender
        self._max_piece = None if max_bytes is None else max_bytes - len(sender) - 32
        self._number = 0

    def split(self, body: bytes) -> list[bytes]:
        """The packets that carry `body`, to be sent in this order."""
        self._number += 1
        max_bytes = self._max_piece or max(1, len(body))
        pieces = range(0, max(1, len(body)), max_bytes)
        return [
            _encode(Packet(self._sender, self._number, at, len(pieces), body[start : start + max_bytes]))
            for at, start in enumerate(pieces)
        ]


class PacketAssembler:
    """Joins packets for one receiver. It keeps the one unfinished message of each sender."""

    def __init__(self) -> None:
        self._partial: dict[str, list[Packet]] = {}

    def join(self, data: bytes) -> tuple[str, list[tuple[str, bytes]]] | None:
        """The sender and its messages once they are complete, else None. A message that lost a piece is
        dropped.

        Raises msgspec.DecodeError for data that is not a packet.
        """
        packet = _decode(data)
        if packet.of == 1:
            return packet.sender, _messages(packet.piece)
        pieces = self._partial.pop(packet.sender, [])
        if packet.at == 0:
            pieces = []
        elif len(pieces) != packet.at or pieces[0].number != packet.number:
            return None
        pieces.append(packet)
        if len(pieces) == packet.of:
            return packet.sender, _messages(b"".join(part.piece for part in pieces))
        while len(self._partial) >= MAX_SENDERS:
            self._partial.pop(next(iter(self._partial)))
        self._partial[packet.sender] = pieces
        return None


CONNECT_SECONDS = 10.0
SEND_SECONDS = 10.0
CLOSE_SECONDS = 2.0
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
STEADY_SECONDS = 10.0
"""A connection that lasted this long is retried without back-off when it breaks."""


class BusTransport(Protocol):
    """Carries packets. Any method may raise; the bus then closes the transport and opens it again."""

    max_bytes: int | None
    """Maximum bytes of a packet; None: no limit."""

    async def open(self, process: str) -> None:
        """Connects; from then on the transport keeps packets to this process or to all for `listen`."""
        ...

    async def listen(self, on_packet: Callable[[bytes], None]) -> None:
        """Calls `on_packet` with each packet until the connection breaks."""
        ...

    async def send(self, packets: list[tuple[str | None, bytes]]) -> None:
        """Sends packets to processes or to all (None), in order, in one request."""
        ...

    async def close(self) -> None:
        """May be called after `open` failed; never raises."""
        ...


class NetworkBus(Bus):
    """A bus over a transport."""

    is_alone = False

    def __init__(self, process: str, transport: BusTransport, metrics: Metrics) -> None:
        super().__init__(process)
        self.is_up = False
        self._transport = transport
        self._sent = metrics.bus_packets_total.labels("sent")
        self._received = metrics.bus_packets_total.labels("heard")
        self._handlers: dict[str, list[MessageHandler]] = {}
        self._reconnect_handlers: list[Callable[[], None]] = []
        self._outbox = Outbox(metrics.bus_dropped_total.inc)
        self._splitter = PacketSplitter(process, transport.max_bytes)
        self._assembler = PacketAssembler()
        self._idle = asyncio.Event()
        self._was_down = False
        self._first_attempt = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        metrics.bus_up.set_function(lambda: self.is_up)

    def subscribe(self, topic: Topic, handler: MessageHandler) -> None:
        self._handlers.setdefault(topic, []).append(handler)

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        self._reconnect_handlers.append(handler)

    def publish(self, topic: Topic, payload: bytes, *, to: str | None = None) -> None:
        if self.is_up:
            self._idle.clear()
            self._outbox.put(topic, payload, to)

    def publish_later(self, topic: Topic, make_payload: PayloadFactory, *, to: str | None = None) -> None:
        self._idle.clear()
        self._outbox.put_later(topic, make_payload, to)

    async def open(self) -> None:
        """Returns when the bus is up or the first attempt has failed; it keeps trying."""
        self._task = asyncio.create_task(self._run(), name="bus")
        await self._first_attempt.wait()

    async def close(self) -> None:
        """Sends what waits, for at most CLOSE_SECONDS, and ends."""
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
                # After any error the bus is down until it reconnects; the server keeps running.
                logger.warning("bus_disconnected", reason=redact(str(_first(error))))
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
            logger.info("bus_reconnected")
            for handler in self._reconnect_handlers:
                handler()

    async def _send(self) -> None:
        while True:
            await self._outbox.filled.wait()
            packets = [
                (to, packet)
                for to, body in self._outbox.take_batch()
                for packet in self._splitter.split(body)
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
            received = self._assembler.join(data)
        except msgspec.MsgspecError:
            logger.warning("bus_packet_invalid", size=len(data))
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
            # A handler that fails must not keep the message from the others.
            logger.exception("bus_handler_failed", topic=topic)


def _first(error: BaseException) -> BaseException:
    """The first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def choose_transport(engine: Engine, url: str, secret: str) -> BusTransport | None:
    """The connection to other processes; None for SQLite. Raises ConfigError for a wrong `url`."""
    if engine.dialect.name == "sqlite":
        return None
    if not url:
        return PostgresqlTransport(engine)
    # Servers with the same secret belong together; other installations may use the same Redis.
    return RedisTransport(url, hmac.new(secret.encode(), b"luxx bus", hashlib.sha256).hexdigest()[:16])


def choose_bus(process: str, engine: Engine, url: str, secret: str, metrics: Metrics) -> Bus:
    """The bus of this process, not yet open."""
    transport = choose_transport(engine, url, secret)
    return Bus(process) if transport is None else NetworkBus(process, transport, metrics)
