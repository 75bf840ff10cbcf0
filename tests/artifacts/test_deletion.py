"""What is deleted leaves no row of its artifacts in any table, but the cost of their runs."""

import sqlite3
from pathlib import Path

from api.client import ApiClient
from api.conftest import numbers
from api.schema import Document
from api.server_process import ServerProcess

from artifacts.test_regeneration import create, ended, model, start
from luxx.providers.scripted import Text

COST = ("usage_records", "subject_id")
"""What a run cost stays for the limits of its user."""


def places_of(database: Path, artifact_id: str) -> list[str]:
    """The columns of all tables that have this id somewhere."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        found: list[str] = []
        for table in tables:
            for _, column, *_ in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
                where = f'instr(CAST("{column}" AS TEXT), ?) > 0'
                query = f'SELECT count(*) FROM "{table}" WHERE {where}'
                if (table, column) == COST:
                    continue
                if connection.execute(query, (artifact_id,)).fetchone()[0]:
                    found.append(f"{table}.{column}")
    connection.close()
    return found


def test_no_table_has_an_artifact_that_was_deleted_by_itself_or_with_its_chat_or_user(
    server: ServerProcess, document: Document, admin: ApiClient
) -> None:
    database = server.data_dir / "luxx.db"
    with ApiClient(server, document).register(f"deleted{next(numbers)}") as person:
        chat = person.good("POST", "/conversations", json={})["id"]
        alone, of_chat, of_user = (create(person, **more) for more in ({}, {"conversation_id": chat}, {}))
        with model(admin, person, Text(text="# New")):
            for artifact_id in (alone, of_chat, of_user):
                assert ended(person, start(person, artifact_id)["id"])["status"] == "completed"
        for artifact_id in (alone, of_chat, of_user):
            person.good("GET", f"/artifacts/{artifact_id}/preview")
            assert "artifact_parts.artifact_id" in places_of(database, artifact_id)
        person.good("DELETE", f"/artifacts/{alone}")
        assert places_of(database, alone) == []
        person.good("DELETE", f"/conversations/{chat}?artifacts=delete")
        assert places_of(database, of_chat) == []
        admin.good("DELETE", f"/auth/users/{person.user['id']}")
        assert places_of(database, of_user) == []
