"""A client of the server's sockets, with bounds on every wait."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jsonschema import Draft202012Validator
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from api.client import ApiClient

SECONDS = 10.0
Message = dict[str, Any]


class SocketClient:
    """An open socket; messages of the server that the test has not read yet wait in order."""

    def __init__(self, connection: ClientConnection, person: ApiClient | None = None) -> None:
        self.connection = connection
        self._document = person.document if person else None

    def send(self, message: Message | str | bytes) -> None:
        self.connection.send(json.dumps(message) if isinstance(message, dict) else message)

    def subscribe(self, session_id: str) -> Message:
        """Subscribes to a session. Returns its state, which the server sends at once."""
        self.send({"type": "subscribe", "session_id": session_id})
        while (message := self.receive())["type"] == "notification":
            pass
        return message

    def receive(self, seconds: float = SECONDS) -> Message:
        """The next message."""
        message: Message = json.loads(self.connection.recv(seconds))
        if self._document is not None:
            components = self._document.content["components"]["schemas"]
            names = {
                each["properties"]["type"]["enum"][0]: each
                for each in components.values()
                if is_server_message(each)
            }
            schema = {**names[message["type"]], "components": self._document.content["components"]}
            problems = [error.message for error in Draft202012Validator(schema).iter_errors(message)]
            assert not problems, problems
        return message

    def until(self, seconds: float = SECONDS, **wanted: Any) -> Message:
        """The next message that has these members, or has them in its `data`."""
        end, received = time.monotonic() + seconds, list[Message]()
        while True:
            message = self.receive(max(0.0, end - time.monotonic()))
            received.append(message)
            if wanted.items() <= (message.get("data", {}) | message).items():
                return message

    def drain(self) -> list[Message]:
        """All messages that the server sent before now: its next answer comes after them."""
        self.send({"type": "ping"})
        messages = list[Message]()
        while (message := self.receive())["type"] != "pong":
            messages.append(message)
        return messages

    def wait_closed(self, seconds: float = SECONDS) -> tuple[int, str]:
        """The code and the reason of the close by the server; earlier messages are dropped."""
        end = time.monotonic() + seconds
        while True:
            try:
                self.connection.recv(max(0.0, end - time.monotonic()))
            except ConnectionClosed as wait_closed:
                received = wait_closed.rcvd
                break
        assert received is not None, "cut without a word"
        return received.code, received.reason


def is_server_message(schema: dict[str, Any]) -> bool:
    """Whether a component of the document is a message that the server sends on a socket."""
    named = schema.get("properties", {}).get("type", {}).get("enum", [""])[0]
    is_event = "run_id" in schema.get("properties", {}) and "seq" in schema["properties"]
    return named in ("session_update", "notification", "pong", "error") and not is_event


def new_ticket(person: ApiClient) -> str:
    ticket: str = person.good("POST", "/auth/ticket")["ticket"]
    return ticket


@contextmanager
def open_with_ticket(url: str, ticket: str, **more: Any) -> Iterator[SocketClient]:
    """A socket opened with this ticket, valid or not."""
    address = f"{url.replace('http', 'ws', 1)}/ws?token={ticket}"
    with connect(address, proxy=None, open_timeout=SECONDS, close_timeout=1.0, **more) as connection:
        yield SocketClient(connection)


@contextmanager
def open_socket(person: ApiClient) -> Iterator[SocketClient]:
    """A socket of a signed-in user."""
    with open_with_ticket(person.server.url, new_ticket(person)) as client:
        yield SocketClient(client.connection, person)
