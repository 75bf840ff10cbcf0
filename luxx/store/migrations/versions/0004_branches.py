"""Conversations: what branches, projects and lists need beside the first tables."""

# pyright: basic
from collections.abc import Sequence

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    pass
