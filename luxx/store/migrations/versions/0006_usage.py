"""Usage: what the sums by day, model and conversation are read by."""

# pyright: basic
from collections.abc import Sequence

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    pass
