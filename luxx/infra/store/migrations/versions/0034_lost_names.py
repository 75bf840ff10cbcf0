"""The names of deleted providers, agents and projects beside the foreign keys that pointed to them."""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0034"
down_revision: str | None = "0033"

COLUMNS = {
    "conversations": ("lost_provider", "lost_agent", "lost_project"),
    "agents": ("lost_provider",),
    "room_agents": ("lost_provider", "lost_agent"),
    "tasks": ("lost_provider", "lost_agent", "lost_project"),
    "task_steps": ("lost_agent",),
    "user_settings": ("lost_default_provider",),
    "tenants": ("lost_default_agent", "lost_default_provider"),
}
LENGTHS = {"lost_project": 200}


def upgrade() -> None:
    for table, names in COLUMNS.items():
        for name in names:
            op.add_column(table, sa.Column(name, sa.String(LENGTHS.get(name, 100)), nullable=True))
