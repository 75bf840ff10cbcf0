"""Upgrades skip old rows that cannot be read, and repair values that the new columns cannot store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, column, insert, table, text

from luxx.app.container import Services
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store import migrate as migrating
from luxx.infra.store.engine import open_engine, resolve_url
from luxx.infra.store.migrate import migrate

assert Services  # Importing `Services` imports every table.

MESSAGES = [
    '{"text":"before\\u0000after the tiger"}',
    '{"text":"lone \\ud800 tiger"}',
    '{"text": 7}',
    '{"text":"cut o',
    '{"text":"' + "tiger" * 200_000 + '"}',
]


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    made = open_engine(resolve_url(database_url, tmp_path))
    yield made
    made.dispose()


def put(connection: Connection, name: str, values: dict[str, Any]) -> None:
    """Inserts a row with the columns of that version, whatever the models say today."""
    connection.execute(insert(table(name, *(column(key) for key in values))).values(values))


def call(index: int, **more: Any) -> bytes:
    step = {"type": "tool_call", "index": index, "name": "look", "status": "done", "duration_ms": 3, **more}
    return json.dumps({"step": step, "timestamp": "2026-01-02T03:04:05Z"}).encode()


LOG = [
    call(0, name="bad\0name"),
    call(1, name="lone\ud800"),
    call(2, name="long" * 1000),
    call(3, name=None, status="s" * 100, duration_ms=10**12),
    call(4, duration_ms="soon"),
    call(10**12),
    b'{"step": {"type": "tool_call", "ind',
    b"\xff\xfe",
    b'{"step": 7, "timestamp": 7}',
    b"[]",
    json.dumps({"step": {"type": "tool_call", "index": 5, "name": "last"}, "timestamp": "once"}).encode(),
]


def test_an_upgrade_skips_unreadable_rows_and_repairs_values(engine: Engine) -> None:
    settings = migrating._settings()
    now = utc_now().replace(tzinfo=None)
    with engine.connect() as connection, connection.begin():
        settings.attributes["connection"] = connection
        command.upgrade(settings, "0002")
        put(connection, "tenants", {"id": 1, "name": "t", "is_default": True, "created_at": now})
        put(connection, "users", {
            "id": 1, "tenant_id": 1, "username": "ann", "username_key": "ann", "password_hash": "x",
            "role": "user", "must_change_password": False, "permission_level": 1, "workspace_path": "",
            "is_active": True, "created_at": now,
        })  # fmt: skip
        put(connection, "conversations", {
            "id": "chat", "user_id": 1, "title": "'\\ a tiger's " + "\U0001f405" * 200, "tags": "[",
            "pinned": False, "archived": False, "created_at": now, "updated_at": now,
        })  # fmt: skip
        for content in MESSAGES:
            put(connection, "messages", {
                "id": new_id(), "user_id": 1, "conversation_id": "chat", "role": "user", "content": content,
                "token_count": 0, "status": "complete", "created_at": now,
            })  # fmt: skip
        put(connection, "runs", {
            "id": "run", "user_id": 1, "tenant_id": 1, "kind": "chat", "subject_id": "chat", "status": "done",
            "usage": "{}", "last_seq": 9, "request": "{}", "fence": 1, "is_cancelled": False,
            "created_at": now,
        })  # fmt: skip
        for seq, data in enumerate(LOG, 1):
            put(connection, "run_events", {"run_id": "run", "seq": seq, "type": "process_step", "data": data})
    migrate(engine)
    with engine.connect() as connection:
        calls = connection.execute(text("SELECT * FROM tool_calls ORDER BY step_index")).mappings().all()
        indexed = connection.execute(text("SELECT count(*) FROM search_texts")).scalar_one()
    assert [(each["tool"], each["duration_ms"]) for each in calls] == [
        ("bad\ufffdname", 3), ("lone\ufffd", 3), ("long" * 50, 3), ("", None), ("look", None), ("last", None),
    ]  # fmt: skip
    assert [each["completed_at"] is not None for each in calls] == [True] * 5 + [False]
    assert indexed == 1 + len(MESSAGES)
