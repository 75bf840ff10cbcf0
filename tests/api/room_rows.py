"""What a run leaves in the database of a room: its row and its messages, written beside a running server."""

import sqlite3
from typing import Any

from api.client import ApiClient
from luxx.app.container import Services
from luxx.features.rooms.messages import NewRoomMessage, add_message
from luxx.features.rooms.models import ChatRoomRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.models import RunRow
from luxx.wire.message import AssistantContent, UserContent
from luxx.wire.turn import Step, StepType

assert Services  # Importing `Services` imports every table.


class RoomRows:
    """Writes to the database of a server."""

    def __init__(self, data_dir: Any) -> None:
        self.path = data_dir / "luxx.db"
        self._store = Store(open_engine(resolve_url(f"sqlite:///{self.path}", data_dir)))

    def close(self) -> None:
        self._store.close()

    def add_run(self, room_id: str, status: str, **more: Any) -> str:
        """Gives the room a newest run with this status; returns the run's id."""
        now, run_id = utc_now(), new_id()
        ended = status in ("completed", "failed", "cancelled")

        def work(session: Any) -> None:
            room = session.get_one(ChatRoomRow, room_id)
            fields: dict[str, Any] = {
                "usage": '{"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}',
                "cost": 0.25, "owner": "another process", "request": "{}", "created_at": now,
                "started_at": now, "finished_at": now if ended else None,
            }  # fmt: skip
            row = RunRow(
                id=run_id, user_id=room.user_id, tenant_id=room.tenant_id, kind="room", subject_id=room.id,
                status=status, **fields | more,
            )  # fmt: skip
            session.add(row)
            room.run_id = run_id

        self._store.write_now(work)
        return run_id

    def say(self, room_id: str, text: str, seat: dict[str, Any] | None = None, **more: Any) -> str:
        """Stores a message of a seat, or of a person; returns its id."""
        content: Any = UserContent(text=text)
        sender: dict[str, Any] = {"sender_name": "a person"}
        if seat is not None:
            content = AssistantContent(steps=[Step(id="step-0", index=0, type=StepType.TEXT, content=text)])
            sender = {"sender_name": seat["name"], "sender_color": seat["color"], "seat_id": seat["id"]}

        def work(session: Any) -> str:
            room = session.get_one(ChatRoomRow, room_id)
            message = NewRoomMessage(content=content, **sender | more)
            return add_message(session.connection(), room.id, room.user_id, message)

        return self._store.write_now(work)

    def count(self, table: str, condition: str = "1 = 1") -> int:
        """How many rows of a table there are."""
        with sqlite3.connect(f"file:{self.path}?mode=ro", uri=True) as connection:
            (number,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()
        connection.close()
        return int(number)


def new_room(person: ApiClient, *names: str, **fields: Any) -> dict[str, Any]:
    """A room with whole seats of these names."""
    body = {"title": "Talk", "task": "Discuss.", "agents": [{"name": name} for name in names], **fields}
    created: dict[str, Any] = person.good("POST", "/chat-rooms", json=body)
    return created
