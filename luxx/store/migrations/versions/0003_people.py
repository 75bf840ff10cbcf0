"""People, the rest: what administrators change, and the record of who did what."""

# pyright: basic
from collections.abc import Sequence

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    pass
