"""The search index also has rooms and tasks; existing ones are added to it."""

# pyright: basic
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

from luxx.infra.store.search_words import SearchKind, index_value, owner_word, subject_word

revision: str = "0023"
down_revision: str | None = "0022"

ROWS_AT_ONCE = 100
TABLE_OF = {"room_id": "chat_rooms", "task_id": "tasks"}
ONE_SUBJECT = " + ".join(
    f"CASE WHEN {name} IS NULL THEN 0 ELSE 1 END"
    for name in ("conversation_id", "message_id", "room_id", "task_id")
)
TRIGGERS = (
    "CREATE TRIGGER search_texts_inserted AFTER INSERT ON search_texts BEGIN "
    "INSERT INTO search_index (rowid, words) VALUES (new.id, new.words); END",
    "CREATE TRIGGER search_texts_deleted AFTER DELETE ON search_texts BEGIN "
    "INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.id, old.words); END",
    "CREATE TRIGGER search_texts_updated AFTER UPDATE ON search_texts BEGIN "
    "INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.id, old.words); "
    "INSERT INTO search_index (rowid, words) VALUES (new.id, new.words); END",
)
"""On SQLite the table is created anew, because a check cannot be altered; its triggers are lost with it. The
ids stay, so the full-text index stays valid."""

ROOMS = sa.text(
    "SELECT id, user_id, title, task FROM chat_rooms WHERE id > :after ORDER BY id LIMIT :at_once"
)
TASKS = sa.text(
    "SELECT id, user_id, name, goal, result FROM tasks WHERE id > :after ORDER BY id LIMIT :at_once"
)
STEPS = sa.text("SELECT name FROM task_steps WHERE task_id = :id ORDER BY position")


def upgrade() -> None:
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    if not is_sqlite:
        op.drop_constraint(op.f("ck_search_texts_one_subject"), "search_texts", type_="check")
    with op.batch_alter_table("search_texts") as batch:
        for name, table in TABLE_OF.items():
            batch.add_column(sa.Column(name, sa.String(36), nullable=True))
            key = op.f(f"fk_search_texts_{name}")
            batch.create_foreign_key(key, table, [name], ["id"], ondelete="CASCADE")
        batch.create_check_constraint(op.f("ck_search_texts_one_subject"), sa.text(f"{ONE_SUBJECT} = 1"))
    for name in TABLE_OF:
        is_set = sa.text(f"{name} IS NOT NULL")
        op.create_index(
            f"ix_search_texts_{name}", "search_texts", [name], unique=True,
            sqlite_where=is_set, postgresql_where=is_set,
        )  # fmt: skip
    for statement in TRIGGERS if is_sqlite else ():
        connection.exec_driver_sql(statement)
    add_rows(connection, SearchKind.ROOM, "room_id", ROOMS, lambda row: [row.title, row.task])
    add_rows(connection, SearchKind.TASK, "task_id", TASKS, lambda row: texts_of_task(connection, row))


def texts_of_task(connection: sa.Connection, row: sa.Row) -> list[str]:
    steps = connection.scalars(STEPS, {"id": row.id}).all()
    return [row.name, row.goal, *steps, row.result or ""]


def add_rows(
    connection: sa.Connection,
    kind: SearchKind,
    column: str,
    query: sa.TextClause,
    texts_of: Callable[[sa.Row], list[str]],
) -> None:
    """Adds an index row for each row of the query, oldest first."""
    insert = sa.text(f"INSERT INTO search_texts (user_id, {column}, words) VALUES (:user_id, :id, :words)")
    after = ""
    while rows := connection.execute(query, {"after": after, "at_once": ROWS_AT_ONCE}).all():
        for row in rows:
            scopes = [owner_word(kind, row.user_id), subject_word(row.id)]
            words = index_value(connection.dialect.name, scopes, "\n".join(texts_of(row)))
            connection.execute(insert, {"user_id": row.user_id, "id": row.id, "words": words})
        after = rows[-1].id
