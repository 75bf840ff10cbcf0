"""Files: what users uploaded, and the bytes that messages carry."""

# pyright: basic
from collections.abc import Sequence

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    pass
