"""The project that an agent belongs to."""

# pyright: basic
from alembic import op

revision: str = "0065"
down_revision: str | None = "0064"


def upgrade() -> None:
    # SQLite adds a column with its foreign key only in this form.
    op.execute(
        "ALTER TABLE agents ADD COLUMN project_id VARCHAR(36) "
        "CONSTRAINT fk_agents_project_id_projects REFERENCES projects (id) ON DELETE SET NULL"
    )
    op.create_index(op.f("ix_agents_project_id"), "agents", ["project_id"])
