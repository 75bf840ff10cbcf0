"""Users are added, moved and deleted with their data, on both databases."""

from pathlib import Path

import pytest
from sqlalchemy import text

from luxx.domain.accounts.administration import Operator
from luxx.domain.accounts.authentication import AccountResources
from luxx.domain.accounts.caller import RateLimits
from luxx.domain.accounts.models import Tenant
from luxx.domain.accounts.passwords import Passwords
from luxx.domain.accounts.rights import AccountChanges, Offboarding, UserChange
from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.audit import Refusals
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.errors import Conflict
from luxx.infra.bus.core import Bus
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.migrate import migrate
from luxx.providers.queries import PROVIDERS
from luxx.runs.cancel import cancel_runs_of
from luxx.runs.service import RunStopper
from luxx.wire.tool import CommandPermission

DEPTH = 3_000


async def test_users_are_added_moved_and_deleted_with_all_their_data(
    database_url: str, tmp_path: Path
) -> None:
    engine = open_engine(resolve_url(database_url, tmp_path))
    migrate(engine)
    store, passwords = Store(engine), Passwords(cost=4)
    operator = Operator(
        AccountResources(
            store=store,
            passwords=passwords,
            workspaces=Workspaces(str(tmp_path / "workspaces")),
            limits=RateLimits(LimitsConfig()),
            changes=AccountChanges(Bus("here")),
            refusals=Refusals(store),
        ),
        offboarding=Offboarding(cancel_runs_of, PROVIDERS.transfer),
        stop_runs=RunStopper(store, None).stop_all_of,
    )

    await operator.ensure_first_user("chosen by the owner")
    now = utc_now()
    other_id = await store.write(lambda session: _tenant(session, now))
    assert other_id > 1, "the default tenant is the first, and counted"
    user = await operator.add_user("ada", "correct horse", level=CommandPermission.ADMIN)
    await store.write(lambda session: _talk(session, user.id))
    moved = await operator.change_user("ada", UserChange(tenant_id=other_id))
    assert moved.tenant_id == other_id
    assert [each.username for each in await operator.all_users(tenant="other")] == ["ada"]
    with pytest.raises(Conflict):
        await operator.delete_user("admin")
    assert (await operator.delete_user("ada")).id == user.id
    with engine.connect() as connection:
        for table in ("conversations", "messages", "user_settings"):
            left = connection.execute(text(f"SELECT count(*) FROM {table} WHERE user_id > 1")).scalar_one()
            assert left == 0, table
        actions = connection.execute(text("SELECT action FROM audit_log ORDER BY id")).scalars().all()
    assert actions == [
        "user_create", "user_create", "user_change", "user_change", "user_change", "user_delete",
    ]  # fmt: skip
    passwords.close()
    store.close()


def _tenant(session, now) -> int:
    row = Tenant(name="other", is_default=False, created_at=now)
    session.add(row)
    session.flush()
    return row.id


def _talk(session, user_id: int) -> None:
    """A conversation deeper than a cascade over parents could delete."""
    now = utc_now()
    talk = ConversationRow(
        id=new_id(),
        user_id=user_id,
        title="deep",
        pinned=False,
        archived=False,
        created_at=now,
        updated_at=now,
    )
    session.add(talk)
    session.flush()
    parent = None
    for _ in range(DEPTH):
        row = MessageRow(
            id=new_id(), user_id=user_id, conversation_id=talk.id, parent_id=parent, role="user",
            content="{}", created_at=now,
        )  # fmt: skip
        session.add(row)
        parent = row.id
    session.flush()
