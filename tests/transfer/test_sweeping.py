"""Servers that share a database: another server deletes the unfinished import of a killed one."""

import asyncio
import io
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from migrated_databases import new_ready_database
from sqlalchemy import select

from luxx.app.container import Services
from luxx.domain.accounts.models import User
from luxx.domain.conversations.models import ConversationRow
from luxx.domain.transfer.document import ReadyConversation, ReadyRow
from luxx.domain.transfer.service import STALE_SECONDS, write_hidden
from luxx.infra.clock import id_at, new_id, utc_now
from luxx.infra.config.schema import AppConfig, Config, DatabaseConfig, LocalConfig, WorkspaceConfig


def rows() -> io.BytesIO:
    """The rows of a conversation, as the reading process writes them."""
    now = utc_now()
    ready: ReadyRow = ReadyConversation(
        id=new_id(), title="t", model=None, system_prompt=None, temperature=None, max_tokens=None,
        thinking_enabled=None, planning=None, pinned=False, archived=False, tags="[]", selected_leaf_id=None,
        created_at=now, updated_at=now,
    )  # fmt: skip
    return io.BytesIO(msgspec.json.encode(ready) + b"\n")


async def test_hidden_rows_of_a_killed_server_are_deleted_by_another(
    postgresql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luxx.app.background.SWEEP_SECONDS", 0.05)
    config = Config(
        app=AppConfig(secret_key="a-secret-key-that-many-servers-of-a-test-share"),
        database=DatabaseConfig(url=new_ready_database(postgresql, "swept")),
        workspace=WorkspaceConfig(root=str(tmp_path / "workspaces")),
        local=LocalConfig(enabled=False),
        data_dir=str(tmp_path / "data"),
    )
    await serve_and_check(Services(config, {"LUXX_ADMIN_PASSWORD": "a-password-of-a-test"}))


async def serve_and_check(services: Services) -> None:
    await services.open()
    try:
        going_on, left = new_id(), id_at(int((time.time() - 2 * STALE_SECONDS) * 1000), 0)

        def hide(import_id: str) -> None:
            user = services.store.read_now(lambda session: session.scalar(select(User.id)))
            write_hidden(services.store, user or 0, import_id, rows())

        def hidden(session: Any) -> set[str]:
            return set(session.scalars(select(ConversationRow.import_id)))

        await asyncio.to_thread(hide, going_on)
        await asyncio.to_thread(hide, left)
        async with asyncio.timeout(30):
            while left in await services.store.read(hidden):  # noqa: ASYNC110 - another task deletes it
                await asyncio.sleep(0.02)
        assert await services.store.read(hidden) == {going_on}
    finally:
        await services.close()
