"""Notes about deletions of memory, which triggers make, until what is left of it is erased; removal of what
earlier deletions left."""

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
    ),
}
"""What the deletion of a row of a table notes. A note without ids says that something was deleted."""

ALL = (
    "INSERT INTO memory_deletions (entity_id) SELECT id FROM entities "
    "WHERE NOT EXISTS (SELECT 1 FROM mentions WHERE entity_id = entities.id)",
    "INSERT INTO memory_deletions (fact_id) SELECT DISTINCT fact_id FROM memory_changes "
    "WHERE fact_id IS NOT NULL",
)


def upgrade() -> None:
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
