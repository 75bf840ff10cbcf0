"""Skills that only people activate, as their SKILL.md says. A warning said that this has no effect."""

import sqlalchemy as sa
from alembic import op

revision: str = "0076"
down_revision: str | None = "0075"

WARNING = "disable-model-invocation has no effect here: models can activate it too"


def upgrade() -> None:
    column = sa.Column("is_for_people", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("skills", column)
    skills = sa.table("skills", sa.column("is_for_people", sa.Boolean), sa.column("warning", sa.Text))
    rest = sa.func.replace(sa.func.replace(skills.c.warning, f"{WARNING}; ", ""), WARNING, "")
    changed = {"is_for_people": sa.true(), "warning": sa.func.nullif(rest, "")}
    op.execute(sa.update(skills).where(skills.c.warning.startswith(WARNING)).values(changed))
