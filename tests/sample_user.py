"""A user row, which other rows need as their owner."""

from typing import Any

from sqlalchemy import insert

from luxx.domain.accounts.models import Tenant, User
from luxx.infra.clock import utc_now


def add_user(session: Any) -> None:
    """User 1 of tenant 1, at the lowest level."""
    now = utc_now()
    session.execute(insert(Tenant).values(id=1, name="t", is_default=True, created_at=now))
    session.execute(
        insert(User).values(
            id=1, tenant_id=1, username="ann", username_key="ann", password_hash="x", role="user",
            must_change_password=False, permission_level=1, workspace_path="", is_active=True,
            created_at=now,
        )
    )  # fmt: skip
