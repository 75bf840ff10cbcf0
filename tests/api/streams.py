"""Reading a run's event stream as a client does, with bounds on every wait."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from api.client import ApiClient

Frame = dict[str, Any]


class EventStream:
    """An open event stream. `frames` gives each event's data with its `id` under `seq`."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()
        self.received: list[Frame] = []

    def frames(self) -> Iterator[Frame]:
        seq = 0
        for line in self._lines:
            if line.startswith("id: "):
                seq = int(line[4:])
            elif line.startswith("data: "):
                frame = {"seq": seq, **json.loads(line[6:])}
                seq = 0
                self.received.append(frame)
                yield frame

    def until(self, type_: str) -> Frame:
        """The next frame of this type."""
        for frame in self.frames():
            if frame["type"] == type_:
                return frame
        raise AssertionError(f"the stream ended without {type_}: {self.received}")

    def read_to_end(self) -> list[Frame]:
        """All frames up to the end of the stream, however the server ends it."""
        try:
            return list(self.frames())
        except (httpx.RemoteProtocolError, httpx.ReadError):
            return []


@contextmanager
def stream_message(
    person: ApiClient, conversation_id: str, content: str, **more: Any
) -> Iterator[EventStream]:
    """The stream of a message."""
    body = {"conversation_id": conversation_id, "content": content, **more}
    with person.http.stream("POST", "/messages/stream", json=body) as response:
        yield _open(response)


@contextmanager
def stream_run(person: ApiClient, run_id: str, **headers: str) -> Iterator[EventStream]:
    """The stream of a run that exists."""
    with person.http.stream("GET", f"/runs/{run_id}/events", headers=headers) as response:
        yield _open(response)


def _open(response: httpx.Response) -> EventStream:
    if response.status_code != 200:
        raise AssertionError(f"{response.status_code} {response.read().decode()}")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    return EventStream(response)
