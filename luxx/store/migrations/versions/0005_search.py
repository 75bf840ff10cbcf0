"""Search: the full-text index over what people and models said."""

# pyright: basic
from collections.abc import Sequence

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    pass
