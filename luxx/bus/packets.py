"""Packets: what a bus carries from one process to another, cut where the carrier takes only so much."""

import msgspec

MOST_SENDERS = 1_000
"""Senders whose unfinished messages are kept: those that died in the middle of one are forgotten."""


class Packet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of `of` pieces of what `sender` said as its `number`-th message; `at` counts from 0."""

    sender: str
    number: int
    at: int
    of: int
    piece: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packet).decode
_messages = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class Cutter:
    """For one sender. `most` bounds the bytes of a packet; None: it is never cut."""

    def __init__(self, sender: str, most: int | None = None) -> None:
        self._sender = sender
        self._most = None if most is None else most - len(sender) - 32
        self._number = 0

    def cut(self, body: bytes) -> list[bytes]:
        """The packets that carry `body`, to be sent in this order."""
        self._number += 1
        most = self._most or max(1, len(body))
        pieces = range(0, max(1, len(body)), most)
        return [
            _encode(Packet(self._sender, self._number, at, len(pieces), body[start : start + most]))
            for at, start in enumerate(pieces)
        ]


class Joiner:
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
