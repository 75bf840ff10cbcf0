"""Notes about deletions of memory, which triggers make, until what is left of it is erased; removal of what
earlier deletions left. Which messages were written where memory was restricted, which a trigger says, so that
they are never extracted; and the mode of the agent that a seat has lost."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0054"
down_revision: str | None = "0052"

NOTES = {
    "facts": (
        "INSERT INTO memory_deletions (entity_id) SELECT entity_id FROM mentions WHERE fact_id = old.id",
        "INSERT INTO memory_deletions (fact_id) VALUES (old.superseded_by)",
    ),
    "episodes": (
        "INSERT INTO memory_deletions (entity_id) SELECT entity_id FROM mentions WHERE episode_id = old.id",
        "INSERT INTO memory_deletions (fact_id) VALUES (NULL)",
    ),
    "documents": ("INSERT INTO memory_deletions (fact_id) VALUES (NULL)",),
}
"""What the deletion of a row of a table notes. A note without ids says that something was deleted."""

ALL = (
    "INSERT INTO memory_deletions (entity_id) SELECT id FROM entities "
    "WHERE NOT EXISTS (SELECT 1 FROM mentions WHERE entity_id = entities.id)",
    "INSERT INTO memory_deletions (fact_id) SELECT DISTINCT fact_id FROM memory_changes "
    "WHERE fact_id IS NOT NULL",
)

IS_RESTRICTED = (
    "EXISTS (SELECT 1 FROM user_settings WHERE user_id = new.user_id AND memory <> 'on') "
    "OR EXISTS (SELECT 1 FROM conversations LEFT JOIN projects ON projects.id = conversations.project_id "
    "LEFT JOIN agents ON agents.id = conversations.agent_id WHERE conversations.id = new.conversation_id "
    "AND (conversations.memory <> 'on' OR projects.memory <> 'on' OR agents.memory <> 'on')) "
    "OR EXISTS (SELECT 1 FROM chat_rooms WHERE id = new.room_id AND memory <> 'on') "
    "OR EXISTS (SELECT 1 FROM room_agents LEFT JOIN agents ON agents.id = room_agents.agent_id "
    "WHERE room_agents.id = new.seat_id AND (room_agents.memory <> 'on' OR agents.memory <> 'on')) "
    "OR (new.role = 'assistant' "
    "AND EXISTS (SELECT 1 FROM messages WHERE id = new.parent_id AND is_unremembered))"
)
"""Whether a new message must not be remembered; so is the answer to one."""


def upgrade() -> None:
    add_notes()
    add_restrictions()


def add_restrictions() -> None:
    op.add_column("messages", sa.Column("is_unremembered", sa.Boolean, nullable=True))
    op.add_column("room_agents", sa.Column("memory", sa.String(10), nullable=True))
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(
            f"CREATE TRIGGER messages_restricted AFTER INSERT ON messages WHEN {IS_RESTRICTED} "
            "BEGIN UPDATE messages SET is_unremembered = 1 WHERE id = new.id; END"
        )
        return
    connection.exec_driver_sql(
        "CREATE FUNCTION messages_restricted() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {IS_RESTRICTED} THEN new.is_unremembered := true; END IF; RETURN new; END $$"
    )
    connection.exec_driver_sql(
        "CREATE TRIGGER messages_restricted BEFORE INSERT ON messages "
        "FOR EACH ROW EXECUTE FUNCTION messages_restricted()"
    )


def add_notes() -> None:
    op.create_table(
        "memory_deletions",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("entity_id", sa.Integer, nullable=True),
        sa.Column("fact_id", sa.Integer, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_memory_deletions")),
    )
    connection = op.get_bind()
    for table, statements in NOTES.items():
        body = "; ".join(statements)
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(
                f"CREATE TRIGGER {table}_noted BEFORE DELETE ON {table} BEGIN {body}; END"
            )
            continue
        connection.exec_driver_sql(
            f"CREATE FUNCTION {table}_noted() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {body}; RETURN old; END $$"
        )
        connection.exec_driver_sql(
            f"CREATE TRIGGER {table}_noted BEFORE DELETE ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION {table}_noted()"
        )
    for statement in ALL:
        connection.exec_driver_sql(statement)
