"""Buses of several "processes" in one event loop: `network = InMemoryNetwork(); one = network.bus("one")`.

A message arrives on a later turn of the loop, as from a real bus, in the order of publishing. `loses` may
drop messages; a bus after `cut` is away until `reconnect`.
"""

import asyncio
from collections.abc import Callable

from luxx.infra.bus.core import Bus, MessageHandler, PayloadFactory

LossRule = Callable[[str, bytes], bool]


class InMemoryNetwork:
    """Connects the buses. `loses(topic, payload)` is called once for each message and receiver."""

    def __init__(self, *, loses: LossRule = lambda topic, payload: False) -> None:
        self.loses = loses
        self.published: list[tuple[str, str, bytes, str | None]] = []
        """All published messages: the sender, the topic, the payload, the receiver."""
        self._buses: dict[str, InMemoryBus] = {}

    def bus(self, process: str) -> "InMemoryBus":
        """The bus of one process; it is connected at once, without `open`."""
        bus = self._buses[process] = InMemoryBus(self, process)
        return bus

    def leave(self, process: str) -> None:
        """Simulates a process that died: it receives and publishes nothing more."""
        self._buses.pop(process).is_up = False

    def carry(self, sender: str, topic: str, payload: bytes, to: str | None) -> None:
        self.published.append((sender, topic, payload, to))
        for name, bus in self._buses.items():
            is_meant = name != sender and to in (None, name)
            if is_meant and bus.is_up and not self.loses(topic, payload):
                asyncio.get_running_loop().call_soon(bus.deliver, sender, topic, payload)


class InMemoryBus(Bus):
    """One process's bus."""

    is_alone = False

    def __init__(self, network: InMemoryNetwork, process: str) -> None:
        super().__init__(process)
        self.is_up = True
        self._joined = network
        self._takes: dict[str, list[MessageHandler]] = {}
        self._on_up: list[Callable[[], None]] = []
        self._later: list[tuple[str, PayloadFactory, str | None]] = []

    def subscribe(self, topic: str, take: MessageHandler) -> None:
        self._takes.setdefault(topic, []).append(take)

    def on_reconnect(self, take: Callable[[], None]) -> None:
        self._on_up.append(take)

    def publish(self, topic: str, payload: bytes, *, to: str | None = None) -> None:
        if self.is_up:
            self._joined.carry(self.process, topic, payload, to)

    def publish_later(self, topic: str, make: PayloadFactory, *, to: str | None = None) -> None:
        self._later.append((topic, make, to))
        asyncio.get_running_loop().call_soon(self._publish_pending)

    def _publish_pending(self) -> None:
        if self.is_up:
            later, self._later = self._later, []
            for topic, make, to in later:
                if payload := make():
                    self.publish(topic, payload, to=to)

    def deliver(self, sender: str, topic: str, payload: bytes) -> None:
        if self.is_up:
            for take in self._takes.get(topic, []):
                take(sender, payload)

    def cut(self) -> None:
        """The bus is away for this process: messages to it and from it are lost."""
        self.is_up = False

    def reconnect(self) -> None:
        self.is_up = True
        for take in self._on_up:
            take()
        self._publish_pending()

    async def open(self) -> None: ...

    async def close(self) -> None: ...
